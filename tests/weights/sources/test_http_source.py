"""Requests of the Hub and https sources: proxies, tokens, and answers of hostile servers."""

from __future__ import annotations

import base64
import re
import resource
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest

from prefect_bt.errors import WeightsError
from prefect_bt.planning.plan import WeightsPlan
from prefect_bt.weights.sources.bucket import BucketSource
from prefect_bt.weights.sources.file_listing import ListedFile
from prefect_bt.weights.sources.http_source import WebSource
from prefect_bt.weights.sources.hub import HubSource
from prefect_bt.weights.sources.protocol import RangesUnsupported, SourceRequest, TransientError
from tests.echo_host import EchoHost
from tests.weights.conftest import mirror, requested
from tests.weights.hub_server import Hub

COMMIT = "0123456789" * 4
SIZE = 20 << 20
BODY = 100
Answer = Callable[[socket.socket], None]


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Iterator[EchoHost]:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    with closing(EchoHost(BODY)) as host:
        yield host


def stream(url: str, token: str = "", stall: float = 60.0) -> bytes:
    """Read with httpx."""
    source = WebSource(requested(url, token, stall_timeout=stall))
    return b"".join(source.read(ListedFile("f", BODY), start=0, length=-1)).rstrip()


def block(url: str, token: str = "", stall: float = 60.0) -> bytes:
    """Read with obstore."""
    source = WebSource(requested(url, token, stall_timeout=stall))
    return b"".join(source.read(ListedFile("f", BODY), start=0, length=BODY)).rstrip()


READERS = pytest.mark.parametrize("read", [stream, block])
Read = Callable[..., bytes]


@READERS
def test_the_proxy_of_the_environment(
    host: EchoHost, monkeypatch: pytest.MonkeyPatch, read: Read
) -> None:
    monkeypatch.setenv("HTTP_PROXY", f"http://me:p%40ss@{host.address}")
    url = "http://somewhere.invalid/file"
    assert read(url) == url.encode()
    assert {*host.sent("proxy-authorization")} == {f"Basic {base64.b64encode(b'me:p@ss').decode()}"}
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    host.asked.clear()
    assert read(f"http://{host.address}/near") == b"/near"
    assert {*host.sent("proxy-authorization")} == {""}


@READERS
def test_a_token_stays_with_its_host(host: EchoHost, read: Read) -> None:
    other = EchoHost(BODY)
    host.redirects = {"/same": "/here", "/away": f"http://{other.address}/there"}
    other.redirects = {"/there": f"http://{host.address}/back"}
    try:
        assert read(f"http://{host.address}/same", "s3cret") == b"/here"
        assert {*host.sent("authorization")} == {"Bearer s3cret"}
        host.asked.clear()
        assert read(f"http://{host.address}/away", "s3cret") == b"/back"
        assert {*other.sent("authorization")} == {""}
        first, *after = host.sent("authorization")
        assert (first, {*after}) == ("Bearer s3cret", {""}), "never to come back"
    finally:
        other.close()


