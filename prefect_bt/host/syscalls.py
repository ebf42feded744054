"""The few Linux calls that Python 3.11 does not offer; each raises OSError with its errno.

Numbers and flags: <linux/sched.h>, <linux/mount.h>, <linux/prctl.h>. On another system every call
raises OSError(ENOSYS), which callers treat like a kernel that refuses.
"""

from __future__ import annotations

import ctypes
import errno
import os
from functools import cache
from typing import Any, Final

CLONE_NEWNS: Final = 0x0002_0000
CLONE_NEWUSER: Final = 0x1000_0000

MS_RDONLY: Final = 1
MS_NOSUID: Final = 2
MS_NODEV: Final = 4
MS_NOEXEC: Final = 8
MS_REMOUNT: Final = 32
MS_NOATIME: Final = 1024
MS_NODIRATIME: Final = 2048
MS_BIND: Final = 4096
MS_REC: Final = 16384
MS_UNBINDABLE: Final = 1 << 17
MS_PRIVATE: Final = 1 << 18
MS_RELATIME: Final = 1 << 21

MNT_DETACH: Final = 2

_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_PDEATHSIG = 1
_OPENAT2 = 437
"""Number of the system call, the same on every architecture."""
_RESOLVE_IN_ROOT, _NO_MAGIC_LINKS = 0x10, 0x02
_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41, "riscv64": 41, "ppc64le": 203, "s390x": 217}


def unshare(flags: int) -> None:
    """Create new namespaces for this process; CLONE_NEWUSER needs a process with one thread."""
    _call("unshare", ctypes.c_int(flags))


def mount(source: str | None, target: str, flags: int) -> None:
    """Call mount(2) without a file system type or data, for binds and changes of flags."""
    origin = None if source is None else os.fsencode(source)
    _call(
        "mount",
        ctypes.c_char_p(origin),
        ctypes.c_char_p(os.fsencode(target)),
        None,
        ctypes.c_ulong(flags),
        None,
    )


def umount(target: str, flags: int) -> None:
    _call("umount2", ctypes.c_char_p(os.fsencode(target)), ctypes.c_int(flags))


def pivot_root(new_root: str, put_old: str) -> None:
    """Call pivot_root(2), which glibc does not wrap. ENOSYS on an unknown architecture."""
    number = _PIVOT_ROOT.get(os.uname().machine)
    if number is None:
        raise OSError(errno.ENOSYS, f"pivot_root on {os.uname().machine} is not known")
    _call(
        "syscall",
        ctypes.c_long(number),
        ctypes.c_char_p(os.fsencode(new_root)),
        ctypes.c_char_p(os.fsencode(put_old)),
    )


def open_in_root(root: int, path: str) -> int:
    """Open `path` with `root` as the root folder, so that no link leads out of it (O_PATH).

    Raises OSError (ENOSYS) before Linux 5.6.
    """
    how = (ctypes.c_uint64 * 3)(os.O_PATH | os.O_CLOEXEC, 0, _RESOLVE_IN_ROOT | _NO_MAGIC_LINKS)
    return _call(
        "syscall",
        ctypes.c_long(_OPENAT2),
        ctypes.c_int(root),
        ctypes.c_char_p(os.fsencode(path)),
        ctypes.byref(how),
        ctypes.c_size_t(ctypes.sizeof(how)),
    )


def set_subreaper(enabled: bool = True) -> None:
    """Make orphaned descendants children of this process instead of init's, or undo it."""
    zero, wanted = ctypes.c_ulong(0), ctypes.c_ulong(enabled)
    _call("prctl", ctypes.c_int(_PR_SET_CHILD_SUBREAPER), wanted, zero, zero, zero)


def set_parent_death_signal(number: int) -> None:
    """Have the kernel send this process the signal when its parent ends."""
    zero = ctypes.c_ulong(0)
    _call("prctl", ctypes.c_int(_PR_SET_PDEATHSIG), ctypes.c_ulong(number), zero, zero, zero)


def setns(descriptor: int, kind: int) -> None:
    """Enter the namespace that was opened; a user namespace needs a process with one thread."""
    _call("setns", ctypes.c_int(descriptor), ctypes.c_int(kind))


def _call(name: str, *arguments: Any) -> int:
    answer = int(getattr(_libc(), name)(*arguments))
    if answer == -1:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")
    return answer


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)
