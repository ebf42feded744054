"""Xet storage on a port of this machine: real enough for hf_xet, and misbehaving on demand.

`/v1/reconstructions/<name>` tells of which blocks (xorbs) a file is made, each of which is read by
a range of `/xorbs/<name>/<n>`. A block is chunks, each behind eight bytes of header.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

CHUNK = 1 << 16
XORB = 1 << 20


@dataclass
class Cas:
    files: dict[str, bytes] = field(default_factory=dict)
    """By their names here."""
    status: int = 0
    """Answered to everything while it is set."""
    hang: bool = False
    """Nothing is answered while it is set."""
    hang_at: int = 0
    """From this block of a file on, the next `hangs` requests are not answered."""
    hangs: int = 0
    sent: set[int] = field(default_factory=set)
    """Numbers of the blocks that were sent."""
    pause: float = 0.0
    """Seconds between two pieces of a block."""
    asked: list[str] = field(default_factory=list)
    blocks: int = 0
    """That were asked for."""
    tokens: set[str] = field(default_factory=set)
    over: threading.Event = field(default_factory=threading.Event)
    url: str = ""

    def add(self, data: bytes) -> str:
        name = hashlib.sha256(b"xet" + data).hexdigest()
        self.files[name] = data
        return name


@contextmanager
def serving_cas() -> Generator[Cas]:
    cas = Cas()
    handler = type("CasHandler", (_Handler,), {"cas": cas})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    server.block_on_close = False
    server.handle_error = lambda *_: None  # clients that are killed close their connections
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    cas.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield cas
    finally:
        cas.over.set()
        server.shutdown()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    cas: Cas
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_POST(self) -> None:
        self._send(404, b"{}")

    def do_GET(self) -> None:
        cas = self.cas
        cas.asked.append(self.path)
        if cas.hang:
            return self._hang()
        if cas.status:
            return self._send(cas.status, b"{}")
        wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        start = int(wanted[1]) if wanted else 0
        end = int(wanted[2]) + 1 if wanted and wanted[2] else None
        if found := re.fullmatch(r"/v1/reconstructions/(\w+)", self.path):
            cas.tokens.add(self.headers.get("Authorization", ""))
            return self._reconstruct(found[1], start, end)
        if found := re.fullmatch(r"/xorbs/(\w+)/(\d+)", self.path):
            number = int(found[2])
            block = _serialized(self._data(found[1], number))
            cas.blocks += 1
            if cas.hangs > 0 and number >= cas.hang_at and self._sent_before():
                cas.hangs -= 1
                return self._hang()
            self._send(206, block[start:end])
            return cas.sent.add(number)
        return self._send(404, b"{}")

    def _sent_before(self) -> bool:
        """Return whether the blocks before `hang_at` were sent, after 10 s at most.

        hf_xet asks in any order, and for a few blocks at once: if the first ones that it asks for
        all hang, it never asks for block 0.
        """
        first = range(self.cas.hang_at)
        deadline = time.monotonic() + 10.0
        while not self.cas.sent.issuperset(first) and time.monotonic() < deadline:
            time.sleep(0.02)
        return self.cas.sent.issuperset(first)

    def _data(self, name: str, block: int) -> bytes:
        return self.cas.files[name][block * XORB : (block + 1) * XORB]

    def _reconstruct(self, name: str, start: int, end: int | None) -> None:
        data = self.cas.files.get(name)
        if data is None or start >= len(data):
            return self._send(404 if data is None else 416, b"{}")
        end = min(end or len(data), len(data))
        terms: list[dict[str, Any]] = []
        fetch_info: dict[str, Any] = {}
        for block in range(start // XORB, -(-end // XORB)):
            raw = self._data(name, block)
            chunks = {"start": 0, "end": -(-len(raw) // CHUNK)}
            key = hashlib.sha256(f"{name}{block}".encode()).hexdigest()
            terms.append({"hash": key, "unpacked_length": len(raw), "range": chunks})
            size = len(_serialized(raw))
            url = f"{self.cas.url}/xorbs/{name}/{block}"
            where = {"start": 0, "end": size - 1}
            fetch_info[key] = [{"range": chunks, "url": url, "url_range": where}]
        body = {
            "offset_into_first_range": start % XORB,
            "terms": terms,
            "fetch_info": fetch_info,
        }
        return self._send(200, json.dumps(body).encode())

    def _hang(self) -> None:
        self.cas.over.wait(120)
        self.close_connection = True

    def _send(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        for at in range(0, len(body), CHUNK):
            self.wfile.write(body[at : at + CHUNK])
            if self.cas.pause and self.path.startswith("/xorbs/"):
                self.cas.over.wait(self.cas.pause)


def _serialized(data: bytes) -> bytes:
    """Uncompressed chunks: version, length (3 bytes), kind of compression, length (3 bytes)."""
    out = bytearray()
    for at in range(0, len(data), CHUNK):
        chunk = data[at : at + CHUNK]
        length = len(chunk).to_bytes(3, "little")
        out += b"\0" + length + b"\0" + length + chunk
    return bytes(out)
