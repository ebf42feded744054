"""A small Hugging Face Hub on a port of this machine, which can misbehave on demand.

What huggingface_hub asks for: `/api/models/<repo>[/revision/<rev>]`, and HEAD and GET (also of a
range) of `/<repo>/resolve/<rev>/<file>`. LFS files are answered with a redirect to a second server,
as the real Hub's are with one to its CDN, which must never see a token.
"""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

LFS = (".safetensors", ".bin")


@dataclass
class Repo:
    """`commits` by id; `branches` name one of them. `token` gates it when set."""

    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)
    branches: dict[str, str] = field(default_factory=dict)
    token: str = ""
    gated: bool = False

    def commit(self, files: dict[str, bytes], *, branch: str = "main") -> str:
        text = repr(sorted(files.items())) + branch
        commit = hashlib.sha1(text.encode()).hexdigest()
        self.commits[commit] = files
        self.branches[branch] = commit
        return commit


@dataclass
class Misbehaviour:
    """How many of the next answers with a body are spoilt, and how."""

    truncate: int = 0
    corrupt: int = 0
    hang: int = 0
    status: int = 0
    """Answered to everything but HEAD while it is set."""
    seconds_a_chunk: float = 0.0


class Hub:
    def __init__(self) -> None:
        self.repos: dict[str, Repo] = {}
        self.asked: Counter[tuple[str, str]] = Counter()
        """(method, path) -> how often."""
        self.tokens: dict[str, dict[str, set[str]]] = {"hub": {}, "cdn": {}}
        """Which of the two servers -> token -> the paths that were asked for with it."""
        self.sent = 0
        """Bytes of files."""
        self.bad = Misbehaviour()
        self.url = self.cdn_url = ""
        self.lock = threading.Lock()

    def bodies(self, name: str = "") -> int:
        """How many bodies of files were asked for; of those whose path ends with `name`."""
        return sum(
            n
            for (method, path), n in self.asked.items()
            if method == "GET" and "/resolve/" in path and path.endswith(name)
        )

    def find(self, repo_id: str, revision: str) -> tuple[str, dict[str, bytes]] | None:
        repo = self.repos[repo_id]
        commit = repo.branches.get(revision, revision)
        return (commit, repo.commits[commit]) if commit in repo.commits else None


@contextmanager
def serving_hub() -> Generator[Hub]:
    hub = Hub()
    servers: list[ThreadingHTTPServer] = []
    for name in ("hub", "cdn"):
        handler = type(f"{name}Handler", (_Handler,), {"hub": hub, "role": name})
        server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        servers.append(server)
    hub.url, hub.cdn_url = (f"http://127.0.0.1:{s.server_port}" for s in servers)
    try:
        yield hub
    finally:
        for server in servers:
            server.shutdown()
            server.server_close()


class _Handler(BaseHTTPRequestHandler):
    hub: Hub
    role: str
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def _answer(self) -> None:
        path = unquote(urlsplit(self.path).path)
        token = self.headers.get("Authorization", "")
        with self.hub.lock:
            self.hub.asked[self.command, path] += 1
            self.hub.tokens[self.role].setdefault(token, set()).add(path)
        if self.hub.bad.status and self.command == "GET":
            return self._error(self.hub.bad.status, "Trouble")
        if path.startswith("/api/models/"):
            repo_id, _, revision = path.removeprefix("/api/models/").partition("/revision/")
        else:
            repo_id, _, rest = path.removeprefix("/").partition("/resolve/")
            revision, _, name = rest.partition("/")
        repo = self.hub.repos.get(repo_id)
        if repo is None:
            return self._error(401, "RepoNotFound")
        if repo.token and self.role == "hub" and token != f"Bearer {repo.token}":
            if repo.gated:
                return self._error(403 if token else 401, "GatedRepo")
            return self._error(401, "RepoNotFound")
        found = self.hub.find(repo_id, revision or "main")
        if found is None:
            return self._error(404, "RevisionNotFound")
        commit, files = found
        if path.startswith("/api/"):
            return self._list(repo_id, commit, files)
        if name not in files:
            return self._error(404, "EntryNotFound")
        return self._file(commit, name, files[name])

    def _list(self, repo_id: str, commit: str, files: dict[str, bytes]) -> None:
        siblings = [_sibling(name, data) for name, data in files.items()]
        body = json.dumps({"id": repo_id, "sha": commit, "siblings": siblings}).encode()
        self._send(200, body, {"Content-Type": "application/json"})

    def _file(self, commit: str, name: str, data: bytes) -> None:
        lfs = name.endswith(LFS)
        headers = {"X-Repo-Commit": commit, "Accept-Ranges": "bytes"}
        if lfs and self.role == "hub":
            headers |= {
                "X-Linked-Etag": f'"{hashlib.sha256(data).hexdigest()}"',
                "X-Linked-Size": str(len(data)),
                "Location": self.hub.cdn_url + self.path,
            }
            return self._send(302, b"", headers)
        headers["ETag"] = f'"{_git_id(data)}"'
        start, status = 0, 200
        wanted = self.headers.get("Range")
        if wanted:
            start = int(wanted.removeprefix("bytes=").partition("-")[0])
            status = 206
            headers["Content-Range"] = f"bytes {start}-{len(data) - 1}/{len(data)}"
        return self._send(status, data[start:], headers, spoil=True)

    def _error(self, status: int, code: str) -> None:
        self._send(status, b"{}", {"X-Error-Code": code, "X-Error-Message": code})

    def _send(
        self, status: int, body: bytes, headers: dict[str, str], *, spoil: bool = False
    ) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "HEAD":
            return
        if spoil:
            body = self._spoil(body)
        pace = self.hub.bad.seconds_a_chunk if spoil else 0.0
        step = 1 << 16
        for at in range(0, len(body), step):
            self.wfile.write(body[at : at + step])
            if spoil:
                self.hub.sent += len(body[at : at + step])
            if pace:
                self.wfile.flush()
                time.sleep(pace)

    def _spoil(self, body: bytes) -> bytes:
        bad = self.hub.bad
        with self.hub.lock:
            if bad.truncate > 0:
                bad.truncate -= 1
                self.close_connection = True
                return body[: len(body) // 2]
            if bad.corrupt > 0:
                bad.corrupt -= 1
                return bytes([body[0] ^ 1]) + body[1:]
            hang = bad.hang > 0
            bad.hang -= hang
        if hang:
            time.sleep(30)
        return body


def _sibling(name: str, data: bytes) -> dict[str, Any]:
    entry: dict[str, Any] = {"rfilename": name, "size": len(data), "blobId": _git_id(data)}
    if name.endswith(LFS):
        sha256 = hashlib.sha256(data).hexdigest()
        entry["lfs"] = {"sha256": sha256, "size": len(data), "pointerSize": 134}
    return entry


def _git_id(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
