"""Check that a container has mounted exactly the folders that were opened for it.

An Engine takes the source of a mount by its path, so a process that replaced a folder of that path
in between would have another one mounted. The container's first process waits for orders meanwhile:
nothing of the job runs before this check.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from prefect_bt.filesystem.confined import get_identity
from prefect_bt.host.mounts.namespace_plan import Bind
from prefect_bt.host.syscalls import open_in_root

_CANNOT_CHECK_ERRNOS: Final = frozenset({errno.EACCES, errno.EPERM, errno.ENOSYS})


def find_wrong_mount(pid: int, binds: Sequence[Bind]) -> Bind | None:
    """Return a bind whose target is another folder in the container of process `pid`, else None.

    Also None where it cannot be looked at: by a user who is not root, or before Linux 5.6. Raises
    ProcessLookupError when the process has ended.
    """
    try:
        root = _open_root(pid)
        try:
            found = next((bind for bind in binds if not _is_expected(root, bind)), None)
        finally:
            os.close(root)
        if found is not None:  # or the mounts are gone, because the process ends
            with suppress(PermissionError):
                os.close(_open_root(pid))
    except FileNotFoundError:
        raise ProcessLookupError(errno.ESRCH, f"process {pid} has ended") from None
    except OSError as error:
        if error.errno in _CANNOT_CHECK_ERRNOS:
            return None
        raise
    return found


def _open_root(pid: int) -> int:
    return os.open(f"/proc/{pid}/root", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)


def _is_expected(root: int, bind: Bind) -> bool:
    try:
        found = open_in_root(root, bind.target)
    except OSError as error:
        return error.errno in _CANNOT_CHECK_ERRNOS
    try:
        return bind.identity in {None, get_identity(found)}
    finally:
        with suppress(OSError):
            os.close(found)
