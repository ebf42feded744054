"""Measure what the commands of a node use: by their control group, or process by process."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from prefect_bt.host.cgroup import GroupUsage, measure_group
from prefect_bt.host.processes import ProcessStat
from prefect_bt.node_agent.sampling.gpus import GpuReader, open_gpus

_TICKS: Final = os.sysconf("SC_CLK_TCK")
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")


class Usage(NamedTuple):
    """Usage at one moment; None where it is not known.

    `cpu` (seconds), `read`, `written`, `received` and `sent` (bytes) are counters, `memory` and
    `memory_available` are bytes.
    """

    cpu: float | None = None
    memory: int | None = None
    memory_available: int | None = None
    read: int | None = None
    written: int | None = None
    received: int | None = None
    sent: int | None = None


class UsageMeter(Protocol):
    """Measures the usage of one node's commands."""

    def measure(self, tree: Sequence[ProcessStat]) -> Usage:
        """Return the usage. `tree`: the living processes of the commands."""
        ...

    def open_gpus(self, reserved: Sequence[str]) -> GpuReader | None:
        """Return a reader of the node's GPUs; None without any.

        `reserved`: devices that the agent has reserved.
        """
        ...


class TreeMeter:
    """Measures processes of this machine. Memory that several of them map counts once for each.

    The network is that of the machine.
    """

    def measure(self, tree: Sequence[ProcessStat]) -> Usage:
        read, written = _sum_disk_bytes(tree)
        received, sent = read_network_bytes("self")
        return Usage(
            cpu=sum(process.ticks for process in tree) / _TICKS,
            memory=sum(_read_resident(process.pid) for process in tree),
            memory_available=measure_available(measure_group()),
            read=read,
            written=written,
            received=received,
            sent=sent,
        )

    def open_gpus(self, reserved: Sequence[str]) -> GpuReader | None:
        return open_gpus(reserved)


class ContainerMeter:
    """Measures the control group and the network of a container by its first process."""

    def __init__(self, pid: int, gpus: Sequence[str]) -> None:
        self._pid, self._gpus = pid, gpus
        self._membership = _read(f"/proc/{pid}/cgroup")

    def measure(self, tree: Sequence[ProcessStat]) -> Usage:
        group = measure_group(membership=self._membership)
        received, sent = read_network_bytes(self._pid)
        usage = TreeMeter().measure(tree)._replace(received=received, sent=sent)
        if group.memory is None or group.cpu is None:  # the Engine is on another kernel
            return usage
        return usage._replace(
            cpu=group.cpu,
            memory=group.memory,
            memory_available=measure_available(group),
            read=usage.read if group.read is None else group.read,
            written=usage.written if group.written is None else group.written,
        )

    def open_gpus(self, reserved: Sequence[str]) -> GpuReader | None:
        """Return a reader of the container's GPUs, which its launcher has reserved."""
        _ = reserved
        return open_gpus(self._gpus)


def measure_available(group: GroupUsage) -> int | None:
    """Return the bytes that a group can still use: below its limit, and of the machine."""
    rooms = [_read_available()]
    if group.memory is not None and group.memory_limit is not None:
        rooms.append(max(0, group.memory_limit - group.memory))
    return min((room for room in rooms if room is not None), default=None)


def read_network_bytes(pid: int | str) -> tuple[int | None, int | None]:
    """Return the bytes received and sent in the network namespace of a process, without `lo`."""
    received = sent = 0
    lines = _read(f"/proc/{pid}/net/dev").splitlines()[2:]
    for line in lines:
        name, _, numbers = line.partition(":")
        fields = numbers.split()
        if name.strip() != "lo" and len(fields) >= 9:
            received, sent = received + int(fields[0]), sent + int(fields[8])
    return (received, sent) if lines else (None, None)


def _sum_disk_bytes(tree: Sequence[ProcessStat]) -> tuple[int, int]:
    read = written = 0
    for process in tree:
        for line in _read(f"/proc/{process.pid}/io").splitlines():
            name, _, value = line.partition(": ")
            if name == "read_bytes":
                read += int(value)
            elif name == "write_bytes":
                written += int(value)
    return read, written


def _read_resident(pid: int) -> int:
    fields = _read(f"/proc/{pid}/statm").split()
    return int(fields[1]) * _PAGE if len(fields) > 1 else 0


def _read_available() -> int | None:
    for line in _read("/proc/meminfo").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None


def _read(path: str) -> str:
    with suppress(OSError, UnicodeDecodeError):
        return Path(path).read_text()
    return ""
