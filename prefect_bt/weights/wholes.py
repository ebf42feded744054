"""Files that arrive in one go: small ones, held in memory, and those that know no ranges."""

from __future__ import annotations

import threading
from collections import deque
from pathlib import Path

from prefect_bt.weights.fetching import (
    TRIES,
    Fetching,
    check_stop,
    damaged_twice,
    ended_early,
    find_fault,
)
from prefect_bt.weights.listing import ListedFile, digests_for
from prefect_bt.weights.retrying import PAUSES, again
from prefect_bt.weights.source import Interrupted


def bring_small(fetching: Fetching, waiting: deque[ListedFile]) -> bool:
    try:
        file = waiting.popleft()
    except IndexError:
        return False
    fault = ""
    for _ in range(TRIES):
        data = bytearray()
        again(
            lambda data=data: _whole(fetching, file, data),
            PAUSES,
            fetching.stop,
            fetching.meter.note,
        )
        digests = digests_for(file, len(data))
        for digest in digests.values():
            digest.update(data)
        found = {name: digest.hexdigest() for name, digest in digests.items()}
        fault = find_fault(fetching, file, len(data), found)
        if not fault:
            fetching.fill.write(file, data, found["sha256"])
            fetching.meter.moved(len(data))
            fetching.meter.finished()
            return True
        fetching.origins.distrust(file)
    raise damaged_twice(fetching.source, file, fault)


def _whole(fetching: Fetching, file: ListedFile, data: bytearray) -> None:
    """The rest of the file to what is here of it."""
    size = file.size or 0
    if len(data) == size:
        return
    for piece in fetching.origins.read(file, start=len(data), length=size - len(data)):
        data += piece
    if len(data) < size:
        raise ended_early(fetching.source, file, len(data))


def bring_stream(fetching: Fetching, waiting: deque[ListedFile]) -> bool:
    """The next file, from its beginning each time: nobody knows how much of it is missing."""
    try:
        file = waiting.popleft()
    except IndexError:
        return False
    path = fetching.fill.path / f"stream-{threading.get_ident()}"
    fault = ""
    for _ in range(TRIES):
        size, found = again(
            lambda: _stream_once(fetching, file, path), PAUSES, fetching.stop, fetching.meter.note
        )
        check_stop(fetching)
        fault = find_fault(fetching, file, size, found)
        if not fault:
            fetching.fill.adopt(file, path, found["sha256"], size)
            fetching.meter.finished()
            return True
        fetching.meter.undo(size)
    raise damaged_twice(fetching.source, file, fault)


def _stream_once(fetching: Fetching, file: ListedFile, path: Path) -> tuple[int, dict[str, str]]:
    digests = digests_for(file, file.size or 0)
    size = 0
    try:
        with path.open("wb") as writer:
            for piece in fetching.origins.read(file, start=0, length=-1):
                writer.write(piece)
                for digest in digests.values():
                    digest.update(piece)
                size += len(piece)
                fetching.meter.moved(len(piece))
                if fetching.stop.is_set():
                    break
        if file.size is not None and size < file.size and not fetching.stop.is_set():
            raise ended_early(fetching.source, file, size)
    except Interrupted:
        fetching.meter.undo(size)
        raise
    return size, {name: digest.hexdigest() for name, digest in digests.items()}
