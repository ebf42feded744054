"""An S3-like view is too slow for kills: a server of one folder over http, which writes down which
ranges it was asked for, and a source that reads from it.

The source is registered as `https` in processes that run `python ranged.py <json>`; what is tested
is the engine, killed at any moment, not an adapter.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import math
import os
import re
import sys
import threading
import time
from collections import Counter
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlsplit

PIECE = 1 << 16
BLOCK = 1 << 20
GRANULE = 1 << 18
"""In the processes that are run here."""
PATIENCE = 3600.0
"""How long the source gives a silent server, in seconds: longer than any test."""
HANDS = 8
"""Their connections, however many CPUs there are."""


class Ranges:
    """`asked`: (path, begin, end) in order; `pause` seconds after each piece.

    Once `hold` bytes have been sent, no more are, until it is raised.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.asked: list[tuple[str, int, int]] = []
        self.sent: Counter[str] = Counter()
        self.pause = 0.0
        self.hold = math.inf
        self.tells_digests = True
        self.url = ""
        self.lock = threading.Lock()

    @property
    def total(self) -> int:
        with self.lock:
            return sum(self.sent.values())

    def listing(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        for path in sorted(self.folder.rglob("*")):
            if path.is_file():
                data = path.read_bytes()
                name = path.relative_to(self.folder).as_posix()
                digest = hashlib.sha256(data).hexdigest()
                found.append(
                    {
                        "path": name,
                        "size": len(data),
                        "version_tag": f'"{digest[:20]}"',
                        "sha256": digest if self.tells_digests else "",
                    }
                )
        return found


@contextmanager
def serving_ranges(folder: Path) -> Generator[Ranges]:
    ranges = Ranges(folder)
    handler = type("Handler", (_Handler,), {"ranges": ranges})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    ranges.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield ranges
    finally:
        server.shutdown()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    ranges: Ranges
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        name = unquote(urlsplit(self.path).path.lstrip("/"))
        if not name:
            return self._send(200, json.dumps(self.ranges.listing()).encode(), name)
        data = (self.ranges.folder / name).read_bytes()
        found = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        begin, end = (int(found[1]), int(found[2]) + 1) if found else (0, len(data))
        with self.ranges.lock:
            self.ranges.asked.append((name, begin, end))
        return self._send(206, data[begin:end], name)

    def _send(self, status: int, body: bytes, name: str) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        for at in range(0, len(body), PIECE):
            try:
                self.wfile.write(body[at : at + PIECE])
            except OSError:
                self.close_connection = True
                return
            if name:
                with self.ranges.lock:
                    self.ranges.sent[name] += len(body[at : at + PIECE])
                if self.ranges.pause:
                    time.sleep(self.ranges.pause)
                while self.ranges.total >= self.ranges.hold:
                    time.sleep(0.005)


class RangedSource:
    """Implements weights.sources.protocol.Source."""

    detects_changes = True

    def __init__(self, request: Any) -> None:
        self._source = request.plan.source
        self._host = urlsplit(self._source).netloc

    def resolve_revision(self) -> str:
        return ""

    def _get(self, path: str, headers: dict[str, str]) -> http.client.HTTPResponse:
        connection = http.client.HTTPConnection(self._host, timeout=PATIENCE)
        connection.request("GET", quote(path), headers=headers)
        return connection.getresponse()

    def list_files(self) -> Any:
        from prefect_bt.weights.sources.file_listing import ListedFile, Listing, compute_revision

        files = tuple(ListedFile(**row) for row in json.load(self._get("/", {})))
        return Listing(compute_revision(files), files)

    def read(self, file: Any, *, start: int, length: int) -> Iterator[bytes]:
        asked = {"Range": f"bytes={start}-{start + length - 1}"}
        with self._get(f"/{file.path}", asked) as answer:
            while piece := answer.read1(PIECE):
                yield piece


if __name__ == "__main__":
    from prefect_bt.planning.plan import WeightsPlan
    from prefect_bt.weights import NodeCache, mirror_source
    from prefect_bt.weights.cache import partial_file
    from prefect_bt.weights.download import downloader
    from prefect_bt.weights.sources import protocol

    given = json.loads(sys.argv[1])
    partial_file.GRANULE_BYTES = downloader.GRANULE_BYTES = GRANULE  # pyright: ignore[reportAttributeAccessIssue]
    downloader.BLOCK_BYTES = BLOCK  # pyright: ignore[reportAttributeAccessIssue]
    downloader.CONNECTIONS = (HANDS, HANDS)  # pyright: ignore[reportAttributeAccessIssue]
    sys.modules["tests_weights_ranged"] = sys.modules["__main__"]
    protocol.SOURCES["http"] = "tests_weights_ranged:RangedSource"
    cache = NodeCache(Path(given["root"]))
    print("ready", flush=True)
    done = mirror_source(WeightsPlan(given["url"], "/w", given.get("key", "k1")), cache=cache)
    print(
        json.dumps({"folder": str(done.folder), "fetched": done.fetched_bytes, "pid": os.getpid()})
    )
