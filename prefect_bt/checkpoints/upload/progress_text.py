"""Text of uploads: bytes, rate, time left, and the lag from the last write to the commit."""

from __future__ import annotations

from collections.abc import Sequence

from prefect_bt.checkpoints.upload.upload_status import RankUpload, format_trouble
from prefect_bt.text.control_characters import escape_controls
from prefect_bt.text.progress import Progress, format_bytes_done


def format_upload(upload: RankUpload) -> str:
    """Return `checkpoint-240: 1.2 GB of 4.0 GB (30 %), 310.0 MB/s, 9 s left; 3 committed, …`."""
    status, parts = upload.status, list[str]()
    if status.current:
        parts.append(f"{status.current}: {format_bytes_done(upload.progress)}")
    if status.committed:
        parts.append(f"{len(status.committed)} committed")
        if status.lag is not None:
            parts[-1] += f", the last one {status.lag:.1f} s after its last write"
    if trouble := format_trouble(status):
        parts.append(trouble)
    parts += [f"not committed: {one}" for one in status.uncommitted or status.waiting]
    return escape_controls("; ".join(parts)) or "nothing to upload yet"


def format_uploads(ranks: Sequence[RankUpload]) -> str:
    """Return a line for each rank."""
    return "\n".join(f"rank {one.rank}: {format_upload(one)}" for one in ranks)


def summarize_uploads(ranks: Sequence[RankUpload]) -> Progress:
    """Return the progress of all ranks together."""
    return Progress(
        "checkpoints",
        bytes_done=sum(one.status.bytes_done for one in ranks),
        bytes_total=sum(one.status.bytes_total for one in ranks),
    )
