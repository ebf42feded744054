"""Run start commands in the other container of the agent's pod.

The two containers share pipes and volumes, but no process table, so that no command can inspect the
agent: the listener in the container counts the processes. The pipe `reports` ends with the
container's first process, because no other process holds it.
"""

from __future__ import annotations

import os
import re
import select
import signal
import time
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from prefect_bt.host.cgroup import GroupUsage
from prefect_bt.host.connections import has_outside_peer, list_connections, list_socket_inodes
from prefect_bt.host.nodes.container_pipes import (
    COUNT,
    FOREIGN_PROCESSES,
    SHARE,
    ContainerRecord,
    Pipes,
    format_order,
    kill_container,
    signal_all,
    signal_listener,
)
from prefect_bt.host.processes import ProcessStat, list_processes
from prefect_bt.node_agent.commands.container_runner import KILL_TIMEOUT, ContainerRunner
from prefect_bt.node_agent.sampling.gpus import GpuReader, open_gpu_files
from prefect_bt.node_agent.sampling.usage import (
    Usage,
    UsageMeter,
    measure_available,
    read_network_bytes,
)

SHARE_INTERVAL: Final = 10.0
"""Seconds between two searches for files that only the user of the commands can read."""
COUNT_TIMEOUT: Final = 1.0
"""Longest wait for the listener's answer, in seconds. Without an answer the last one is used."""
_LAST_COUNT: Final = re.compile(rb"(-?\d{1,20}(?: -?\d{1,20}){8}) ((?:\d{1,3},){1,64}|-)\n\Z")


class Counts(NamedTuple):
    """Counts of the listener, in the order in which it writes them."""

    processes: int = 0
    """Processes of commands."""
    ticks: int = 0
    """CPU time of all processes."""
    oom_kills: int = 0
    """Processes that were killed for lack of memory."""
    blocked: int = 0
    """Processes that wait for a disk."""
    stopped: int = 0
    """Processes that a signal stopped."""
    memory: int = 0
    """Bytes that the container uses, without those that the kernel can drop; 0: not known."""
    memory_limit: int = 0
    """0: none."""
    read: int = 0
    written: int = 0
    """Bytes read from and written to disks."""
    gpus: frozenset[int] = frozenset()
    """Numbers of the container's device files /dev/nvidia<n>."""


class PodRunner(ContainerRunner):
    """A ContainerRunner whose container the kubelet owns."""

    ready_timeout = None
    """None: the image may still be pulled, and the watcher of the gang limits that time."""

    def __init__(self, pipes: Pipes, *, should_continue: Callable[[], bool]) -> None:
        super().__init__(ContainerRecord("", 0), pipes, should_continue=should_continue)
        self.counts = Counts()
        """The last counts of the listener."""
        self._shared_at = time.monotonic()
        self._end = select.poll()
        self._end.register(pipes.reports, 0)

    @property
    def workdir(self) -> None:
        """Return None: the first process already runs in its folder."""
        return None

    def list_processes(self) -> list[ProcessStat]:
        """Return one entry for each process of the commands; the first one has all CPU ticks."""
        self._update_liveness()
        if self.gone:
            return []
        self.counts = counts = self._count() or self.counts
        return [
            ProcessStat(0, 0, 0, 0 if n else counts.ticks, n < counts.blocked, n < counts.stopped)
            for n in range(counts.processes)
        ]

    def create_meter(self) -> UsageMeter:
        return _PodMeter(self)

    def has_connections(self) -> bool:
        """Return whether there is one in the network namespace of the pod that is not ours."""
        own = list_socket_inodes(list_processes())
        return has_outside_peer([one for one in list_connections() if one.inode not in own])

    def poll(self) -> None:
        now = time.monotonic()
        if now - self._shared_at >= SHARE_INTERVAL:
            self._shared_at = now
            signal_listener(self._pipes, SHARE)
        super().poll()

    def kill(self) -> None:
        deadline = time.monotonic() + KILL_TIMEOUT
        while self.list_processes() and time.monotonic() < deadline:
            signal_all(self._pipes, signal.SIGKILL)
            time.sleep(0.02)
            self._read_reports()
        self._wait_for_exit_code()

    def _handover_order(self, written: Sequence[str]) -> bytes:
        """Have the agent read all checkpoints. Their owner stays: a new one would be a change."""
        return format_order("share", "")

    def _record_idle_state(self) -> None:
        self._kills_before = self._count_oom_kills()

    def _count_oom_kills(self) -> int | None:
        self.counts = self._count() or self.counts
        return self.counts.oom_kills

    def _kill_first_process(self) -> None:
        """Request the exit of the first process. If it does not exit, it ends with the pod."""
        self.ended_by_us = True
        kill_container(self._pipes)

    def _update_liveness(self) -> None:
        ended = any(event & select.POLLHUP for _, event in self._end.poll(0))
        self.gone = self.gone or ended

    def _count(self) -> Counts | None:
        """Return the listener's counts; None if no valid answer arrives in time."""
        _read_all(self._pipes.counts)
        signal_listener(self._pipes, COUNT)
        select.select([self._pipes.counts], [], [], COUNT_TIMEOUT)
        found = _LAST_COUNT.search(_read_all(self._pipes.counts))
        if found is None:
            return None
        alive, *others = (max(0, int(word)) for word in found[1].split())
        gpus = frozenset(int(number) for number in re.findall(rb"\d+", found[2]))
        return Counts._make([max(0, alive - FOREIGN_PROCESSES), *others, gpus])


class _PodMeter:
    """Measures the container of a pod by the counts of its listener, and the pod's network."""

    def __init__(self, runner: PodRunner) -> None:
        self._runner = runner

    def measure(self, tree: Sequence[ProcessStat]) -> Usage:
        counts = self._runner.counts
        group = GroupUsage(memory=counts.memory, memory_limit=counts.memory_limit or None)
        received, sent = read_network_bytes("self")
        return Usage(
            cpu=counts.ticks / os.sysconf("SC_CLK_TCK"),
            memory=counts.memory or None,
            memory_available=measure_available(group),
            read=counts.read,
            written=counts.written,
            received=received,
            sent=sent,
        )

    def open_gpus(self, reserved: Sequence[str]) -> GpuReader | None:
        """Return a reader of the GPUs whose files the container has."""
        _ = reserved
        return open_gpu_files(self._runner.counts.gpus)


def _read_all(descriptor: int) -> bytes:
    """Return the bytes in the pipe, 64 KiB at most, without waiting."""
    try:
        return os.read(descriptor, 65536)
    except BlockingIOError:
        return b""
