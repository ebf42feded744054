"""The base class of a weights source, and the table of its adapters."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Final, Protocol, cast, runtime_checkable

from prefect_bt.errors import WeightsError
from prefect_bt.object_store.protocols import Store
from prefect_bt.planning.plan import WeightsPlan
from prefect_bt.weights.sources.file_listing import ListedFile, Listing
from prefect_bt.weights.url_redaction import redact_url

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


class Source:
    """One source. Its methods block; several threads call them. Opening it sends no request."""

    detects_changes = True
    """Whether `read` fails for a file that changed since it was listed."""

    def __init__(self, source: str) -> None:
        self._source = source

    @property
    def pinned_revision(self) -> str:
        """Return the revision in the source's URI; "" when only upstream knows it."""
        return ""

    def list_files(self) -> Listing:
        """Return the files of the current revision. Raise WeightsError or TransientError."""
        raise NotImplementedError

    def read(self, file: ListedFile, *, start: int, length: int) -> Iterator[bytes | memoryview]:
        """Yield `length` bytes from `start` (-1: to the end), once the revision is known.

        Raise TransientError when a retry may help, RangesUnsupported or another WeightsError.
        """
        raise NotImplementedError

    def _error(
        self, text: str, next_step: str, kind: type[WeightsError] = WeightsError
    ) -> WeightsError:
        return source_error(self._source, text, next_step, kind)


@runtime_checkable
class SupportsRevision(Protocol):
    """A source that can resolve its revision without a listing."""

    def resolve_revision(self) -> str:
        """Return the current revision. Raise WeightsError or TransientError."""
        ...


@runtime_checkable
class SupportsFileDownload(Protocol):
    """A source that can copy whole files by itself, as by sharing blocks on one disk."""

    def download_file(self, file: ListedFile, target: Path) -> bool:
        """Write the whole file to `target`. Return False when it must be `read` instead."""
        ...


def source_error(
    source: str, text: str, next_step: str, kind: type[WeightsError] = WeightsError
) -> WeightsError:
    """Return an error about a source; `text` goes on after its URI, without a stop at its end."""
    return kind(f"{redact_url(source)} {text}.", source=source, next_step=next_step)


def open_source(request: SourceRequest) -> Source:
    """Open a source without a request. WeightsError for a wrong scheme, address or secret."""
    source = request.plan.source
    target = SOURCES.get(source.partition("://")[0])
    if target is None:
        hint = f"Use one of {', '.join(f'{scheme}://' for scheme in SOURCES)}."
        raise source_error(source, "is no known kind of source", hint)
    module, _, name = target.partition(":")
    return cast("Source", getattr(import_module(module), name).open(request))
