"""Read what was added to a file of a job, and no byte twice."""

from __future__ import annotations

import os
from typing import Final

from prefect_bt.filesystem.confined import Identity, get_identity

READ_BYTES: Final = 1 << 20
"""Most bytes that are read from a file at once."""


class GrowingFile:
    """A file that grows. A file that was replaced or cut is read again from its begin."""

    def __init__(self) -> None:
        self.offset = 0
        """Where the next read begins. It may be behind the end of the file."""
        self.is_new = True
        """Whether the last bytes that were read are the first of the file."""
        self._identity: Identity | None = None
        self._size = 0

    def read(self, descriptor: int) -> bytes:
        """Return the next bytes, and close the descriptor. Raises OSError."""
        with os.fdopen(descriptor, "rb", buffering=0) as file:
            identity, size = get_identity(descriptor), os.fstat(descriptor).st_size
            self.is_new = identity != self._identity or size < self._size
            if self.is_new:
                self.offset = 0
            self._identity, self._size = identity, size
            data = os.pread(file.fileno(), READ_BYTES, self.offset)
        self.offset += len(data)
        return data
