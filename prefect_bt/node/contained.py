"""Start commands in a container of this machine, by orders to its first process.

What the container is asked and says goes through pipes (host.container); the Engine is never asked,
so that it may be away, or restart with its containers alive. That the container is gone is told by
its first process, which is one of this machine's, too.
"""

from __future__ import annotations

import os
import platform
import select
import shlex
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from prefect_bt.host import processes
from prefect_bt.host.cgroup import oom_kills
from prefect_bt.host.container import (
    READY,
    ContainerRecord,
    Pipes,
    order,
    set_variable,
    signal_all,
)
from prefect_bt.node.runner import Ended, widen

READY_SECONDS: Final = 60.0
"""For an image's shell to begin; a busy disk has to load it."""
END_SECONDS: Final = 5.0
OWN_SECONDS: Final = 60.0
"""For files of a plain user's job to become that user's."""
KILL_SECONDS: Final = 10.0
GONE: Final = Ended(128 + signal.SIGKILL, signal.SIGKILL)
"""How a command ended whose container is gone: the kernel kills what is left in it."""


class Container:
    """A Runner (node.runner). It is not used before `await_ready` returned."""

    def __init__(
        self, record: ContainerRecord, pipes: Pipes, *, look: Callable[[], bool] = lambda: True
    ) -> None:
        """`look` is called while something is waited for; False gives it up."""
        self.record, self._pipes, self._look = record, pipes, look
        self.output = pipes.output
        self.pipe_bytes = widen(pipes.output)
        self.ended: Ended | None = None
        self.gone = self._closed = False
        self._first = _open_process(record)
        self._own: list[int] = []
        self._waiting = b""
        self._said = b""
        self._words: list[str] = []
        self._kills_before: int | None = None

    def await_ready(self, variables: Mapping[str, str]) -> None:
        """Until its first process listens; it is told the variables. NotStarted."""
        if self._answer(READY_SECONDS) != READY:
            if self.gone:
                raise NotStarted(
                    "its container ended before a command could run in it: its image needs a POSIX "
                    f"/bin/sh for this machine's processor ({platform.machine()})"
                )
            raise NotStarted(f"the image's /bin/sh did not begin within {READY_SECONDS:.0f} s")
        self._own = [process.pid for process in processes.descendants(self.record.pid)]
        self._kills_before = self._kills()
        for name, value in variables.items():
            self._order(set_variable(name, value))

    def prepare(self, verb: str, place: str) -> None:
        """`copy` or `link` the folder `place` into where the commands start. NotStarted."""
        self._order(order(verb, place))
        answer = self._answer(None)
        if answer not in {"0", ""} and not self.gone:
            tool = {"copy": "cp", "link": "ln"}[verb]
            why = ": ".join([f"exit code {answer}", *self._last_line()])
            raise NotStarted(f"the image's `{tool}` could not {verb} {place} ({why})")

    def start(self, command: str) -> None:
        self.ended = GONE if self.gone else None
        self._order(order("run", command))

    def turn(self) -> None:
        if self._waiting:
            self._pump()
        self._hear()
        if self._words and self.ended is None:
            self.ended = _exit_of(self._words.pop(0))
        if self.gone and self.ended is None:
            self.ended = GONE

    def note_end(self, pid: int, status: int) -> None:
        """No command is a child of ours."""

    def tree(self) -> list[processes.ProcessFacts]:
        self._look_after()
        if self.gone:  # its pid is perhaps another's
            return []
        return processes.descendants(self.record.pid, spare=self._own)

    def terminate(self) -> None:
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        deadline = time.monotonic() + KILL_SECONDS
        while (left := self.tree()) and time.monotonic() < deadline:
            self._signal(signal.SIGKILL)
            for process in left:  # a command may have killed the listener
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(process.pid, signal.SIGKILL)
            time.sleep(0.02)
            self._hear()
        self._await_word()

    def killed_for_memory(self) -> bool:
        """Of any process in it: a launcher often ends otherwise than the worker that was killed."""
        kills = self._kills()
        counted = None not in (kills, self._kills_before) and kills != self._kills_before
        return counted and self.ended is not None and self.ended.code != 0

    def close(self, written: Sequence[str] = ()) -> None:
        """Let the container end. Idempotent.

        `written`: folders in it whose files, root's there, become ours, who cannot delete root's.
        """
        if self._closed:
            return
        self._closed = True
        if written and os.geteuid() and not self.gone:
            places = " ".join(map(shlex.quote, written))
            self._order(order("run", f"chown -hR {os.geteuid()}:{os.getegid()} {places}"))
            self._answer(OWN_SECONDS)
        self._order(order("end"))
        deadline = time.monotonic() + END_SECONDS
        while not self.gone and time.monotonic() < deadline:
            self._pump()
            self._wait(0.05)

    def _await_word(self) -> None:
        """How the killed command ended is told a moment after the last process is gone."""
        deadline = time.monotonic() + 1
        while self.ended is None and time.monotonic() < deadline:
            self._wait(0.02)
            self.turn()

    def _answer(self, seconds: float | None) -> str:
        """The next word; "" when there was none in time, or somebody gave it up."""
        deadline = None if seconds is None else time.monotonic() + seconds
        while not self._words and not self.gone and self._look():
            if deadline is not None and time.monotonic() > deadline:
                break
            self._pump()
            self._wait(0.02)
            self._hear()
        return self._words.pop(0) if self._words else ""

    def _order(self, line: bytes) -> None:
        self._waiting += line
        self._pump()

    def _pump(self) -> None:
        """As much as the pipe takes now."""
        try:
            while self._waiting:
                written = os.write(self._pipes.orders, self._waiting[: select.PIPE_BUF])
                self._waiting = self._waiting[written:]
        except BlockingIOError:
            return

    def _hear(self) -> None:
        try:
            while data := os.read(self._pipes.reports, 4096):
                self._said += data
        except BlockingIOError:
            pass
        *lines, self._said = self._said.split(b"\n")
        self._words += [line.decode(errors="replace").strip() for line in lines]
        self._look_after()

    def _wait(self, seconds: float) -> None:
        select.select([self._pipes.reports], [], [], seconds)
        self._look_after()

    def _look_after(self) -> None:
        self.gone = self.gone or not _lives(self._first, self.record)

    def _last_line(self) -> list[str]:
        """Of what is in the output; none when there is nothing."""
        try:
            return os.read(self.output, 4096).decode(errors="replace").split("\n")[:-1][-1:]
        except BlockingIOError:
            return []

    def _signal(self, number: signal.Signals) -> None:
        signal_all(self._pipes, number)

    def _kills(self) -> int | None:
        try:
            own = Path(f"/proc/{self.record.pid}/cgroup").read_text()
        except OSError:
            return self._kills_before
        return oom_kills(own=own)


class NotStarted(Exception):
    """The container cannot run the commands; the sentence says why."""


def _open_process(record: ContainerRecord) -> int | None:
    """A descriptor that stands for the first process alone; None where there are none, or it is
    gone and its pid is perhaps another's."""
    try:
        descriptor = os.pidfd_open(record.pid)
    except (OSError, AttributeError):
        return None
    if record.process.is_alive:
        return descriptor
    os.close(descriptor)
    return None


def _lives(descriptor: int | None, record: ContainerRecord) -> bool:
    if descriptor is not None:
        return not select.select([descriptor], [], [], 0)[0]
    return record.process.is_alive


def _exit_of(word: str) -> Ended:
    """`$?` of the container's shell: above 128 it is mostly a signal's number."""
    code = int(word) if word.isdigit() else 1
    number = code - 128
    return Ended(code, number if number in set(signal.Signals) else None)
