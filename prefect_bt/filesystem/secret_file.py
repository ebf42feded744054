"""Secrets of this machine's servers: private files with random bytes."""

from __future__ import annotations

import fcntl
import os
import secrets
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from prefect_bt.filesystem.permissions import ensure_private_folder

_SECRET_BYTES: Final = 32


@contextmanager
def _locked(folder: Path) -> Generator[None]:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def ensure_secret(path: Path) -> bytes:
    """Return the secret in the file; create it, in a private folder, if there is none.

    An incomplete one, as of a power cut, is replaced: with an empty one, anybody could sign.
    """
    with suppress(FileNotFoundError):
        if len(known := path.read_bytes()) == _SECRET_BYTES:
            return known
        with _locked(path.parent):  # another process may have replaced it meanwhile
            if len(path.read_bytes()) != _SECRET_BYTES:
                path.unlink()
    ensure_private_folder(path.parent)
    staged = path.with_name(f"{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    descriptor = os.open(staged, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as stream:
        stream.write(secrets.token_bytes(_SECRET_BYTES))
        stream.flush()
        os.fsync(stream.fileno())
    # A link and not a rename: of two processes that are first at once, both use the same secret.
    with suppress(FileExistsError):
        os.link(staged, path)
    staged.unlink()
    return path.read_bytes()
