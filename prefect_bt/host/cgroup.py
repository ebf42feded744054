"""Read limits and counters of this process's control group; version 2 and version 1.

A container shows its own group at the root of the mount, a host shows the path of
/proc/self/cgroup: both are read, and a limit of every group above applies too.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Final, NamedTuple

MOUNT: Final = Path("/sys/fs/cgroup")
KERNEL: Final = Path("/proc/sys/kernel")
MAX_PROCESSES: Final = 32768
"""Maximum number of processes of a node. Eight ranks with data loaders need some thousands."""
MIN_PROCESSES: Final = 1024
PROCESS_DIVISOR: Final = 4
"""Divisor of the machine's process limit for one node: three fork bombs leave it usable."""
_UNLIMITED = 1 << 60
"""Version 1 writes "no limit" as a number near 2**63."""


class GroupUsage(NamedTuple):
    """Usage of a control group; None where it has no such controller.

    `cpu` in seconds, all others in bytes. `memory` is without the files that the kernel can drop.
    """

    cpu: float | None = None
    memory: int | None = None
    memory_limit: int | None = None
    read: int | None = None
    written: int | None = None


def measure_group(mount: Path = MOUNT, membership: str | None = None) -> GroupUsage:
    """Return the usage of the innermost group; nothing for the group of the whole machine."""
    used, cpu, read, written = None, None, None, None
    for folder in _group_folders(mount, membership, "memory"):
        current = _read_int(folder / "memory.current")
        if current is None:
            current = _read_int(folder / "memory.usage_in_bytes")
        if current is not None:
            stat = _read_table(folder / "memory.stat")
            dropped = stat.get("total_inactive_file", stat.get("inactive_file", 0))
            used = max(0, current - dropped)
            break
    for folder in _group_folders(mount, membership, "cpuacct"):
        micros = _read_table(folder / "cpu.stat").get("usage_usec")
        nanos = _read_int(folder / "cpuacct.usage")
        if micros is not None or nanos is not None:
            cpu = micros / 1e6 if micros is not None else (nanos or 0) / 1e9
            break
    for folder in _group_folders(mount, membership, "blkio"):
        if words := _read_text(folder / "io.stat").split():
            read, written = _sum_words(words, "rbytes="), _sum_words(words, "wbytes=")
            break
    return GroupUsage(cpu, used, memory_limit(mount, membership), read, written)


def memory_limit(mount: Path = MOUNT, membership: str | None = None) -> int | None:
    """Return the limit in bytes; None without a limit."""
    limits = [
        _read_int(folder / name)
        for folder in _group_folders(mount, membership, "memory")
        for name in ("memory.max", "memory.limit_in_bytes")
    ]
    return min((n for n in limits if n is not None and 0 < n < _UNLIMITED), default=None)


def cpu_limit(mount: Path = MOUNT, membership: str | None = None) -> float | None:
    """Return the limit in cores; None without a limit."""
    limits: list[float] = []
    for folder in _group_folders(mount, membership, "cpu"):
        words = _read_text(folder / "cpu.max").split()
        if len(words) == 2 and words[0].isdigit() and int(words[1]):
            limits.append(int(words[0]) / int(words[1]))
        quota = _read_int(folder / "cpu.cfs_quota_us")
        period = _read_int(folder / "cpu.cfs_period_us")
        if quota is not None and quota > 0 and period:
            limits.append(quota / period)
    return min(limits, default=None)


def count_cpus() -> int:
    """Return the CPUs of this process, at most the control group's quota; at least 1."""
    try:
        cpus = len(os.sched_getaffinity(0))
    except AttributeError:  # not Linux
        cpus = os.cpu_count() or 1
    limit = cpu_limit()
    return max(1, cpus if limit is None else min(cpus, round(limit)))


def measure_memory() -> int:
    """Return the bytes of the machine, or the control group's limit if that is lower."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = memory_limit()
    return total if limit is None else min(total, limit)


def process_limit(kernel: Path = KERNEL) -> int:
    """Return how many processes and threads a node may have: a share of the machine's."""
    found = [_read_int(kernel / name) or MAX_PROCESSES for name in ("pid_max", "threads-max")]
    return max(MIN_PROCESSES, min(MAX_PROCESSES, min(found) // PROCESS_DIVISOR))


def count_oom_kills(mount: Path = MOUNT, membership: str | None = None) -> int | None:
    """Return how many processes of the own group the kernel killed for lack of memory."""
    for folder in _group_folders(mount, membership, "memory"):
        for name in ("memory.events", "memory.oom_control"):
            for line in _read_text(folder / name).splitlines():
                key, _, value = line.partition(" ")
                if key == "oom_kill" and value.strip().isdigit():
                    return int(value)
    return None


def _group_folders(mount: Path, own: str | None, controller: str) -> Iterator[Path]:
    """Yield the possible folders of this process's group and of each group above it.

    Both versions are read, in the order of the lines in /proc/self/cgroup.
    """
    if own is None:
        own = _read_text(Path("/proc/self/cgroup"))
    for line in own.splitlines():
        number, _, rest = line.partition(":")
        names, _, path = rest.partition(":")
        if number == "0" and not names:
            bases = [mount, mount / "unified"]
        elif controller in names.split(","):
            bases = [mount / names, mount / controller]
        else:
            continue
        pure = PurePosixPath(path.strip().lstrip("/"))
        for base in bases:
            for group in (pure, *pure.parents):
                if ".." not in group.parts:
                    yield base / group


def _read_table(path: Path) -> dict[str, int]:
    """Return the numbers of a file with lines such as `inactive_file 4096`."""
    pairs = (line.split() for line in _read_text(path).splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()}


def _sum_words(words: list[str], name: str) -> int:
    values = (word.removeprefix(name) for word in words if word.startswith(name))
    return sum(int(value) for value in values if value.isdigit())


def _read_int(path: Path) -> int | None:
    text = _read_text(path).strip()
    return int(text) if text.lstrip("-").isdigit() else None


def _read_text(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError):
        return ""
