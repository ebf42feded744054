"""Record the code that a job is made from: the Git state of its folder, the client's versions.

Collecting never fails and is bounded in time. `git` runs without the repository's file monitor and
index lock, and without the `GIT_*` variables of this process: in a Git hook they name another
repository.
"""

from __future__ import annotations

import os
import platform
import signal
import subprocess
import tempfile
import time
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any, Final, cast

from prefect_bt.ledger.provenance_record import GitState, Provenance
from prefect_bt.ledger.records import JobRecord

GIT_SECONDS: Final = 2.0
"""Seconds for all commands of `git` together; the state of a huge repository stays unknown."""
_MAX_TEXT: Final = 200
"""Most characters of a value that a client sends."""
FRAMEWORKS: Final = """
    accelerate datasets deepspeed jax lightning peft tensorflow torch transformers trl
"""


def collect_provenance(
    folder: Path | None, *, user: str, old: JobRecord | None = None
) -> Provenance:
    """Return the provenance of the code in `folder` and of this process.

    `folder` is None if nothing was packed. A job that repeats `old` keeps the Git state of its
    files; the versions of the client are new.
    """
    kept = old.provenance if old else None
    return Provenance(
        git=kept.git if kept else find_git_state(folder) if folder else None,
        client_version=_installed_version("prefect-bt"),
        python_version=platform.python_version(),
        prefect_version=_installed_version("prefect"),
        pydantic_version=_installed_version("pydantic"),
        truss_version=_installed_version("truss"),
        frameworks={
            name: found for name in FRAMEWORKS.split() if (found := _installed_version(name))
        },
        user=user,
        host=platform.node(),
    )


def read_client_provenance(document: Any, *, user: str) -> Provenance:
    """Return the provenance that a client sends as `truss_user_env`, of the values that fit."""
    env = _as_object(document)
    git = _as_object(env.get("git_info"))
    commits, dirty = git.get("commits_since_tag"), git.get("has_uncommitted_changes")
    return Provenance(
        git=GitState(
            commit=_as_text(git["latest_commit_sha"]),
            tag=_as_text(git.get("latest_tag")),
            commits_since_tag=commits if isinstance(commits, int) else None,
            dirty=dirty if isinstance(dirty, bool) else None,
        )
        if git.get("latest_commit_sha")
        else None,
        truss_version=_as_text(env.get("truss_client_version")),
        python_version=_as_text(env.get("python_version")),
        pydantic_version=_as_text(env.get("pydantic_version")),
        user=user,
    )


def _as_object(value: object) -> dict[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def _as_text(value: object) -> str:
    return value[:_MAX_TEXT] if isinstance(value, str) else ""


def find_git_state(folder: Path) -> GitState | None:
    """Return the state of the working tree around `folder`; None if `git` finds none."""
    git = _Git(folder, time.monotonic() + GIT_SECONDS)
    commit = git.run("rev-parse", "--verify", "--quiet", "HEAD^{commit}")
    if not commit:
        return None
    state = GitState(commit, branch=git.run("symbolic-ref", "--quiet", "--short", "HEAD") or "")
    described = git.run("describe", "--tags", "--long", "--abbrev=7") or ""
    tag, _, rest = described.rpartition("-")[0].rpartition("-")
    if tag and rest.isdecimal():
        state = replace(state, tag=tag, commits_since_tag=int(rest))
    changes = git.run("status", "--porcelain", "--untracked-files=no", "--ignore-submodules=dirty")
    return state if changes is None else replace(state, dirty=bool(changes))


def provenance_document(found: Provenance | None) -> dict[str, Any] | None:
    """Return `truss_user_env` as truss sends it, and the keys that only prefect_bt has."""
    if found is None:
        return None
    git = found.git
    return {
        "truss_client_version": found.truss_version or None,
        "python_version": found.python_version,
        "pydantic_version": found.pydantic_version,
        "mypy_version": None,
        "git_info": {
            "latest_commit_sha": git.commit,
            "latest_tag": git.tag or None,
            "commits_since_tag": git.commits_since_tag,
            "has_uncommitted_changes": git.dirty,
            "branch": git.branch or None,
        }
        if git
        else None,
        "prefect_bt_version": found.client_version,
        "prefect_version": found.prefect_version,
        "frameworks": dict(found.frameworks),
        "user": found.user or None,
        "host": found.host or None,
    }


def format_git(document: dict[str, Any]) -> str:
    """Return `1a2b3c4 (main, uncommitted changes), v1.2 + 3 commits`; "" without a repository."""
    git: dict[str, Any] = document.get("git_info") or {}
    if not git:
        return ""
    words = {True: "uncommitted changes", False: "", None: "changes not determined"}
    beside = [git.get("branch") or "detached", words[git.get("has_uncommitted_changes")]]
    text = f"{git['latest_commit_sha'][:12]} ({', '.join(word for word in beside if word)})"
    if tag := git.get("latest_tag"):
        since = git.get("commits_since_tag") or 0
        text += f", {tag}" + (f" + {since} commit{'s' * (since != 1)}" if since else "")
    return text


def format_client(document: dict[str, Any]) -> str:
    """Return `me@laptop: prefect_bt 0.1.0, Python 3.11.7, Prefect 3.4.0, torch 2.9.0`."""
    versions: dict[str, str | None] = {
        "prefect_bt": document.get("prefect_bt_version"),
        "Python": document.get("python_version"),
        "Prefect": document.get("prefect_version"),
        **(document.get("frameworks") or {}),
    }
    place = "@".join(word for key in ("user", "host") if (word := document.get(key)))
    text = ", ".join(f"{name} {version}" for name, version in versions.items() if version)
    return f"{place}: {text}" if place else text


class _Git:
    """Commands of `git` in one folder, until a deadline on the monotonic clock."""

    def __init__(self, folder: Path, deadline: float) -> None:
        self._command = ["git", "-C", str(folder), "-c", "core.fsmonitor=false"]
        self._deadline = deadline
        self._environment = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")}
        self._environment |= {"GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"}

    def run(self, *arguments: str) -> str | None:
        """Return the output of `git`, stripped; None if it failed, is missing or too slow."""
        # A file, not a pipe: a child that outlives `git` would keep a pipe open.
        with tempfile.TemporaryFile() as output:
            try:
                process = subprocess.Popen(
                    [*self._command, *arguments],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.DEVNULL,
                    env=self._environment,
                    start_new_session=True,
                )
            except (OSError, ValueError):
                return None
            try:
                code = process.wait(max(0.0, self._deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                return None
            finally:
                if process.returncode is None:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
            if code:
                return None
            output.seek(0)
            return output.read().decode(errors="replace").strip()


def _installed_version(distribution: str) -> str:
    """Return the installed version, "" if there is none, without importing the distribution."""
    try:
        return metadata.version(distribution) or ""
    except (metadata.PackageNotFoundError, OSError, ValueError):
        return ""
