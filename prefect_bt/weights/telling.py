"""A mirror in words: bytes, rate, time left, and where the bytes came from. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from prefect_bt.checkpoints.telling import duration, size
from prefect_bt.weights.progress import Phase, Progress

if TYPE_CHECKING:
    from prefect_bt.weights.mirror import Mirrored

_PHASES: Final = {
    Phase.LISTING: "asking what there is",
    Phase.WAITING: "waiting for another process that fetches it",
    Phase.PUBLISHING: "publishing",
    Phase.STORING: "copying it to the store",
    Phase.DONE: "done",
}


def shown(source: str) -> str:
    """The source without what may be a signature.

    >>> shown("https://host/file?sig=x")
    'https://host/file'
    """
    return source.partition("?")[0]


def told(progress: Progress) -> str:
    """`3 of 10 files, 1.2 GB of 4.0 GB (30 %), 310.0 MB/s, 9 s left`"""
    phase = _PHASES.get(progress.phase, "")
    if not progress.files_total:
        return phase
    parts = [f"{progress.files_done} of {files(progress.files_total)}", _moving(progress)]
    if progress.rate:
        parts.append(f"{size(progress.rate)}/s")
    if progress.seconds_left is not None:
        parts.append(f"{duration(progress.seconds_left)} left")
    counts = ", ".join(parts)
    return f"{phase}: {counts}" if phase else counts


def told_result(mirrored: Mirrored) -> str:
    """`10 files, 4.0 GB in 13.1 s: 3.0 GB from the source (310.0 MB/s), 1.0 GB was here already`"""
    whole = f"{files(mirrored.files)}, {size(mirrored.bytes)}"
    if mirrored.hit:
        return f"{whole}: here already"
    parts: list[str] = []
    if mirrored.fetched:
        rate = mirrored.fetched / max(mirrored.seconds, 0.001)
        parts.append(f"{size(mirrored.fetched)} from the source ({size(rate)}/s)")
    if mirrored.from_store:
        parts.append(f"{size(mirrored.from_store)} from the store")
    here = mirrored.bytes - mirrored.fetched - mirrored.from_store
    if here > 0:
        parts.append(f"{size(here)} was here already")
    return f"{whole} in {mirrored.seconds:.1f} s: {', '.join(parts) or 'nothing to fetch'}"


def files(count: int) -> str:
    """`1 file`, `1,000 files`."""
    return "1 file" if count == 1 else f"{count:,} files"


def _moving(progress: Progress) -> str:
    text = f"{size(progress.bytes_done)} of {size(progress.bytes_total)}"
    return f"{text} ({progress.percent:.0f} %)" if progress.bytes_total else text
