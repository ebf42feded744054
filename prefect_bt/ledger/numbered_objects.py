"""Numbered, create-only objects in a folder: of the writers of one number, one wins.

    <folder>/000012.json
    <folder>/000012.released        the object counts no more

The claims of a job (fencing_epochs.py) and the leases of the queue are such sequences.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from prefect_bt.ledger.creation import try_create
from prefect_bt.object_store.protocols import Store

_NAME: Final = re.compile(r"(\d{6,})\.(json|released)")


@dataclass(frozen=True)
class Numbers:
    """The numbers of a folder at one time."""

    modified: dict[int, float]
    """Number -> when its object was written, by the store's clock; the lowest number first."""
    released: frozenset[int]

    @property
    def newest(self) -> int:
        """Return the highest number; 0 if there is none."""
        return next(reversed(self.modified), 0)


class NumberedObjects:
    """The sequence in `folder`."""

    def __init__(self, store: Store, folder: str) -> None:
        self._store, self.folder = store, folder

    def list(self) -> Numbers:
        """Return the numbers; a store may hold other objects in the folder."""
        modified, released = dict[int, float](), set[int]()
        for info in self._store.list(self.folder):
            if match := _NAME.fullmatch(info.key.removeprefix(f"{self.folder}/")):
                if match[2] == "json":
                    modified[int(match[1])] = info.modified
                else:
                    released.add(int(match[1]))
        return Numbers(dict(sorted(modified.items())), frozenset(released))

    def get(self, number: int) -> bytes:
        return self._store.get(self.key(number))

    def create(self, number: int, data: bytes) -> bool:
        """Create an object with unique bytes; return False if the number is another writer's."""
        return try_create(self._store, self.key(number), data)

    def release(self, number: int) -> None:
        """Mark the object as one that counts no more. Idempotent."""
        self._store.put(self.key(number, "released"), b"{}")

    def delete(self, number: int) -> None:
        """Delete an object and its mark. Idempotent."""
        # The object first: without its mark it would count again.
        self._store.delete(self.key(number))
        self._store.delete(self.key(number, "released"))

    def key(self, number: int, kind: str = "json") -> str:
        return f"{self.folder}/{number:06d}.{kind}"
