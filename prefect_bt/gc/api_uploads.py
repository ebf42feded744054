"""Scanner of files that clients of the Training API uploaded, and that no job took."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from prefect_bt.gc.findings import Orphan, OrphanKind
from prefect_bt.http_api.uploads.staging import Uploads


def scan_api_uploads(state_dir: Path) -> Iterator[Orphan]:
    """Yield the uploads to this machine's server that have not changed for a day."""
    uploads = Uploads(state_dir)
    for path, size, changed_at in uploads.list_stale():
        yield Orphan(
            OrphanKind.API_UPLOAD,
            str(path),
            "no job took it for a day",
            partial(uploads.remove_stale, path),
            bytes=size,
            since=changed_at,
        )
