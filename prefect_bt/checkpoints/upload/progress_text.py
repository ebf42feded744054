"""An upload in words: bytes, rate, time left, and the lag from written to committed. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from prefect_bt.checkpoints.upload.upload_status import RankUpload
from prefect_bt.text.control_characters import escape_controls
from prefect_bt.text.quantities import format_duration, format_size


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
