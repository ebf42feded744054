"""Find the pointer files that a restore must not write as they were committed."""

from __future__ import annotations

import hashlib
import posixpath
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from prefect_bt.checkpoints.formats.pointers import Restored
from prefect_bt.checkpoints.formats.table import is_pointer, rewrite_pointer
from prefect_bt.checkpoints.manifest import ManifestEntry
from prefect_bt.object_store.protocols import Store

_MAX_BYTES: Final = 64 * 1024
_SHOWN: Final = 100
"""Characters of a pointer's text in a log line."""


@dataclass(frozen=True)
class PointerChange:
    """A pointer file that cannot be restored as it was committed. `after` None: left out."""

    path: str
    before: str
    after: str | None

    def __str__(self) -> str:
        named = " ".join(self.before.split())[:_SHOWN]
        if self.after is None:
            return f"{self.path} is left out: nothing is restored of what it names ({named})"
        return f"{self.path} names {' '.join(self.after.split())[:_SHOWN]} now instead of {named}"


def find_pointer_changes(
    store: Store,
    wanted: Mapping[str, ManifestEntry],
    *,
    names: Iterable[str],
    left: Collection[str],
    roots: tuple[str, ...],
) -> dict[str, PointerChange]:
    """Return the pointers among the `wanted` files whose text must change, by path.

    `names`: checkpoints that some rank restores. Raise StoreError.
    """
    pointers = {p: e for p, e in wanted.items() if is_pointer(p) and e.size <= _MAX_BYTES}
    if not pointers:
        return {}
    paths = frozenset(above for path in (*wanted, *names) for above in _with_folders(path))
    restored = Restored(paths, frozenset(left), roots)
    changes: dict[str, PointerChange] = {}
    for path, entry in pointers.items():
        data = store.get(entry.key)
        try:
            text = data.decode()
        except UnicodeDecodeError:
            continue
        after = rewrite_pointer(path, text, restored)
        # The download of an object with other bytes than the committed ones fails with its name.
        if after != text and hashlib.sha256(data).hexdigest() == entry.sha256:
            changes[path] = PointerChange(path, text, after)
    return changes


def _with_folders(path: str) -> Iterable[str]:
    while path:
        yield path
        path = posixpath.dirname(path)
