"""Privileges of a container's commands beyond those of any process: capabilities and more.

Root in a container is root on the machine for every file that it writes into a folder of the
machine. So it gets what package managers and training need, and nothing that reaches devices or the
kernel; no program gets more than it was started with; and its processes are counted.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

DEFAULT_CAPABILITIES: Final = (
    "AUDIT_WRITE",  # PAM: without it `su` and `useradd` of root fail
    "CHOWN",  # package managers; checkpoints that become a plain user's (container_runner)
    "DAC_OVERRIDE",  # root reads and writes files of other users, as everywhere
    "FOWNER",  # package managers: modes and times of files that others own
    "KILL",  # a stop reaches commands that run as another user
    "NET_BIND_SERVICE",  # sshd and servers on ports below 1024
    "SETGID",  # apt, pip and MPI's sshd become another user
    "SETUID",
    "SYS_CHROOT",  # sshd's own separation of privileges
)
"""Capabilities of every container. Left out, though the Engine gives them by default: MKNOD (device
nodes on folders of the machine), SETFCAP (files there that carry capabilities), FSETID, SETPCAP,
and NET_RAW (forged packets on the bridge that containers share)."""

_NAMES: Final = """
AUDIT_CONTROL AUDIT_READ AUDIT_WRITE BLOCK_SUSPEND BPF CHECKPOINT_RESTORE CHOWN DAC_OVERRIDE
DAC_READ_SEARCH FOWNER FSETID IPC_LOCK IPC_OWNER KILL LEASE LINUX_IMMUTABLE MAC_ADMIN
MAC_OVERRIDE MKNOD NET_ADMIN NET_BIND_SERVICE NET_BROADCAST NET_RAW PERFMON SETFCAP SETGID
SETPCAP SETUID SYSLOG SYS_ADMIN SYS_BOOT SYS_CHROOT SYS_MODULE SYS_NICE SYS_PACCT SYS_PTRACE
SYS_RAWIO SYS_RESOURCE SYS_TIME SYS_TTY_CONFIG WAKE_ALARM
"""
ALL_CAPABILITIES: Final = frozenset(_NAMES.split())
"""Names of all Linux capabilities, without CAP_."""


@dataclass(frozen=True)
class Privileges:
    """Privileges of a container beyond KEPT.

    `capabilities`: as `parse_capabilities` gives them. `allow_new_privileges`: whether setuid bits
    and file capabilities take effect. `max_processes`: maximum number of processes and threads;
    None: `host.cgroup.process_limit`.
    """

    capabilities: tuple[str, ...] = ()
    allow_new_privileges: bool = False
    max_processes: int | None = None


def parse_capabilities(names: str | Iterable[str]) -> tuple[str, ...]:
    """Return them sorted, as the kernel spells them, without CAP_; text has commas or blanks.

    >>> parse_capabilities("cap_sys_ptrace, IPC_LOCK")
    ('IPC_LOCK', 'SYS_PTRACE')

    Raises ValueError for a name that Linux does not have.
    """
    words = names.replace(",", " ").split() if isinstance(names, str) else names
    found = {word.strip().upper().removeprefix("CAP_") for word in words}
    unknown = sorted(found - ALL_CAPABILITIES)
    if unknown:
        raise ValueError(
            f"{', '.join(unknown)}: no capability of Linux. Name them as in capabilities(7), for "
            "example SYS_PTRACE."
        )
    return tuple(sorted(found))
