"""What a source of weights offers, and which adapter answers for which scheme."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Final, Protocol, cast, runtime_checkable

from prefect_bt.errors import WeightsError
from prefect_bt.object_store.protocols import Store
from prefect_bt.planning.plan import WeightsPlan
from prefect_bt.weights.sources.file_listing import ListedFile, Listing

STALL_TIMEOUT: Final = 30.0
"""Without a byte for so long, a connection is given up and made again."""
CONNECT_TIMEOUT: Final = 10.0
READ_BYTES: Final = 1 << 20

SOURCES: Final[dict[str, str]] = {
    "hf": "prefect_bt.weights.sources.hub:HubSource",
    **dict.fromkeys(
        ("s3", "r2", "cw", "gs", "azure"), "prefect_bt.weights.sources.bucket:BucketSource"
    ),
    "https": "prefect_bt.weights.sources.https:WebSource",
    "file": "prefect_bt.weights.sources.folder:FolderSource",
    "bt": "prefect_bt.weights.sources.checkpoint:CheckpointSource",
}
"""Scheme -> `module:class`, imported on use. A class has `open(request) -> Source`."""


class TransientError(WeightsError):
    """May go well the next time: a connection lost, a server busy, a body that ended early."""

    retry_after: float = 0.0
    """Seconds to wait at least before asking again, as the server said."""


class RangesUnsupported(WeightsError):
    """The server sends whole files only, whatever part of one is asked for."""


@dataclass(frozen=True)
class SourceRequest:
    """What a source is opened with. `secret` is the value that `plan.secret` names."""

    plan: WeightsPlan
    secret: str | None = None
    store: Store | None = None
    """Where checkpoints of jobs lie; for bt:// alone."""
    stall_timeout: float = STALL_TIMEOUT
    """Seconds without a byte after which a connection is given up."""

    def __repr__(self) -> str:
        return f"SourceRequest({self.plan.source!r})"


class Source(Protocol):
    """One source; every verb blocks. Opened without reaching anything; used by several threads."""

    @property
    def pinned_revision(self) -> str:
        """The revision that the source's own text names; "" when upstream must be asked."""
        ...

    @property
    def detects_changes(self) -> bool:
        """Whether `read` itself notices that a file is not the listed one any more."""
        ...

    def list_files(self) -> Listing:
        """Every file at the revision of this moment. WeightsError; Interrupted when it may pass."""
        ...

    def read(
        self, file: ListedFile, *, start: int, length: int
    ) -> Iterator[bytes] | Iterator[memoryview]:
        """`length` bytes from `start` (-1: to the end), in pieces.

        After `list_files`, or with a `pinned_revision` revision. Interrupted when the bytes stop
        coming, for STALL_SECONDS or for good; NoRanges when only `start=0` and all of it would do;
        WeightsError when asking again would not help.
        """
        ...


@runtime_checkable
class SupportsRevision(Protocol):
    """A source that tells its revision without listing its files."""

    def resolve_revision(self) -> str:
        """That of this moment, which `list` then lists. WeightsError; Interrupted."""
        ...


@runtime_checkable
class SupportsFileDownload(Protocol):
    """A source that can download whole files by itself, as by sharing blocks on one disk."""

    def download_file(
        self, file: ListedFile, target: Path, on_bytes: Callable[[int], None] | None = None
    ) -> bool:
        """The whole file to `target`; False: not this file, `read` it.

        What `target` holds is the file's beginning, and is continued. `on_bytes` hears how many
        bytes have come, a negative number when they are to come again; what it raises ends the
        fetch. Interrupted: not any more; `read` may do better.
        """
        ...


@runtime_checkable
class SupportsTagCheck(Protocol):
    """A source whose tags look like an MD5, but are one only where nothing is encrypted."""

    def has_md5_tag(self, file: ListedFile) -> bool:
        """Asked of files whose bytes have another MD5 than their tag."""
        ...


def open_source(request: SourceRequest) -> Source:
    """Nothing is reached yet. WeightsError for a scheme, an address or a secret that cannot be."""
    source = request.plan.source
    target = SOURCES.get(source.partition("://")[0])
    if target is None:
        raise WeightsError(
            f"Nothing mirrors {source!r}.",
            source=source,
            next_step=f"Use one of {', '.join(f'{scheme}://' for scheme in SOURCES)}.",
        )
    module, _, name = target.partition(":")
    return cast("Source", getattr(import_module(module), name).open(request))
