"""Start commands in a container of this machine, by orders to its first process.

What the container is asked and says goes through pipes (host.container); the Engine is never asked,
so that it may be away, or restart with its containers alive. That the container is gone is told by
its first process, which is one of this machine's, too.

The commands are root in the container and may read, fill and forge every pipe. No call here waits
for one of them, and a container that does not follow the protocol (node.reports), or does not end
when it is asked to, is ended by SIGKILL to its first process.
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
    end_container,
    order,
    set_variable,
    signal_all,
)
from prefect_bt.node.reports import Reports
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
        self.ended_by_us = False
        """Whether we killed its first process."""
        self._first = _open_process(record)
        self._own: list[int] = []
        self._waiting = b""
        self._reports = Reports(pipes.reports)
        self._kills_before: int | None = None

    @property
    def broken(self) -> str:
        """Return how the container broke the protocol; "" while it keeps to it."""
        return self._reports.broken

    def await_ready(self, variables: Mapping[str, str]) -> None:
        """Wait for its first process, then send the variables. Raises NotStarted, Broken."""
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
        """Copy or link (`verb`) `place` to where commands start. Raises NotStarted, Broken."""
        self._ask(order(verb, place))
        answer = self._answer(None)
        if answer not in {"0", ""} and not self.gone:
            tool = {"copy": "cp", "link": "ln"}[verb]
            why = ": ".join([f"exit code {answer}", *self._last_line()])
            raise NotStarted(f"the image's `{tool}` could not {verb} {place} ({why})")

    def start(self, command: str) -> None:
        self.ended = GONE if self.gone or self.broken else None
        self._ask(order("run", command))

    def turn(self) -> None:
        if self._waiting:
            self._pump()
        self._hear()
        if self.ended is None and (word := self._reports.take()) is not None:
            self.ended = _exit_of(word)
        if self.broken and not self.gone:
            self._end_now()
        if (self.gone or self.broken) and self.ended is None:
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
        if left:  # they fork faster than they are killed: all of it, at once
            self._end_now()
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
            self._ask(order("run", f"chown -hR {os.geteuid()}:{os.getegid()} {places}"))
            self._look = lambda: True  # a stop has been answered by now: only the time limit counts
            with suppress(Broken):
                self._answer(OWN_SECONDS)
        self._order(order("end"))
        self._await_end()
        if not self.gone:  # something in it has taken the order
            self._end_now()

    def _await_end(self) -> None:
        deadline = time.monotonic() + END_SECONDS
        while not self.gone and time.monotonic() < deadline:
            self._pump()
            select.select([] if self._first is None else [self._first], [], [], 0.05)
            self._look_after()

    def _end_now(self) -> None:
        """Kill its first process; the kernel then kills all others.

        A plain user may not: then the listener is asked, and DockerHandle has the Engine remove it.
        """
        self._look_after()
        if self.gone:
            return
        with suppress(ProcessLookupError, PermissionError):
            if self._first is not None:
                signal.pidfd_send_signal(self._first, signal.SIGKILL)
            else:
                os.kill(self.record.pid, signal.SIGKILL)
            self.ended_by_us = True
            self._await_end()
        end_container(self._pipes)

    def _await_word(self) -> None:
        """How the killed command ended is told a moment after the last process is gone."""
        deadline = time.monotonic() + 1
        while self.ended is None and time.monotonic() < deadline:
            self._wait(0.02)
            self.turn()

    def _answer(self, seconds: float | None) -> str:
        """Return the next word; "" if none came in time, or it was given up. Raises Broken."""
        deadline = None if seconds is None else time.monotonic() + seconds
        word = self._reports.take()
        while word is None and not self.gone and self._look():
            if deadline is not None and time.monotonic() > deadline:
                break
            self._pump()
            self._wait(0.02)
            self._hear()
            word = self._reports.take()
            if word is None and self.broken:
                self._end_now()
                raise Broken(self.broken)
        return word or ""

    def _ask(self, line: bytes) -> None:
        """Send an order that is answered with an exit code."""
        self._reports.expect()
        self._order(line)

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
        self._reports.read()
        self._look_after()

    def _wait(self, seconds: float) -> None:
        """Wait for a report, `seconds` at most."""
        select.select([] if self.broken else [self._pipes.reports], [], [], seconds)
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


class Broken(NotStarted):
    """Error: something in the container broke the protocol before the commands ran."""


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
    code = int(word)
    number = code - 128
    return Ended(code, number if number in set(signal.Signals) else None)
