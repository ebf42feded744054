"""A mirror in words: bytes, rate, time left, and where the bytes came from. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from prefect_bt.text.quantities import format_duration, format_size
from prefect_bt.weights.progress import MirrorPhase, MirrorProgress

if TYPE_CHECKING:
    from prefect_bt.weights.result import MirrorResult

_PHASES: Final = {
    MirrorPhase.LISTING: "asking what there is",
    MirrorPhase.WAITING: "waiting for another process that fetches it",
    MirrorPhase.PUBLISHING: "publishing",
    MirrorPhase.STORING: "copying it to the store",
    MirrorPhase.DONE: "done",
}


def format_progress(progress: MirrorProgress) -> str:
    """`3 of 10 files, 1.2 GB of 4.0 GB (30 %), 310.0 MB/s, 9 s left`"""
    phase = _PHASES.get(progress.phase, "")
    if not progress.files_total:
        return phase
    parts = [
        f"{progress.files_done} of {format_file_count(progress.files_total)}",
        _format_bytes(progress),
    ]
    if progress.rate:
        parts.append(f"{format_size(progress.rate)}/s")
    if progress.seconds_left is not None:
        parts.append(f"{format_duration(progress.seconds_left)} left")
    counts = ", ".join(parts)
    return f"{phase}: {counts}" if phase else counts


def format_result(mirrored: MirrorResult) -> str:
    """`10 files, 4.0 GB in 13.1 s: 3.0 GB from the source (310.0 MB/s), 1.0 GB was here already`"""
    whole = f"{format_file_count(mirrored.files)}, {format_size(mirrored.bytes)}"
    if mirrored.cache_hit:
        return f"{whole}: here already"
    parts: list[str] = []
    if mirrored.fetched_bytes:
        rate = mirrored.fetched_bytes / max(mirrored.seconds, 0.001)
        parts.append(
            f"{format_size(mirrored.fetched_bytes)} from the source ({format_size(rate)}/s)"
        )
    if mirrored.store_bytes:
        parts.append(f"{format_size(mirrored.store_bytes)} from the store")
    here = mirrored.bytes - mirrored.fetched_bytes - mirrored.store_bytes
    if here > 0:
        parts.append(f"{format_size(here)} was here already")
    return f"{whole} in {mirrored.seconds:.1f} s: {', '.join(parts) or 'nothing to fetch'}"


def format_file_count(count: int) -> str:
    """`1 file`, `1,000 files`."""
    return "1 file" if count == 1 else f"{count:,} files"


def _format_bytes(progress: MirrorProgress) -> str:
    text = f"{format_size(progress.bytes_done)} of {format_size(progress.bytes_total)}"
    return f"{text} ({progress.percent:.0f} %)" if progress.bytes_total else text
