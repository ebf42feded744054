"""Run start commands in the other container of the agent's pod.

The two containers share pipes and volumes, but no process table, so that no command can look into
the agent: the listener in the container counts the processes. The end of the container's first
process shows as the end of the pipe `reports`, which nothing else holds.
"""

from __future__ import annotations

import os
import re
import select
import signal
import time
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from prefect_bt.host.nodes.container_pipes import (
    COUNT,
    FOREIGN_PROCESSES,
    SHARE,
    ContainerRecord,
    Pipes,
    kill_container,
    signal_listener,
)
from prefect_bt.host.processes import ProcessStat
from prefect_bt.node_agent.commands.container_runner import (
    CHOWN_TIMEOUT,
    KILL_TIMEOUT,
    ContainerRunner,
)

SHARE_INTERVAL: Final = 10.0
"""Seconds between two looks for files that the commands wrote for their own user alone."""
COUNT_TIMEOUT: Final = 1.0
"""Longest wait for the listener's answer, in seconds. Without one the last answer counts."""
_LAST_COUNT: Final = re.compile(rb"(\d{1,9}) (\d{1,18}) (\d{1,18})\n\Z")


class _Counts(NamedTuple):
    """Counts of the listener: processes of commands, CPU ticks, processes killed for memory."""

    processes: int = 0
    ticks: int = 0
    oom_kills: int = 0


class PodRunner(ContainerRunner):
    """A ContainerRunner whose container belongs to the kubelet."""

    ready_timeout = None
    """The image may still be pulled; the watcher of the gang knows how long that may take."""

    def __init__(self, pipes: Pipes, *, should_continue: Callable[[], bool]) -> None:
        super().__init__(ContainerRecord("", 0), pipes, should_continue=should_continue)
        self._counts = _Counts()
        self._shared_at = time.monotonic()
        self._end = select.poll()
        self._end.register(pipes.reports, 0)
        self._answer = select.poll()
        self._answer.register(pipes.counts, select.POLLIN)
        self._answer.register(pipes.reports, 0)

    @property
    def workdir(self) -> None:
        """Leave it to the first process, which began there."""
        return None

    def list_processes(self) -> list[ProcessStat]:
        """Return one entry for each process of the commands; the first one has all CPU ticks."""
        self._update_liveness()
        if self.gone:
            return []
        self._counts = self._count() or self._counts
        ticks = (self._counts.ticks, *[0] * self._counts.processes)
        return [ProcessStat(0, 0, 0, ticks[n]) for n in range(self._counts.processes)]

    def poll(self) -> None:
        now = time.monotonic()
        if now - self._shared_at >= SHARE_INTERVAL:
            self._shared_at = now
            signal_listener(self._pipes, SHARE)
        super().poll()

    def close(self, written: Sequence[str] = ()) -> None:
        """Let the container end, after its listener has let the agent read all files. Idempotent.

        The files stay their users': a change of owner would be a change of each file.
        """
        if written and not self.gone:
            signal_listener(self._pipes, SHARE)
            self._count(CHOWN_TIMEOUT)  # the listener answers when it is done with that
        super().close()

    def kill(self) -> None:
        deadline = time.monotonic() + KILL_TIMEOUT
        while self.list_processes() and time.monotonic() < deadline:
            self._signal(signal.SIGKILL)
            time.sleep(0.02)
            self._read_reports()
        self._wait_for_exit_code()

    def _record_idle_state(self) -> None:
        self._counts = self._count() or self._counts
        self._kills_before = self._counts.oom_kills

    def _count_oom_kills(self) -> int | None:
        self._counts = self._count() or self._counts
        return self._counts.oom_kills

    def _kill_first_process(self) -> None:
        """Ask for its end; what does not answer ends with the pod."""
        self.ended_by_us = True
        kill_container(self._pipes)

    def _update_liveness(self) -> None:
        ended = any(event & select.POLLHUP for _, event in self._end.poll(0))
        self.gone = self.gone or ended

    def _count(self, timeout: float = COUNT_TIMEOUT) -> _Counts | None:
        """Ask the listener; None without an answer in time, or with none that is one."""
        _read_all(self._pipes.counts)
        signal_listener(self._pipes, COUNT)
        self._answer.poll(1000 * timeout)
        found = _LAST_COUNT.search(_read_all(self._pipes.counts))
        if found is None:
            return None
        alive, ticks, oom_kills = map(int, found.groups())
        return _Counts(max(0, alive - FOREIGN_PROCESSES), ticks, oom_kills)


def _read_all(descriptor: int) -> bytes:
    """Read what is in the pipe now, 64 KiB at most."""
    try:
        return os.read(descriptor, 65536)
    except BlockingIOError:
        return b""
