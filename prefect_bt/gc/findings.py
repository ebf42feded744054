"""Orphans, the scans that find them, and their removal."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final

from prefect_bt.errors import PrefectBtError, StoreError, SubstrateError

DECODE_ERRORS: Final = (ValueError, KeyError, TypeError)
"""Errors of reading a damaged record."""


class OrphanKind(StrEnum):
    NODE = "node"
    UNSAVED = "unsaved checkpoints"
    FOLDER = "job folder"
    PROCESS = "process"
    CONTAINER = "container"
    NETWORK = "network"
    CLUSTER_JOB = "Kubernetes job"
    ROUTER = "router"
    LEASE = "weights lease"
    WEIGHTS = "unfinished weights"
    PYTHON_ENVIRONMENT = "Python environment"
    UPLOAD = "unfinished upload"
    API_UPLOAD = "unused upload"
    HOLD = "checkpoint hold"
    SHARED_DOWNLOAD = "shared download"
    LOST_JOB = "lost job"
    """A job that no process and no queue has: its removal puts it back into the queue."""
    QUEUE_ENTRY = "queue entry"
    UNWRITTEN_JOB = "unwritten job"
    STORE_TEST = "store test"


@dataclass(frozen=True)
class Orphan:
    """A thing that no living job owns; `bytes` is the space that its removal frees.

    `remove` checks again that the thing is an orphan before it removes it. It raises PrefectBtError
    or OSError. `since` is in epoch seconds, None if unknown. `kept_reason` is "" unless the orphan
    is kept. `error` is "" unless the removal failed.
    """

    kind: OrphanKind
    location: str
    reason: str
    remove: Callable[[], object] = field(repr=False, compare=False)
    job: str = ""
    bytes: int = 0
    since: float | None = None
    kept_reason: str = ""
    error: str = ""


Scan = tuple[str, Callable[[], Iterable[Orphan]]]
"""The name of a place, as "The weights of this machine", and a function that searches it."""


@dataclass(frozen=True)
class Findings:
    """The orphans, and `notes`: sentences about things that could not be judged."""

    orphans: tuple[Orphan, ...]
    notes: tuple[str, ...] = ()

    @property
    def removable(self) -> tuple[Orphan, ...]:
        return tuple(one for one in self.orphans if not one.kept_reason)


def run_scans(scans: Sequence[Scan]) -> Findings:
    """Run all scans, in order. A scan that fails does not end the others; each error is a note."""
    orphans, failed = list[Orphan](), dict[str, list[str]]()
    for name, search in scans:
        try:
            orphans.extend(search())
        except (StoreError, SubstrateError, OSError, *DECODE_ERRORS) as error:
            failed.setdefault(str(error), []).append(name)
    return Findings(
        tuple(orphans),
        tuple(f"{_join(names)} could not be searched: {why}" for why, names in failed.items()),
    )


def _join(names: Sequence[str]) -> str:
    """Return `The jobs of the store, the queue of the store and holds in the store`."""
    words = [names[0], *(name[0].lower() + name[1:] for name in names[1:])]
    return " and ".join(part for part in (", ".join(words[:-1]), words[-1]) if part)


def remove_all(findings: Findings) -> Iterator[Orphan]:
    """Remove the removable orphans one by one. Yield each orphan, with `error` after a failure."""
    for one in findings.removable:
        try:
            one.remove()
        except (PrefectBtError, OSError) as error:
            yield replace(one, error=str(error))
        else:
            yield one
