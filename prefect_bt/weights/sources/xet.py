"""One file over Xet, in a process of its own that can be ended when Xet sends nothing.

`python -m prefect_bt.weights.sources.xet` reads what to fetch as one line of JSON from its standard
input, appends the file's bytes in order, and says in lines of JSON how far it is. It ends when its
input does: when the process that started it is gone. What the file holds already is not fetched
again. hf_xet waits for minutes, or for ever, and its threads cannot be stopped from outside.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import signal
import socket
import stat
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

POLL_INTERVAL: Final = 0.5
START_TIMEOUT: Final = 30.0
"""A busy machine may take that long to start a process."""
MAX_STARTS: Final = 2
"""How often it is started when nothing comes, before Xet is given up."""
_MODULE: Final = "prefect_bt.weights.sources.xet"
_BYTES_RECEIVED: Final = 128
"""Where struct tcp_info of <linux/tcp.h> has tcpi_bytes_received."""
_NOISE: Final = 1 << 14
"""Bytes that may come although nothing of the file does."""
_STATUS: Final = re.compile(r"\b[45]\d\d\b")


class XetError(Exception):
    """Xet did not bring the file; `reason` is the beginning of a sentence."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)


def is_xet_installed() -> bool:
    """Whether hf_xet is installed."""
    return find_spec("hf_xet") is not None


# -- the process that waits -----------------------------------------------------------------------


@dataclass
class XetDownload:
    """`url` gives tokens for Xet, to a request with `headers`; `file` is the name there."""

    url: str
    headers: Mapping[str, str]
    file: str
    size: int
    target: Path

    def run(
        self, stall_timeout: float, on_bytes: Callable[[int], None], stop: threading.Event
    ) -> None:
        """Until `target` is whole. XetFault after `stall_timeout` seconds without a byte, twice,
        when Xet says that it cannot, and when `stop` is set. `on_bytes` gets the growth in bytes,
        twice a second, and all of it back with a fault; what it raises ends the fetch.
        """
        watch = _ProcessWatcher(self, on_bytes)
        for _ in range(MAX_STARTS):
            with _start_process(self) as process:
                if watch.wait(process, stall_timeout, stop):
                    return
        raise watch.error(f"Xet sent no byte for {stall_timeout:g} s twice")

    @property
    def current_size(self) -> int:
        try:
            return self.target.stat().st_size
        except FileNotFoundError:
            return 0


class _ProcessWatcher:
    """What a process did, told on, over several of them."""

    def __init__(self, download: XetDownload, on_bytes: Callable[[int], None]) -> None:
        self._download, self._tick = download, on_bytes
        self._told = 0

    def wait(
        self, process: subprocess.Popen[bytes], stall_timeout: float, stop: threading.Event
    ) -> bool:
        """True when the file is whole, False when nothing came for too long. XetFault."""
        moved, since = (-1, -1), time.monotonic()
        patience = max(stall_timeout, START_TIMEOUT)
        while True:
            ended = _wait_process(process, POLL_INTERVAL)
            said = _read_messages(process)
            grown = self._download.current_size
            self._tick(grown - self._told)
            self._told = grown
            if ended:
                self._check(process.returncode, str(said.get("error", "")), grown)
                return True
            if stop.is_set():
                raise self.error("Xet failed for another file")
            now = (grown, int(said.get("received", moved[1])))
            if now != moved:
                moved, since = now, time.monotonic()
            elif time.monotonic() - since > patience:
                return False
            if "received" in said:
                patience = stall_timeout

    def _check(self, code: int, error: str, grown: int) -> None:
        if code or grown != self._download.size:
            why = error or f"ended with code {code} after {grown} of {self._download.size} bytes"
            raise self.error(f"Xet failed ({why})")

    def error(self, why: str) -> XetError:
        """The error to raise; what was told has to come another way."""
        self._tick(-self._told)
        self._told = 0
        return XetError(why)