def test_a_token_follows_no_second_redirect(
    host: EchoHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", f"http://{host.address}")
    other = EchoHost(BODY)
    host.redirects = {f"/o/r/resolve/{COMMIT}/f": f"http://{other.address}/there"}
    other.redirects = {"/there": "/last"}
    source = HubSource(requested(f"hf://o/r@{COMMIT}", "s3cret", stall_timeout=60.0))
    try:
        for length in (BODY, -1):
            data = b"".join(source.read(ListedFile("f", BODY), start=0, length=length))
            assert data.rstrip() == b"/last"
        assert {*other.sent("authorization")} == {""}
    finally:
        other.close()


@READERS
def test_reasons(host: EchoHost, read: Read) -> None:
    host.redirects = {"/round": "/round", "/out": "file:///etc/passwd"}
    for path in ("/round", "/out"):
        with pytest.raises(WeightsError):
            read(f"http://{host.address}{path}")
    with pytest.raises(TransientError, match="the connection was refused"):
        read("http://127.0.0.1:9/x")
    silent = socket.create_server(("127.0.0.1", 0))
    with closing(silent), pytest.raises(TransientError, match=r"no byte for 0\.5 s\)"):
        read(f"http://127.0.0.1:{silent.getsockname()[1]}/x", stall=0.5)
    for bad in ("ftp://host/x", "http:///x", "file:///etc/passwd"):
        with pytest.raises(WeightsError, match="it is not a URL"):
            read(bad)


# -- hostile servers --------------------------------------------------------------------------


class _Raw:
    """A Hub that answers every request for a file with what the test says."""

    def __init__(self) -> None:
        self.answer: Answer = lambda connection: None
        self.ranges: list[str] = []
        self._server = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._server.getsockname()[1]}"
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._server.accept()
                threading.Thread(target=self._respond, args=(connection,), daemon=True).start()

    def _respond(self, connection: socket.socket) -> None:
        with connection, suppress(OSError):
            request = b""
            while b"\r\n\r\n" not in request:
                request += connection.recv(1 << 16)
            found = re.search(rb"(?i)range: (\S+)", request)
            self.ranges.append(found[1].decode() if found else "")
            if self.ranges[-1] == "bytes=0-0":
                connection.sendall(head(206, f"Content-Range: bytes 0-0/{SIZE}") + b"x")
            else:
                self.answer(connection)

    def close(self) -> None:
        self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()


def head(status: int, *headers: str, length: int = 1) -> bytes:
    given = (f"HTTP/1.1 {status} x", f"Content-Length: {length}", "Connection: close", *headers)
    return "\r\n".join([*given, "", ""]).encode()


@pytest.fixture
def raw(monkeypatch: pytest.MonkeyPatch) -> Iterator[_Raw]:
    raw = _Raw()
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", raw.url)
    yield raw
    raw.close()


def read(start: int = 10, length: int = 10, stall: float = 60.0) -> bytes:
    source = HubSource(requested(f"hf://o/r@{COMMIT}", stall_timeout=stall))
    return b"".join(source.read(ListedFile("model", SIZE), start=start, length=length))


RIGHT = f"Content-Range: bytes 10-19/{SIZE}"


@pytest.mark.parametrize(
    ("answer", "outcome"),
    [
        (head(206, RIGHT, length=10) + b"0123456789", b"0123456789"),
        (head(206, RIGHT, length=15) + b"0123456789abcde", b"0123456789"),
        (head(206, RIGHT, length=5) + b"01234", b"01234"),
        (head(206, RIGHT, length=10) + b"01234", TransientError),
        (head(206, "Content-Range: bytes 5-14/99", length=10) + b"0123456789", TransientError),
        (b"\0garbage\r\n\r\n", TransientError),
        (b"", TransientError),
        (head(200, length=100) + b"x" * 100, RangesUnsupported),
        (head(206, length=10) + b"0123456789", RangesUnsupported),
        (head(206, "Content-Range: bytes 10-19/*", length=10) + b"x" * 10, RangesUnsupported),
        (head(206, RIGHT, "Last-Modified: soon", length=10) + b"x" * 10, RangesUnsupported),
        (head(302, "Location: file:///etc/passwd", length=0), WeightsError),
        (head(302, length=0), WeightsError),
        (head(416, length=0), WeightsError),
        (head(500, length=27) + b"<Code>InvalidRequest</Code>", TransientError),
    ],
)
def test_answers_to_a_range(raw: _Raw, answer: bytes, outcome: bytes | type[Exception]) -> None:
    raw.answer = lambda connection: connection.sendall(answer)
    if isinstance(outcome, bytes):
        assert read() == outcome
        return
    with pytest.raises(WeightsError) as caught:
        read()
    assert type(caught.value) is outcome
    assert str(caught.value).isprintable()


def test_a_silent_server(raw: _Raw) -> None:
    raw.answer = lambda connection: time.sleep(30)
    with pytest.raises(TransientError, match=r"no byte for 0\.5 s"):
        read(stall=0.5)

    def half(connection: socket.socket) -> None:
        connection.sendall(head(206, RIGHT, length=10) + b"01234")
        time.sleep(30)

    raw.answer = half
    with pytest.raises(TransientError, match=r"no byte for 0\.5 s"):
        read(stall=0.5)


