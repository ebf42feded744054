"""The base classes of weights sources, and the table of their adapters."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Final

from prefect_bt.errors import WeightsError
from prefect_bt.object_store.connect import Limits
from prefect_bt.object_store.protocols import Store
from prefect_bt.planning.plan import WeightsPlan
from prefect_bt.text.url_redaction import redact_url
from prefect_bt.weights.sources.file_listing import ListedFile, Listing

if TYPE_CHECKING:
    from obstore import GetResult

STALL_TIMEOUT: Final = 30.0
"""Seconds without a byte after which a connection is closed and opened again."""
_PIECE_BYTES: Final = 1 << 20
"""Bytes of a body that are lost, at most, when it ends early."""

SOURCES: Final[dict[str, str]] = {
    "hf": "prefect_bt.weights.sources.hub:HubSource",
    **dict.fromkeys(
        ("s3", "r2", "cw", "gs", "azure"), "prefect_bt.weights.sources.bucket:BucketSource"
    ),
    "https": "prefect_bt.weights.sources.http_source:WebSource",
    "file": "prefect_bt.weights.sources.folder:FolderSource",
    "bt": "prefect_bt.weights.sources.checkpoint:CheckpointSource",
}
"""Scheme -> `module:class` of a Source, imported on use."""


class TransientError(WeightsError):
    """A failure that may pass, such as a lost connection."""

    retry_after: float = 0.0
    """Seconds to wait before the next request, as the server asks; 0 if it asks for none."""


class RangesUnsupported(WeightsError):
    """The server ignores Range headers and sends whole files."""


@dataclass(frozen=True)
class SourceRequest:
    """The arguments of a source. `store` has the checkpoints of bt:// sources."""

    plan: WeightsPlan
    secret: str | None = field(default=None, repr=False)
    store: Store | None = None
    stall_timeout: float = STALL_TIMEOUT


class Source(ABC):
    """Source of weights. Its methods block, and may be called from several threads."""

    detects_changes = True
    """Whether `read` fails for a file that changed since it was listed."""

    def __init__(self, request: SourceRequest) -> None:
        """Send no request. WeightsError for a wrong address or secret."""
        self._source = request.plan.source
        self._error = partial(source_error, self._source)

    def resolve_revision(self) -> str:
        """Return the current revision, or "" if only a listing shows it. Errors: `list_files`."""
        return ""

    @abstractmethod
    def list_files(self) -> Listing:
        """Return the files of the current revision. Raise WeightsError or TransientError."""

    @abstractmethod
    def read(self, file: ListedFile, *, start: int, length: int) -> Iterator[bytes | memoryview]:
        """Yield `length` bytes from `start` (-1: to the end), once the revision is known.

        Raise TransientError when a retry may help, RangesUnsupported or another WeightsError.
        """


class RemoteSource(Source):
    """A source whose blocks are read with obstore. Its caller retries."""

    def __init__(self, request: SourceRequest) -> None:
        super().__init__(request)
        stall = request.stall_timeout
        connect = min(Limits.connect, stall)
        # A block has minutes at most, however slowly its bytes arrive.
        self._limits = Limits(connect, stall, max(Limits.total, 10 * stall), retries=0)
        limits = f"no connection in {connect:g} s, or no byte for {stall:g} s"
        self._no_answer = f"no usable answer: {limits}"

    def _iter_block(
        self, file: ListedFile, answer: GetResult, tag: str, length: int
    ) -> Iterator[memoryview]:
        """Yield the bytes of an answer, at most `length`, if the file has not changed."""
        self._check_version(file, tag, answer.meta["size"])
        # As fast as `GetResult.bytes`, which holds in memory whatever the server sends.
        for piece in answer.stream(min_chunk_size=_PIECE_BYTES):
            yield memoryview(piece)[:length]
            length -= len(piece)
            if length < 0:  # at 0 the loop ends the body, so that the connection is kept
                return

    def _check_version(self, file: ListedFile, tag: str, size: int | None) -> None:
        if tag != (file.version_tag or tag) or size not in {file.size, None}:
            raise self._changed_error(file.path)

    def _changed_error(self, path: str) -> WeightsError:
        text = f"changed while it was read: {path} is another file now"
        return self._error(text, "Push again when nothing writes there.")


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
        raise source_error(source, "is not a known kind of source", hint)
    return resolve_name(target)(request)
