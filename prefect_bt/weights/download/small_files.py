"""Files that arrive in one go: small ones, held in memory, and those that know no ranges."""

from __future__ import annotations

import threading
from collections import deque
from pathlib import Path

from prefect_bt.weights.download.context import (
    MAX_CORRUPT_DOWNLOADS,
    DownloadContext,
    corrupt_twice_error,
    find_mismatch,
    raise_if_stopped,
    truncated_error,
)
from prefect_bt.weights.download.retry import RETRY_DELAYS, call_with_retries
from prefect_bt.weights.sources.file_listing import ListedFile, create_digests
from prefect_bt.weights.sources.protocol import TransientError


def download_small(context: DownloadContext, waiting: deque[ListedFile]) -> bool:
    try:
        file = waiting.popleft()
    except IndexError:
        return False
    fault = ""
    for _ in range(MAX_CORRUPT_DOWNLOADS):
        data = bytearray()
        call_with_retries(
            lambda data=data: _download_rest(context, file, data),
            RETRY_DELAYS,
            context.stop,
            context.meter.set_note,
        )
        digests = create_digests(file, len(data))
        for digest in digests.values():
            digest.update(data)
        found = {name: digest.hexdigest() for name, digest in digests.items()}
        fault = find_mismatch(context, file, len(data), found)
        if not fault:
            context.staging.write(file, data, found["sha256"])
            context.meter.add_transferred(len(data))
            context.meter.add_items()
            return True
        context.reader.mark_corrupt(file)
    raise corrupt_twice_error(context.source, file, fault)


def _download_rest(fetching: DownloadContext, file: ListedFile, data: bytearray) -> None:
    """The rest of the file to what is here of it."""
    size = file.size or 0
    if len(data) == size:
        return
    for piece in fetching.reader.read(file, start=len(data), length=size - len(data)):
        data += piece
    if len(data) < size:
        raise truncated_error(fetching.source, file, len(data))


def download_sequential(context: DownloadContext, waiting: deque[ListedFile]) -> bool:
    """The next file, from its beginning each time: nobody knows how much of it is missing."""
    try:
        file = waiting.popleft()
    except IndexError:
        return False
    path = context.staging.path / f"stream-{threading.get_ident()}"
    fault = ""
    for _ in range(MAX_CORRUPT_DOWNLOADS):
        size, found = call_with_retries(
            lambda: _download_sequential_once(context, file, path),
            RETRY_DELAYS,
            context.stop,
            context.meter.set_note,
        )
        raise_if_stopped(context)
        fault = find_mismatch(context, file, size, found)
        if not fault:
            context.staging.move_in(file, path, found["sha256"], size)
            context.meter.add_items()
            return True
        context.meter.subtract(size)
    raise corrupt_twice_error(context.source, file, fault)


def _download_sequential_once(
    fetching: DownloadContext, file: ListedFile, path: Path
) -> tuple[int, dict[str, str]]:
    digests = create_digests(file, file.size or 0)
    size = 0
    try:
        with path.open("wb") as writer:
            for piece in fetching.reader.read(file, start=0, length=-1):
                writer.write(piece)
                for digest in digests.values():
                    digest.update(piece)
                size += len(piece)
                fetching.meter.add_transferred(len(piece))
                if fetching.stop.is_set():
                    break
        if file.size is not None and size < file.size and not fetching.stop.is_set():
            raise truncated_error(fetching.source, file, size)
    except TransientError:
        fetching.meter.subtract(size)
        raise
    return size, {name: digest.hexdigest() for name, digest in digests.items()}
