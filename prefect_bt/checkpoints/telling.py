"""An upload in words: bytes, rate, time left, and the lag from written to committed. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from prefect_bt.checkpoints.announcing import RankUpload
from prefect_bt.visible import escape_controls

_UNITS = ("B", "KB", "MB", "GB")


def format_upload(upload: RankUpload) -> str:
    """`checkpoint-240: 1.2 GB of 4.0 GB (30 %), 310.0 MB/s, 9 s left; 3 committed, …`"""
    status, parts = upload.status, list[str]()
    if status.current:
        parts.append(f"{status.current}: {_format_transfer(upload)}")
    if status.committed:
        parts.append(_format_committed(upload))
    if status.trouble:
        parts.append(f"the store has trouble, tried again: {status.trouble}")
    parts += [f"not committed: {one}" for one in status.uncommitted or status.waiting]
    return escape_controls("; ".join(parts)) or "nothing to upload yet"


def format_uploads(ranks: Sequence[RankUpload]) -> str:
    """Every rank that has something to say, a line each."""
    return "\n".join(f"rank {one.rank}: {format_upload(one)}" for one in ranks)


def format_size(size: float) -> str:
    """Decimal units, as rates are told: `25.1 MB`."""
    for unit in _UNITS:
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"


def format_duration(seconds: float) -> str:
    """`9 s`, `3 min 20 s`, `2 h 5 min`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"


def _format_transfer(one: RankUpload) -> str:
    status, left = one.status, one.seconds_left
    share = f" ({status.bytes_done / status.bytes_total:.0%})" if status.bytes_total else ""
    rate = f", {format_size(status.rate)}/s" if status.rate else ""
    time_left = f", {format_duration(left)} left" if left is not None else ""
    done, total = format_size(status.bytes_done), format_size(status.bytes_total)
    return f"{done} of {total}{share}{rate}{time_left}"


def _format_committed(one: RankUpload) -> str:
    status = one.status
    lag = (
        f", the last one {status.lag:.1f} s after it was written" if status.lag is not None else ""
    )
    return f"{len(status.committed)} committed{lag}"