LISTING = f"""<ListBucketResult><Contents><Key>model</Key><ETag>"e"</ETag><Size>{SIZE}</Size>
<LastModified>2024-01-01T00:00:00.000Z</LastModified></Contents></ListBucketResult>""".encode()


def read_bucket() -> bytes:
    source = BucketSource(SourceRequest(WeightsPlan("s3://b/model", "/w", "k1")))
    [file] = source.list_files().files
    return b"".join(source.read(file, start=10, length=10))


@pytest.fixture
def raw_bucket(raw: _Raw, monkeypatch: pytest.MonkeyPatch) -> _Raw:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    monkeypatch.setenv("AWS_ENDPOINT_URL", raw.url)
    return raw


VERSION = ('ETag: "e"', "Last-Modified: Mon, 01 Jan 2024 00:00:00 GMT")


def test_a_file_without_end_does_not_fill_the_disk(raw_bucket: _Raw, tmp_path: Path) -> None:
    sent = 0

    def endless(connection: socket.socket) -> None:
        nonlocal sent
        if len(raw_bucket.ranges) == 1:
            connection.sendall(head(200, length=len(LISTING)) + LISTING)
            return
        connection.sendall(head(200, *VERSION, length=1 << 40))
        while not raw_bucket.ranges[-1] and sent < 1 << 30:
            connection.sendall(bytes(1 << 20))
            sent += 1 << 20

    raw_bucket.answer = endless
    with pytest.raises(WeightsError, match="changed while it was read"):
        mirror(WeightsPlan("s3://b/model", "/w", "k1"), tmp_path)
    assert sent < 256 << 20


@pytest.mark.parametrize("read", [read, read_bucket])
def test_a_body_without_end_is_not_held_in_memory(
    raw_bucket: _Raw, read: Callable[[], bytes]
) -> None:
    raw, sent = raw_bucket, 0

    def endless(connection: socket.socket) -> None:
        nonlocal sent
        if not raw.ranges[-1]:
            connection.sendall(head(200, length=len(LISTING)) + LISTING)
            return
        connection.sendall(head(206, RIGHT, *VERSION, length=1 << 40))
        while sent < 2 << 30:
            connection.sendall(bytes(1 << 20))
            sent += 1 << 20

    raw.answer = endless
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert read() == bytes(10)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 << 10
    assert sent < 64 << 20


def test_a_file_without_a_length_is_streamed(raw: _Raw) -> None:
    chunked = "\r\n".join(["HTTP/1.1 {} x", "Transfer-Encoding: chunked", RIGHT, "", ""])
    body = b"4\r\nabcd\r\n3\r\nefg\r\n0\r\n\r\n"
    raw.answer = lambda connection: connection.sendall(chunked.format(206).encode() + body)
    with pytest.raises(RangesUnsupported):
        read()
    raw.answer = lambda connection: connection.sendall(chunked.format(200).encode() + body)
    assert read(0, -1) == b"abcdefg"


NAMES = ["a b#c?d%20e.json", "ü/ñ.bin", "a\\b", "%2e%2e/x", "[a]*'\"&;=", " a ", "a:b|$~"]


@pytest.mark.parametrize("name", NAMES)
def test_names_of_files(here: Hub, name: str) -> None:
    data = {"a": b"wrong", name: b"right!"}
    commit = here.repos["o/r"].commit(data)
    source, file = HubSource(requested(f"hf://o/r@{commit}")), ListedFile(name, 6)
    for start, length in ((0, 6), (0, -1), (2, 3)):
        end = start + length if length > 0 else 6
        assert b"".join(source.read(file, start=start, length=length)) == b"right!"[start:end]


@pytest.mark.parametrize("name", ["a\nb", "a\tb", "\x01"])
def test_names_that_only_a_stream_can_read(here: Hub, name: str) -> None:
    commit = here.repos["o/r"].commit({name: b"right!"})
    source, file = HubSource(requested(f"hf://o/r@{commit}")), ListedFile(name, 6)
    with pytest.raises(RangesUnsupported):
        list(source.read(file, start=0, length=6))
    assert b"".join(source.read(file, start=0, length=-1)) == b"right!"
