"""Keep our folders private to their user: they hold logs, checkpoints, workspaces and caches.

New folders are made with mode 0700. Existing folders keep their mode, since somebody may have
opened them on purpose; `find_exposed` says which folders others can enter.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Final

PRIVATE_MODE: Final = 0o700
SHARED_STORE_VARIABLE: Final = "PREFECT_BT_SHARED_STORE"
"""Variable to set if several users of a machine or a network disk share the store's folder."""
_TRUE: Final = frozenset({"1", "true", "yes", "on", "t", "y"})
_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO
_OTHERS_EXECUTE: Final = stat.S_IXGRP | stat.S_IXOTH


def ensure_private_folder(folder: Path) -> None:
    """Make the folder and the missing ones above it, for their owner alone. Raises OSError."""
    ensure_folders(folder, PRIVATE_MODE)


def ensure_folders(folder: Path, mode: int) -> None:
    """Make the folder and missing ones above it with `mode` (less the umask). Raises OSError."""
    missing: list[Path] = []
    for place in chain((folder,), folder.parents):
        if place.is_dir():
            break
        missing.append(place)
    for place in reversed(missing):
        try:
            place.mkdir(mode)
        except FileExistsError:
            if not place.is_dir():  # another process was not first: something else is there
                raise


def is_shared_store(environment: Mapping[str, str] = os.environ) -> bool:
    """Return whether the environment declares the store as shared."""
    return environment.get(SHARED_STORE_VARIABLE, "").strip().lower() in _TRUE


def ensure_store_folder(root: Path) -> None:
    """Make the folder of a store: private, or by the umask where it is shared. Raises OSError."""
    ensure_folders(root, 0o777 if is_shared_store() else PRIVATE_MODE)


def current_umask() -> int:
    """Return this process's umask, without setting it as os.umask does."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("Umask:")[2].split()[0], 8)


def is_exposed(folder: Path) -> bool:
    """Return whether other users of this machine can enter the folder, by modes alone."""
    with suppress(OSError):
        real = folder.resolve()
        modes = [place.stat().st_mode for place in real.parents]
        return bool(real.stat().st_mode & _OTHERS) and all(mode & _OTHERS_EXECUTE for mode in modes)
    return False


def find_exposed(state_dir: Path, store: Path | None) -> list[str]:
    """Return a sentence for each folder that other users can enter, with what closes it.

    `store`: its folder; None for a bucket, or one that is shared on purpose.
    """
    found: list[str] = []
    if is_exposed(state_dir):
        found.append(_exposure_warning("state folder", state_dir, f"chmod 700 {state_dir}"))
    if store is not None and is_exposed(store):
        cure = f"chmod 700 {store}, or set {SHARED_STORE_VARIABLE}=1 if it is shared on purpose"
        found.append(_exposure_warning("store", store, cure))
    return found


def _exposure_warning(path: str, folder: Path, cure: str) -> str:
    mode = stat.S_IMODE(folder.stat().st_mode)
    return (
        f"Other users of this machine can enter the {path} {folder} (mode {mode:04o}), and read "
        f"logs, checkpoints and workspaces there. Close it: {cure}."
    )
