"""Which process holds a claim, and whether it is known to be dead.

Only a process of the same boot and pid namespace can be looked at; of any other, nothing is known
but that its claim changes.
"""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")


@dataclass(frozen=True)
class Holder:
    """A process on some host. `began`: in ticks since the boot, so that a pid is never mistaken."""

    host: str
    pid: int
    machine: str = ""
    """Its boot and pid namespace; empty where the system tells none."""
    began: str = ""

    def is_dead(self) -> bool:
        """False when that cannot be known from here."""
        if not self.machine or self.machine != _boot_and_pid_namespace():
            return False
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return True
        except (PermissionError, OverflowError):
            return False
        began = _start_time(self.pid)
        return began is not None and began != self.began


def get_current_holder() -> Holder:
    pid = os.getpid()
    return Holder(socket.gethostname(), pid, _boot_and_pid_namespace(), _start_time(pid) or "")


def _boot_and_pid_namespace() -> str:
    try:
        boot = (_PROC / "sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {(_PROC / 'self/ns/pid').readlink()}"
    except OSError:
        return ""


def _start_time(pid: int) -> str | None:
    """When the process began; "" for one that only waits to be reaped, None: it cannot be seen."""
    with suppress(OSError, IndexError):
        # The name, in brackets, may hold anything.
        fields = (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
        return "" if fields[0] in "ZX" else fields[19]
    return None
