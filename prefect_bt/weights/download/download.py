"""Bytes of a source into a fill: small files whole, large ones in blocks, several at a time.

What is cut off is continued where it ended, after a pause, a bounded number of times; what is half
here when the process dies is continued by the next. Every file is compared with what was listed
before it counts.
"""

from __future__ import annotations

import errno
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from prefect_bt.errors import WeightsError
from prefect_bt.host.cgroup import count_cpus
from prefect_bt.weights.cache.digest_index import file_identity
from prefect_bt.weights.download.block_download import BlockDownloader, download_by_source
from prefect_bt.weights.download.context import DownloadContext, raise_if_stopped
from prefect_bt.weights.download.small_files import download_sequential, download_small
from prefect_bt.weights.sources.file_listing import ListedFile
from prefect_bt.weights.sources.protocol import RangesUnsupported
from prefect_bt.weights.threads import run_workers
from prefect_bt.weights.url_redaction import redact_url

SMALL_FILE_BYTES: Final = 1 << 20
"""Files up to this size are held in memory, each as one block."""
SMALL_FILE_WORKERS: Final = 16
BLOCK_WORKERS: Final = (8, 32)
"""At least and at most; between them four for each CPU. One connection to a large store brings some
60 MB/s, and more connections than a machine can serve make each other slower."""
SOURCE_DOWNLOAD_WORKERS: Final = 2
SEQUENTIAL_WORKERS: Final = 4
LINK_WORKERS: Final = 4


def link_from_store(context: DownloadContext, files: Sequence[ListedFile]) -> list[ListedFile]:
    """Links to what a store of this disk has; returns what is left to be read."""
    lent = [(file, path) for file in files if (path := context.reader.find_local_path(file))]
    waiting, here = deque(lent), set[str]()

    def try_link() -> bool:
        try:
            file, path = waiting.popleft()
        except IndexError:
            return False
        if context.staging.link_verified(file, path):
            context.meter.add_present(file.size or 0, items=1)
            here.add(file.path)
        return True

    run_workers(min(LINK_WORKERS, len(lent)), try_link, context.stop)
    raise_if_stopped(context)
    return [file for file in files if file.path not in here]


def download_files(context: DownloadContext, files: Sequence[ListedFile]) -> None:
    """Every file into the fill. WeightsError; then what has arrived is kept for the next time."""
    rest: list[ListedFile] = []
    streams: list[ListedFile] = []
    for file in files:
        (rest if _is_resumable(context, file) else streams).append(file)
    small = deque(file for file in rest if (file.size or 0) <= SMALL_FILE_BYTES)
    large = [file for file in rest if (file.size or 0) > SMALL_FILE_BYTES]
    try:
        if small:
            hands = min(SMALL_FILE_WORKERS, len(small))
            run_workers(hands, lambda: download_small(context, small), context.stop)
        try:
            BlockDownloader(context, _download_by_source(context, large), _connections()).run()
        except RangesUnsupported as error:
            context.meter.set_note(error.message)
            context = replace(context, stop=context.stop.create_sibling())
            raise_if_stopped(context)
            streams += [file for file in large if not context.staging.has(file)]
        if streams:
            waiting = deque(streams)
            hands = min(SEQUENTIAL_WORKERS, len(streams))
            run_workers(hands, lambda: download_sequential(context, waiting), context.stop)
    except OSError as error:
        raise write_error(context.staging.source, error) from error
    raise_if_stopped(context)


def _connections() -> int:
    fewest, most = BLOCK_WORKERS
    return max(fewest, min(4 * count_cpus(), most))


def _is_resumable(fetching: DownloadContext, file: ListedFile) -> bool:
    """Two requests for it lead to the same bytes, and to those that were asked for."""
    return (
        not file.sequential_only
        and bool(file_identity(fetching.staging.source, file))
        and file.size is not None
    )


def _download_by_source(
    fetching: DownloadContext, files: Sequence[ListedFile]
) -> Sequence[ListedFile]:
    """What is left after the source brought what it can in a way of its own."""
    waiting = deque(file for file in files if fetching.reader.can_download_file(file))
    if not waiting:
        return files
    rest = [file for file in files if not fetching.reader.can_download_file(file)]
    run_workers(
        SOURCE_DOWNLOAD_WORKERS, lambda: download_by_source(fetching, waiting, rest), fetching.stop
    )
    return rest


def write_error(source: str, error: OSError) -> WeightsError:
    if error.errno == errno.ENOSPC:
        what, step = "the disk is full", "Make room, or set PREFECT_BT_STATE_DIR to another disk"
    elif error.errno == errno.ENAMETOOLONG:
        what, step = "a path would be too long", "Set PREFECT_BT_STATE_DIR to a shorter path"
    else:
        what, step = f"it could not be written ({error})", "Check the disk of PREFECT_BT_STATE_DIR"
    return WeightsError(
        f"{redact_url(source)}: {what}.",
        source=source,
        next_step=f"{step}; what is here already is kept.",
    )
