"""One thing that was left over, and how it is removed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final

from prefect_bt.errors import PrefectBtError, StoreError, SubstrateError

DECODE_ERRORS: Final = (ValueError, KeyError, TypeError)
"""What reading a record raises that is none."""


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
    UPLOAD = "unfinished upload"
    HOLD = "checkpoint hold"
    SHARED_DOWNLOAD = "shared download"


@dataclass(frozen=True)
class Orphan:
    """`bytes` that go with it; `since` in epoch seconds, None where nothing tells.

    `kept_reason` says why it stays although it is garbage; "" when it goes. `error`, once it was
    tried: why it could not be removed. `remove` raises PrefectBtError or OSError, and looks again
    before it removes anything.
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


@dataclass(frozen=True)
class Scan:
    """A place that is looked through. `name` as in "the weights of this machine"."""

    name: str
    run: Callable[[], Iterable[Orphan]]


@dataclass(frozen=True)
class Findings:
    """`notes`: sentences about what could not be judged."""

    orphans: tuple[Orphan, ...]
    notes: tuple[str, ...] = ()

    @property
    def removable(self) -> tuple[Orphan, ...]:
        return tuple(one for one in self.orphans if not one.kept_reason)


def run_scans(sources: Sequence[Scan]) -> Findings:
    """Everything, in the order of the sources. One that fails is a note, and hides no other."""
    items, notes = list[Orphan](), list[str]()
    for source in sources:
        try:
            items.extend(source.run())
        except (StoreError, SubstrateError, OSError, *DECODE_ERRORS) as error:
            notes.append(f"{source.name} could not be searched: {error}")
    return Findings(tuple(items), tuple(dict.fromkeys(notes)))


def remove_all(findings: Findings) -> Iterator[Orphan]:
    """What goes, one after the other, each with its `problem` if it is still there."""
    for one in findings.removable:
        try:
            one.remove()
        except (PrefectBtError, OSError) as error:
            yield replace(one, error=str(error))
        else:
            yield one
