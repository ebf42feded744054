"""Which code and which client a job was made by; `git` missing, refused, or too slow."""

import json
import subprocess
from pathlib import Path

import pytest

from prefect_bt.flows.tasks.reporting.job_card import render_card
from prefect_bt.host.job_lock import JobLock
from prefect_bt.jobs.job_json import job_document
from prefect_bt.jobs.options import SubmitOptions
from prefect_bt.jobs.provenance import collect_provenance, find_git_state, format_client, format_git
from prefect_bt.jobs.submit import create_job, write_job
from prefect_bt.ledger.ledger import Ledger
from prefect_bt.ledger.provenance_record import GitState
from prefect_bt.object_store import open_store
from tests.jobs.records import small_project
from tests.node_agent.rig import wait_until
from tests.node_shells import list_processes_of

PROJECT = small_project()
PASSWORD = "hunter2-hunter2"


@pytest.fixture
def git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """`git(...)` in a new repository, whose remote has a password; nothing of the user's."""
    folder = tmp_path / "repository"
    folder.mkdir()
    monkeypatch.setenv("HOME", str(tmp_path))
    for kind in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{kind}_NAME", "a")
        monkeypatch.setenv(f"GIT_{kind}_EMAIL", "a@b.c")

    def run(*arguments: str) -> str:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments], check=True, capture_output=True, text=True
        )
        return done.stdout.strip()

    run("init", "-q", "-b", "main")
    run("remote", "add", "origin", f"https://me:{PASSWORD}@example.com/r.git")
    run.folder = folder  # type: ignore[attr-defined]
    monkeypatch.setattr("prefect_bt.jobs.provenance.GIT_SECONDS", 600.0)
    return run


def test_the_state_of_a_repository(git, monkeypatch: pytest.MonkeyPatch) -> None:
    below = git.folder / "train"
    below.mkdir()
    assert find_git_state(below) is None  # no commit yet
    (below / "config.py").write_text("1\n")
    git("add", ".")
    git("commit", "-qm", "one")
    first = git("rev-parse", "HEAD")
    monkeypatch.setenv("GIT_DIR", "/nowhere")  # as in a hook of another repository
    assert find_git_state(below) == GitState(first, "main", dirty=False)
    monkeypatch.delenv("GIT_DIR")
    git("tag", "v1-rc-2")
    git("commit", "-q", "--allow-empty", "-m", "two")
    git("checkout", "-q", "--detach")
    (git.folder / "untracked").write_text("x")
    assert find_git_state(below) == GitState(
        git("rev-parse", "HEAD"), "", dirty=False, tag="v1-rc-2", commits_since_tag=1
    )
    (below / "config.py").write_text("2\n")
    state = find_git_state(git.folder)
    assert state is not None
    assert state.dirty


def test_a_job_knows_its_code_and_its_client(git, tmp_path: Path) -> None:
    (git.folder / "config.py").write_text("1\n")
    git("add", ".")
    git("commit", "-qm", "one")
    ledger, options = Ledger(open_store(str(tmp_path / "store"))), SubmitOptions()
    claim = JobLock(tmp_path / "state")
    record, _ = create_job(ledger, PROJECT, source_dir=git.folder, options=options, lock=claim)
    assert record.provenance is not None
    assert record.provenance.git == GitState(git("rev-parse", "HEAD"), "main", dirty=False)
    assert ledger.get_job(record.id) == record
    again = write_job(ledger, PROJECT, options, None, old=record)
    assert again.provenance == record.provenance

    document = job_document(ledger, record)
    known = document["truss_user_env"]
    assert known["git_info"] == {
        "latest_commit_sha": git("rev-parse", "HEAD"),
        "latest_tag": None,
        "commits_since_tag": None,
        "has_uncommitted_changes": False,
        "branch": "main",
    }
    assert known["prefect_bt_version"] in format_client(known)
    assert PASSWORD not in json.dumps(document)
    card = render_card(document, record.definition)
    assert f"Git: {git('rev-parse', 'HEAD')[:12]} (main)" in card
    assert "Pushed from: " in card


@pytest.mark.parametrize(
    "script", ["exit 128", "exec sleep 1000", "sleep 86417 & sleep 86417", "", None]
)
def test_git_never_fails_a_push(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture, script
) -> None:
    """Refused (another user's repository), hanging, hanging with a child, silent, and missing."""
    commands = tmp_path / "commands"
    commands.mkdir()
    if script is not None:
        (commands / "git").write_text(
            f"#!/bin/sh\nPATH=/usr/bin:/bin\necho fatal: dubious ownership >&2\n{script}\n"
        )
        (commands / "git").chmod(0o755)
    monkeypatch.setenv("PATH", str(commands))
    monkeypatch.setattr("prefect_bt.jobs.provenance.GIT_SECONDS", 0.2)
    found = collect_provenance(tmp_path, user="me")
    assert found.git is None
    assert found.python_version
    assert capfd.readouterr() == ("", "")
    wait_until(lambda: not list_processes_of("86417"))


def test_how_it_is_spelled() -> None:
    git = {"latest_commit_sha": "0123456789abcdef", "branch": None}
    changed = {"has_uncommitted_changes": True, "latest_tag": "v1", "commits_since_tag": 1}
    assert format_git({"git_info": {**git, **changed}}) == (
        "0123456789ab (detached, uncommitted changes), v1 + 1 commit"
    )
    unknown = {**git, "branch": "main", "has_uncommitted_changes": None}
    assert format_git({"git_info": unknown}) == "0123456789ab (main, changes not determined)"
    assert format_git({"git_info": None}) == format_client({}) == ""
    client = {"user": "me", "host": "box", "python_version": "3.11", "frameworks": {"torch": "2"}}
    assert format_client(client) == "me@box: Python 3.11, torch 2"
