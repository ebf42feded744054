"""A command on a real terminal: keys go in, and what stands on the screen can be read."""

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_ESCAPES = re.compile(rb"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07]*\x07|\x1b[=>()][0-9A-B]?")
_OWN_TERMINAL = (
    "import fcntl, os, sys, termios\n"
    "fcntl.ioctl(0, termios.TIOCSCTTY, 0)\n"
    "os.execv(sys.argv[1], sys.argv[1:])"
)
PATIENCE = 180.0
KEYS = {
    "up": "\x1b[A",
    "down": "\x1b[B",
    "right": "\x1b[C",
    "left": "\x1b[D",
    "enter": "\r",
    "escape": "\x1b",
    "ctrl-c": "\x03",
}


class Screen:
    """`command` as the foreground process of a terminal of its own."""

    def __init__(self, command: Sequence[str], *, env: dict[str, str], folder: Path) -> None:
        self._ours, self._theirs = pty.openpty()
        self._width = 120
        self._resize()
        self.before: list[Any] = termios.tcgetattr(self._theirs)
        self.said = b""
        self.process = subprocess.Popen(
            [sys.executable, "-c", _OWN_TERMINAL, *command],
            stdin=self._theirs,
            stdout=self._theirs,
            stderr=self._theirs,
            env={"TERM": "xterm", **env},
            cwd=folder,
            start_new_session=True,
        )

    def press(self, *keys: str) -> None:
        """Keys by name, everything else as it is typed."""
        for key in keys:
            os.write(self._ours, KEYS.get(key, key).encode())

    def wait_for(self, *texts: str) -> str:
        """What stands on the screen once it has all of `texts`."""
        return self._wait(texts, drawn_anew=True)

    def wait_for_line(self, *texts: str) -> str:
        """The same for what is printed line by line."""
        return self._wait(texts, drawn_anew=False)

    def _wait(self, texts: Sequence[str], *, drawn_anew: bool) -> str:
        deadline, plain, start = time.monotonic() + PATIENCE, "", len(self.said)
        while time.monotonic() < deadline:
            if drawn_anew:
                # A screen draws only what has changed; one of another size is drawn in full.
                self._width ^= 1
                start = len(self.said)
                self._resize()
            for quiet in (0.05, 0.3):
                self._read(quiet)
                plain = _ESCAPES.sub(b"", self.said[start:]).decode("utf-8", "replace")
                if all(text in plain for text in texts):
                    return plain
        raise AssertionError(f"{texts} did not come; there is:\n{plain}")

    def end(self) -> int:
        """The exit code, once the command is over."""
        deadline = time.monotonic() + PATIENCE
        while self.process.poll() is None and time.monotonic() < deadline:
            self._read(0.05)
        self._read(0.05)
        return self.process.wait(timeout=PATIENCE)

    def leave(self, key: str, code: int = 0) -> None:
        """Press the last key: the command ends with this code and restores the terminal."""
        self.press(key)
        assert (self.end(), self.restored()) == (code, True)

    def restored(self) -> bool:
        """Whether the terminal is as it was: its modes, its screen, its cursor."""
        after = termios.tcgetattr(self._theirs)
        on, off = self.said.count(b"\x1b[?1049h"), self.said.count(b"\x1b[?1049l")
        cursor = self.said.rfind(b"\x1b[?25h") >= self.said.rfind(b"\x1b[?25l")
        return after == self.before and on == off > 0 and cursor

    def close(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        os.close(self._ours)
        os.close(self._theirs)

    def _resize(self) -> None:
        size = struct.pack("HHHH", 24, self._width, 0, 0)
        fcntl.ioctl(self._ours, termios.TIOCSWINSZ, size)

    def _read(self, seconds: float) -> None:
        """Until nothing came for so long."""
        while select.select([self._ours], [], [], seconds)[0]:
            try:
                self.said += os.read(self._ours, 65536)
            except OSError:
                return
