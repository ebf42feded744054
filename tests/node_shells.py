"""Shells in nodes, each in a process as `prefect-bt shell` is: on pipes or a terminal."""

from __future__ import annotations

import os
import pty
import select
import struct
import subprocess
import sys
import termios
import time
from fcntl import ioctl
from pathlib import Path

from prefect_bt.host.nodes.handle import HostHandle

PATIENCE = 60.0
LOCAL = """
import sys
from pathlib import Path
from prefect_bt.host.nodes.handle import HostHandle
from prefect_bt.host.state_folder import JobFolder
from prefect_bt.host.terminal import ShellRequest
from prefect_bt.substrates.local.shell import run_shell
state, job, attempt, rank, secrets, *command = sys.argv[1:]
handle = HostHandle(JobFolder(Path(state), job), int(attempt), int(rank))
sys.exit(run_shell(handle, ShellRequest(tuple(command), secrets == "1")))
"""
"""Runs a shell in a node of the local substrate."""


def shell_argv(
    handle: HostHandle, *command: str, with_secrets: bool = False, program: str = LOCAL
) -> list[str]:
    where = (str(handle.job.state_dir), handle.job.job_id, str(handle.attempt), str(handle.rank))
    return [sys.executable, "-c", program, *where, str(int(with_secrets)), *command]


def run_shell(
    handle: HostHandle, *command: str, typed: str = "", **options: object
) -> subprocess.CompletedProcess[str]:
    """Run it on pipes to its end."""
    argv = shell_argv(handle, *command, **options)  # type: ignore[arg-type]
    return subprocess.run(
        argv, input=typed, capture_output=True, text=True, timeout=PATIENCE, check=False
    )


class Terminal:
    """A terminal of 30 rows and 100 columns with a process on it."""

    def __init__(self, argv: list[str], **variables: str) -> None:
        self._ours, self._theirs = pty.openpty()
        self.shown, self.settings = "", termios.tcgetattr(self._theirs)
        self.resize(30, 100)
        self._process = subprocess.Popen(
            argv,
            stdin=self._theirs,
            stdout=self._theirs,
            stderr=self._theirs,
            env={**os.environ, "TERM": "xterm", **variables},
            preexec_fn=self._become_controlling,  # noqa: PLW1509 (no other thread holds a lock)
        )

    def _become_controlling(self) -> None:
        os.setsid()
        ioctl(0, termios.TIOCSCTTY, 0)

    def resize(self, rows: int, columns: int) -> None:
        ioctl(self._ours, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def type(self, text: str) -> None:
        os.write(self._ours, text.encode())

    def wait_for(self, text: str) -> None:
        """Wait until the text was shown after what was waited for before."""
        deadline = time.monotonic() + PATIENCE
        while text not in self.shown:
            assert time.monotonic() < deadline, (text, self.shown)
            if not select.select([self._ours], [], [], 1)[0]:
                continue
            self.shown += os.read(self._ours, 65536).decode(errors="replace")
        self.shown = self.shown.partition(text)[2]

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    def wait_end(self) -> int:
        """Return the exit code."""
        return self._process.wait(PATIENCE)

    def settings_now(self) -> list[object]:
        return termios.tcgetattr(self._theirs)

    def close(self) -> None:
        os.close(self._theirs)
        os.close(self._ours)


def list_processes_of(text: str) -> list[int]:
    """Return processes with the text in their command line."""
    found: list[int] = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if text.encode() in (folder / "cmdline").read_bytes().split(b"\0"):
                found.append(int(folder.name))
        except OSError:
            continue
    return found
