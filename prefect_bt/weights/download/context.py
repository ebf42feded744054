"""What the fetching of one source works with, and when what has come is what was listed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from prefect_bt.errors import WeightsError
from prefect_bt.text.progress import ProgressMeter
from prefect_bt.weights.cache.staged_tree import StagingTree
from prefect_bt.weights.download.origins import FallbackReader
from prefect_bt.weights.sources.file_listing import ListedFile, describe_mismatch
from prefect_bt.weights.sources.protocol import TransientError
from prefect_bt.weights.threads import StopSignal
from prefect_bt.weights.url_redaction import redact_url

MAX_CORRUPT_DOWNLOADS: Final = 2
"""How often a file may arrive damaged."""


@dataclass(frozen=True)
class DownloadContext:
    """Threads share it. `stop` ends all of them at their next piece."""

    staging: StagingTree
    reader: FallbackReader
    meter: ProgressMeter
    stop: StopSignal

    @property
    def source(self) -> str:
        """As it may be shown."""
        return redact_url(self.staging.source)


def raise_if_stopped(context: DownloadContext) -> None:
    """WeightsError when somebody asked to stop."""
    if context.stop.is_set():
        raise stopped_error(context.staging.source)


def stopped_error(source: str) -> WeightsError:
    return WeightsError(
        f"{redact_url(source)}: the mirror was stopped.",
        source=source,
        next_step="What is here already is kept for the next time.",
    )


def corrupt_twice_error(source: str, file: ListedFile, mismatch: str) -> WeightsError:
    return WeightsError(
        f"{source}: {file.path} arrived damaged twice: {mismatch}.",
        source=source,
        next_step="Push again; if it stays so, a proxy or mirror on the way changes the bytes.",
    )


def find_mismatch(
    context: DownloadContext, file: ListedFile, size: int, found: dict[str, str]
) -> str:
    """Why what has come is not the listed file; "" when it is, as far as anybody can tell."""
    fault = describe_mismatch(file, size, found)
    if fault and "md5" in found and size == file.size and not context.reader.has_md5_tag(file):
        return ""
    return fault


def truncated_error(source: str, file: ListedFile, size: int) -> TransientError:
    return TransientError(
        f"{source}: {file.path} ended after {size} of {file.size} bytes.",
        source=source,
        next_step="Push again: what is here already is kept.",
    )
