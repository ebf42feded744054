"""A Hugging Face Hub for benchmarks: repositories that are folders of this disk.

As the real one: a listing in pages of 1,000, `X-Repo-Commit` and ETags, LFS files behind a redirect
to another host (here: another port), whose URLs name nothing but the content. Run as a process of
its own by `serving`; the catalogue is read again whenever it has changed.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import file_serving
from datasets import Digested
from file_serving import Answer, Request, Sent

_API, _BLOBS, _PAGE = "/api/models/", "/lfs/", 1000
LFS = (".safetensors", ".bin")
"""What the Hub keeps in LFS by the endings of its default .gitattributes."""


@dataclass
class Hub:
    """What the benchmark holds of the server. `publish` is seen by the next request."""

    url: str
    catalogue: Path
    repos: dict[str, Any] = field(default_factory=dict[str, Any])

    def publish(self, repo_id: str, files: list[Digested], *, branch: str = "main") -> str:
        """A commit of these files, which `branch` names from now on; their folder must stay."""
        rows = [_row(file) for file in files]
        commit = hashlib.sha1(json.dumps([r[:4] for r in rows]).encode()).hexdigest()
        repo = self.repos.setdefault(repo_id, {"branches": {}, "commits": {}})
        repo["branches"][branch] = commit
        repo["commits"][commit] = rows
        _write(self.catalogue, self.repos)
        return commit

    def sent(self) -> Sent:
        return file_serving.settled(self.url)


@contextmanager
def serving(root: Path, *, delay: float = 0.0) -> Iterator[Hub]:
    """`delay`: seconds before every answer."""
    root.mkdir(parents=True, exist_ok=True)
    catalogue = root / "catalogue.json"
    _write(catalogue, {})
    with file_serving.running("hub_serving", str(catalogue), str(delay)) as url:
        yield Hub(url, catalogue)


def _row(file: Digested) -> list[Any]:
    """path, size, sha256, git id, where it lies."""
    return [file.path, file.size, file.sha256, file.git_sha1, str(file.place)]


def _write(catalogue: Path, repos: dict[str, Any]) -> None:
    fresh = catalogue.with_suffix(".new")
    fresh.write_text(json.dumps(repos))
    fresh.replace(catalogue)


# -- the server's process ---------------------------------------------------------------------


class _Commit:
    """Answers made once: 10,000 files are asked for 10,000 times."""

    def __init__(self, repo_id: str, sha: str, rows: list[list[Any]]) -> None:
        self.sha, self.files = sha, {row[0]: row for row in rows}
        about = {
            "id": repo_id,
            "sha": sha,
            "private": False,
            "tags": [],
            "downloads": 0,
            "likes": 0,
        }
        names = [{"rfilename": row[0]} for row in rows]
        self.short = json.dumps({**about, "siblings": names}).encode()
        siblings = [_sibling(row) for row in rows]
        self.long = json.dumps({**about, "siblings": siblings}).encode()
        self.tree = [_tree_entry(row) for row in rows]


class _Catalogue:
    def __init__(self, path: Path) -> None:
        self._path, self._seen = path, -1
        self._branches: dict[str, dict[str, str]] = {}
        self._commits: dict[tuple[str, str], _Commit] = {}
        self.blobs: dict[str, list[Any]] = {}

    def refresh(self) -> None:
        """Commits never change, so those that are known stay as they are."""
        changed = self._path.stat().st_mtime_ns
        if changed == self._seen:
            return
        for repo_id, repo in json.loads(self._path.read_bytes()).items():
            self._branches[repo_id] = repo["branches"]
            for sha, rows in repo["commits"].items():
                if (repo_id, sha) not in self._commits:
                    self.blobs |= {row[2]: row for row in rows}
                    self._commits[repo_id, sha] = _Commit(repo_id, sha, rows)
        self._seen = changed

    def has(self, repo_id: str) -> bool:
        return repo_id in self._branches

    def find(self, repo_id: str, revision: str) -> _Commit | None:
        sha = self._branches.get(repo_id, {}).get(revision or "main", revision)
        return self._commits.get((repo_id, sha))


class _Face:
    """file_serving.App."""

    def __init__(self, catalogue: Path) -> None:
        self._catalogue = _Catalogue(catalogue)

    def __call__(self, request: Request) -> Answer:
        path = request.path
        self._catalogue.refresh()
        if path.startswith(_API):
            return self._list(request, path.removeprefix(_API))
        if path.startswith(_BLOBS):
            return _blob(self._catalogue.blobs[path.removeprefix(_BLOBS)])
        repo_id, _, rest = path[1:].partition("/resolve/")
        revision, _, name = rest.partition("/")
        commit = self._catalogue.find(repo_id, revision)
        if commit is None:
            known = self._catalogue.has(repo_id)
            return _no(404, "RevisionNotFound") if known else _no(401, "RepoNotFound")
        row = commit.files.get(name)
        return _resolve(request, commit.sha, row) if row else _no(404, "EntryNotFound")

    def _list(self, request: Request, rest: str) -> Answer:
        owner, name, *more = rest.split("/", 3)
        what, revision = (more[0], more[1]) if len(more) > 1 else ("", "")
        repo_id = f"{owner}/{name}"
        if not self._catalogue.has(repo_id):
            return _no(401, "RepoNotFound")
        commit = self._catalogue.find(repo_id, revision)
        if commit is None:
            return _no(404, "RevisionNotFound")
        if what == "tree":
            return _tree(request, commit)
        if request.query.get("expand") == "sha":
            return _json(json.dumps({"id": repo_id, "sha": commit.sha}).encode())
        blobs = request.query.get("blobs", "").lower() in {"true", "1"}
        return _json(commit.long if blobs else commit.short)


def _tree(request: Request, commit: _Commit) -> Answer:
    at = int(request.query.get("cursor") or 0)
    until = at + int(request.query.get("limit") or _PAGE)
    answer = _json(json.dumps(commit.tree[at:until]).encode())
    if until < len(commit.tree):
        next_page = f"http://{request.addresses[0]}{request.path}?recursive=true&cursor={until}"
        answer.headers["Link"] = f'<{next_page}>; rel="next"'
    return answer


def _resolve(request: Request, sha: str, row: list[Any]) -> Answer:
    headers = {"X-Repo-Commit": sha}
    path, size, sha256, git_sha1, _ = row
    if not path.endswith(LFS):
        answer = _blob(row)
        answer.headers.update({**headers, "ETag": f'"{git_sha1}"'})
        return answer
    headers |= {"X-Linked-Etag": f'"{sha256}"', "X-Linked-Size": str(size)}
    headers["Location"] = f"http://{request.addresses[1]}{_BLOBS}{sha256}"
    return Answer(302, headers)


def _blob(row: list[Any]) -> Answer:
    headers = {"ETag": f'"{row[2]}"', "Content-Type": "application/octet-stream"}
    return Answer(200, headers, file=Path(row[4]), size=row[1])


def _json(body: bytes) -> Answer:
    return Answer(200, {"Content-Type": "application/json"}, body)


def _no(status: int, code: str) -> Answer:
    return Answer(status, {"X-Error-Code": code, "X-Error-Message": code}, b"{}")


def _sibling(row: list[Any]) -> dict[str, Any]:
    path, size, sha256, git_sha1, _ = row
    entry: dict[str, Any] = {"rfilename": path, "size": size, "blobId": git_sha1}
    if path.endswith(LFS):
        entry["lfs"] = {"sha256": sha256, "size": size, "pointerSize": 134}
    return entry


def _tree_entry(row: list[Any]) -> dict[str, Any]:
    path, size, sha256, git_sha1, _ = row
    entry: dict[str, Any] = {"type": "file", "path": path, "size": size, "oid": git_sha1}
    if path.endswith(LFS):
        entry["lfs"] = {"oid": sha256, "size": size, "pointerSize": 134}
    return entry


if __name__ == "__main__":
    file_serving.serve(_Face(Path(sys.argv[1])), ports=2, delay=float(sys.argv[2]))
