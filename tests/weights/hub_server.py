"""A small Hugging Face Hub on a port of this machine, which can misbehave on demand.

It answers `/api/models/<repo>[/revision/<rev>]`, `…/tree/<rev>[/<folder>]` in pages, and HEAD and
GET (also of a range) of `/<repo>/resolve/<rev>/<file>`; the same for data sets and spaces, whose
names in `repos` begin with `datasets/` or `spaces/`. LFS files are redirected to a second server,
as the real Hub redirects to its CDN; that server must never see tokens.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
import time
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from math import inf
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

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
    half: int = 0
    """As hang, after half of the body."""
    refuse: int = 0
    """Answered by the second server with 403, as when a link of the first has expired."""
    status: int = 0
    """Answered to everything but HEAD while it is set."""
    headers: dict[str, str] = field(default_factory=dict)
    """Sent with that status."""
    seconds_a_chunk: float = 0.0
    hold_at: float = inf
    """Bytes of files, of all bodies together, after which every body waits while this is set."""
    ranges: bool = True
    page: int = 1000
    """Entries an answer of a listing."""
    entry: dict[str, Any] = field(default_factory=dict[str, Any])
    """Fields that the entries of files get instead of the right ones."""
    more: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    """Entries after those of the files."""
    info: Any = None
    """Answered instead of what is known of a repository."""
    listing: bytes | None = None
    """The body of every page."""
    link: str = ""
    named: str = ""
    """Server that the links to the next page name, if not this one."""
    """The header of every page; `{n}` in it is how many pages were asked for."""


class Hub:
    def __init__(self) -> None:
        self.repos: dict[str, Repo] = {}
        self.asked: Counter[tuple[str, str]] = Counter()
        """(method, path) -> how often."""
        self.tokens: dict[str, dict[str, set[str]]] = {"hub": {}, "cdn": {}}
        """Which of the two servers -> token -> the paths that were asked for with it."""
        self.sent = 0
        """Bytes of files."""
        self.sent_of: Counter[str] = Counter()
        """The same, by the file's path in its repository."""
        self.ranges: list[tuple[str, int, int]] = []
        """(path in the repository, first byte, bytes) of every body."""
        self.sending = 0
        """Bodies of files that are on their way; falls when all of one is counted in `sent`."""
        self.bad = Misbehaviour()
        self.url = self.cdn_url = ""
        self.lock = threading.Lock()
        self.over = threading.Event()
        self.pages = 0
        """Pages with a `link`."""

    def bodies(self, name: str = "") -> int:
        """How many bodies of files were sent; of those whose path ends with `name`."""
        return sum(path.endswith(name) for path, _, _ in self.ranges)

    def settled_sent(self, name: str = "") -> int:
        """`sent`, or `sent_of` one file, once no body is on its way.

        Who has read a body may be faster than the thread that counts what it wrote.
        """
        deadline = time.monotonic() + 200
        while True:
            with self.lock:
                if not self.sending:
                    return self.sent_of[name] if name else self.sent
            assert time.monotonic() < deadline, f"{self.sending} bodies are still on their way"
            time.sleep(0.01)

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
        server = _Server(("127.0.0.1", 0), handler)
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        servers.append(server)
    hub.url, hub.cdn_url = (f"http://127.0.0.1:{s.server_port}" for s in servers)
    try:
        yield hub
    finally:
        hub.over.set()
        for server in servers:
            server.shutdown()
            server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """Print nothing where a client has gone: standard error may be that of a command."""