@contextmanager
def _start_process(download: XetDownload) -> Generator[subprocess.Popen[bytes]]:
    """A process of a group of its own, killed at the end if it is still there."""
    private = download.target.with_name(f"{download.target.name}.xet")
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", _MODULE],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    assert process.stdin is not None and process.stdout is not None
    try:
        os.set_blocking(process.stdout.fileno(), False)
        asked = {**asdict(download), "target": str(download.target), "private": str(private)}
        with suppress(BrokenPipeError):  # then its end tells more
            process.stdin.write(json.dumps(asked).encode() + b"\n")
            process.stdin.flush()
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        process.stdout.close()
        with suppress(BrokenPipeError):
            process.stdin.close()
        shutil.rmtree(private, ignore_errors=True)


def _wait_process(process: subprocess.Popen[bytes], seconds: float) -> bool:
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        return False
    return True


def _read_messages(process: subprocess.Popen[bytes]) -> dict[str, Any]:
    """Its words since the last time; the newest of each kind."""
    assert process.stdout is not None
    said: dict[str, Any] = {}
    for line in (process.stdout.read() or b"").splitlines():
        with suppress(ValueError):
            said |= json.loads(line)
    return said


# -- the process that fetches -----------------------------------------------------------------


def main() -> int:
    asked: dict[str, Any] = json.loads(sys.stdin.readline())
    threading.Thread(target=_exit_with_stdin, daemon=True).start()
    # hf_xet reads it when it is loaded. Its caches and logs are nobody else's.
    os.putenv("HF_XET_CACHE", asked["private"])
    try:
        _fetch(asked)
    except Exception as error:
        _write_message(error=_describe_error(error))
        raise
    return 0


def _fetch(request: dict[str, Any]) -> None:
    sdk: Any = import_module("hf_xet")
    _write_message(received=0)
    target, size = Path(request["target"]), int(request["size"])
    with target.open("ab") as writer:
        fcntl.flock(writer, fcntl.LOCK_EX)  # one of a process that was killed may not be gone yet
        if writer.seek(0, os.SEEK_END) > size:
            writer.truncate(0)
        group = sdk.XetSession().new_download_stream_group(
            token_refresh_url=request["url"], token_refresh_headers=request["headers"]
        )
        with group:
            start = target.stat().st_size
            if start < size:
                info = sdk.XetFileInfo(request["file"], size)
                stream = group.download_stream(info, start=start)
                threading.Thread(target=_report_received, daemon=True).start()
                for piece in stream:
                    writer.write(piece)


def _report_received() -> None:
    """That bytes come although the file does not grow: Xet's blocks have up to 64 MiB each."""
    seen: dict[int, int] = {}
    told = 0
    while True:
        time.sleep(POLL_INTERVAL)
        for inode, size in _iter_received_bytes():
            seen[inode] = max(size, seen.get(inode, 0))
        if (received := sum(seen.values())) - told > _NOISE:
            told = received
            _write_message(received=received)


def _iter_received_bytes() -> Iterator[tuple[int, int]]:
    """Which connection of this process -> how many bytes have come over it; Linux tells."""
    if sys.platform != "linux":
        return
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 (names, not paths)
        with suppress(OSError, struct.error):  # closed meanwhile, or no TCP
            if not stat.S_ISSOCK(os.stat(int(name)).st_mode):  # noqa: PTH116 (a descriptor)
                continue
            with socket.socket(fileno=os.dup(int(name))) as connection:
                info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 192)
                inode = os.fstat(connection.fileno()).st_ino
            yield inode, struct.unpack_from("=Q", info, _BYTES_RECEIVED)[0]


def _exit_with_stdin() -> None:
    sys.stdin.read()
    os._exit(1)


def _write_message(**words: object) -> None:
    sys.stdout.write(json.dumps(words) + "\n")
    sys.stdout.flush()


def _describe_error(error: Exception) -> str:
    """Without its text, which may hold a URL: its kind, and a status if one is named."""
    status = _STATUS.search(str(error))
    return type(error).__name__ + (f", {status[0]}" if status else "")


if __name__ == "__main__":
    sys.exit(main())
