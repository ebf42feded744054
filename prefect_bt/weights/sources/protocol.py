"""The protocol of a weights source, and the table of its adapters."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib import import_module
from typing import Final, Protocol, cast, runtime_checkable

from prefect_bt.errors import WeightsError
from prefect_bt.object_store.protocols import Store
from prefect_bt.planning.plan import WeightsPlan
from prefect_bt.weights.sources.file_listing import ListedFile, Listing

STALL_TIMEOUT: Final = 30.0
"""Seconds without a byte after which a connection is closed and opened again."""

SOURCES: Final[dict[str, str]] = {
    "hf": "prefect_bt.weights.sources.hub:HubSource",
    **dict.fromkeys(
        ("s3", "r2", "cw", "gs", "azure"), "prefect_bt.weights.sources.bucket:BucketSource"
    ),
    "https": "prefect_bt.weights.sources.https:WebSource",
    "file": "prefect_bt.weights.sources.folder:FolderSource",
    "bt": "prefect_bt.weights.sources.checkpoint:CheckpointSource",
}
"""Scheme -> `module:class`, imported on use. The class has `open(request) -> Source`."""


class TransientError(WeightsError):
    """A failure that may pass, such as a lost connection."""

    retry_after: float = 0.0
    """Least seconds before the next request, as the server asks."""


class RangesUnsupported(WeightsError):
    """The server ignores Range headers and sends whole files."""


@dataclass(frozen=True)
class SourceRequest:
    """The arguments of a source. `store` has the checkpoints of bt:// sources."""

    plan: WeightsPlan
    secret: str | None = field(default=None, repr=False)
    store: Store | None = None
    stall_timeout: float = STALL_TIMEOUT


class Source(Protocol):
    """One source. Its methods block; several threads call them. Opening it sends no request."""

    @property
    def pinned_revision(self) -> str:
        """Return the revision in the source's URI; "" when only upstream knows it."""
        ...

    @property
    def detects_changes(self) -> bool:
        """Return whether `read` fails for a file that changed since it was listed."""
        ...

    def list_files(self) -> Listing:
        """Return the files of the current revision. Raise WeightsError or TransientError."""
        ...

    def read(
        self, file: ListedFile, *, start: int, length: int
    ) -> Iterator[bytes] | Iterator[memoryview]:
        """Yield `length` bytes from `start` (-1: to the end), once the revision is known.

        Raise TransientError when a retry may help, RangesUnsupported or another WeightsError.
        """
        ...


@runtime_checkable
class SupportsRevision(Protocol):
    """A source that can resolve its revision without a listing."""

    def resolve_revision(self) -> str:
        """Return the current revision. Raise WeightsError or TransientError."""
        ...


def open_source(request: SourceRequest) -> Source:
    """Open a source without a request. WeightsError for a wrong scheme, address or secret."""
    source = request.plan.source
    target = SOURCES.get(source.partition("://")[0])
    if target is None:
        hint = f"Use one of {', '.join(f'{scheme}://' for scheme in SOURCES)}."
        raise WeightsError(f"There is no source {source!r}.", source=source, next_step=hint)
    module, _, name = target.partition(":")
    return cast("Source", getattr(import_module(module), name).open(request))