class _Handler(BaseHTTPRequestHandler):
    hub: Hub
    role: str
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

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
        bad = self.hub.bad
        if bad.status and self.command == "GET":
            return self._send(bad.status, b"{}", bad.headers)
        name = tail = folder = ""
        if path.startswith("/api/"):
            kind, *parts = path.removeprefix("/api/").split("/", 4)
            repo_id = "/".join([kind, *parts[:2]]).removeprefix("models/")
            tail, revision = (*parts[2:], "", "")[:2]
            if tail == "tree":
                revision, _, folder = revision.partition("/")
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
        if tail == "tree":
            return self._tree(files, f"{folder}/" if folder else "")
        if path.startswith("/api/"):
            known = {"id": repo_id, "sha": commit}
            body = known if bad.info is None else bad.info
            return self._send(200, json.dumps(body).encode(), {"Content-Type": "application/json"})
        if name not in files:
            return self._error(404, "EntryNotFound")
        return self._file(commit, name, files[name])

    def _tree(self, files: dict[str, bytes], within: str) -> None:
        bad = self.hub.bad
        query = parse_qs(urlsplit(self.path).query)
        files = {name: data for name, data in files.items() if name.startswith(within)}
        if within and not files:
            return self._error(404, "EntryNotFound")
        if "recursive" not in query:
            files = {n: data for n, data in files.items() if "/" not in n.removeprefix(within)}
        first = int(query.get("cursor", ["0"])[0])
        page = list(files.items())[first : first + bad.page]
        entries: list[dict[str, Any]] = [{"type": "directory", "oid": "0" * 40, "path": "a-folder"}]
        entries += [_entry(name, data) for name, data in page]
        entries += bad.more
        entries[1:] = [entry | bad.entry for entry in entries[1:]]
        headers = {"Content-Type": "application/json"}
        if first + len(page) < len(files):
            url = f"{bad.named or self.hub.url}{self.path.partition('?')[0]}?recursive=true"
            headers["Link"] = f'<{url}&cursor={first + len(page)}>; rel="next"'
        body = json.dumps(entries).encode() if bad.listing is None else bad.listing
        if bad.link:
            with self.hub.lock:
                self.hub.pages += 1
                headers["Link"] = bad.link.format(n=self.hub.pages)
        return self._send(200, body, headers)

    def _file(self, commit: str, name: str, data: bytes) -> None:
        bad = self.hub.bad
        headers = {"X-Repo-Commit": commit, "Accept-Ranges": "bytes"}
        if name.endswith(LFS) and self.role == "hub":
            headers |= {
                "X-Linked-Etag": f'"{hashlib.sha256(data).hexdigest()}"',
                "X-Linked-Size": str(len(data)),
                "Location": self.hub.cdn_url + self.path,
            }
            return self._send(302, b"", headers)
        if self.role == "cdn" and bad.refuse > 0:
            bad.refuse -= 1
            return self._send(403, b"expired", {})
        headers["ETag"] = f'"{_git_id(data)}"'
        start, end, status = 0, len(data), 200
        wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if wanted and bad.ranges:
            start, status = int(wanted[1]), 206
            end = min(int(wanted[2]) + 1, len(data)) if wanted[2] else len(data)
            if start >= len(data):
                return self._send(416, b"", {"Content-Range": f"bytes */{len(data)}"})
            headers["Content-Range"] = f"bytes {start}-{end - 1}/{len(data)}"
        return self._send(status, data[start:end], headers, spoilt=name, start=start)

    def _error(self, status: int, code: str) -> None:
        self._send(status, b"{}", {"X-Error-Code": code, "X-Error-Message": code})

    def _send(
        self, status: int, body: bytes, headers: dict[str, str], *, spoilt: str = "", start: int = 0
    ) -> None:
        """`spoilt`: the file whose body it is, from byte `start`."""
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "HEAD":
            return
        hub, pause, step = self.hub, 0.0, 1 << 20
        if spoilt:
            with hub.lock:
                hub.ranges.append((spoilt, start, len(body)))
                hub.sending += 1
        try:
            if spoilt:
                body = self._spoil(body)
                pause = hub.bad.seconds_a_chunk
                step = 1 << 16 if pause or hub.bad.hold_at < inf else step
            for at in range(0, len(body), step):
                while spoilt and hub.sent >= hub.bad.hold_at and not hub.over.is_set():
                    time.sleep(0.01)
                self.wfile.write(body[at : at + step])
                if spoilt:
                    with hub.lock:
                        hub.sent += len(body[at : at + step])
                        hub.sent_of[spoilt] += len(body[at : at + step])
                time.sleep(pause if hub.bad.seconds_a_chunk else 0)
        finally:
            with hub.lock:
                hub.sending -= bool(spoilt)

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
            hang, half = bad.hang > 0, not bad.hang and bad.half > 0
            bad.hang -= hang
            bad.half -= half
        if half:
            self.wfile.write(body[: len(body) // 2])
        if hang or half:
            self.hub.over.wait(30)
            self.close_connection = True
            return b""
        return body


def _entry(name: str, data: bytes) -> dict[str, Any]:
    entry = {"type": "file", "path": name, "size": len(data), "oid": _git_id(data)}
    if name.endswith(LFS):
        sha256 = hashlib.sha256(data).hexdigest()
        entry["lfs"] = {"oid": sha256, "size": len(data), "pointerSize": 134}
    return entry


def _git_id(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
