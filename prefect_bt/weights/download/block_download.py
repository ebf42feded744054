"""Large files in runs of blocks: several connections share one file, and pass on to the next.

A request is for a run of blocks, since each one costs a server more than its bytes: as few as keep
every connection at work. Of each file the first block that is missing is the next to be asked for,
and connections go to the file that has the fewest: so most bytes come in order, and their digest is
taken from memory.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import Final

from prefect_bt.weights.cache.digest_index import file_identity
from prefect_bt.weights.cache.partial_file import (
    BLOCK_BYTES,
    PartialFile,
    PartialFileLocked,
    PartialFolder,
    partial_file_id,
)
from prefect_bt.weights.download.context import (
    MAX_CORRUPT_DOWNLOADS,
    DownloadContext,
    corrupt_twice_error,
    find_mismatch,
    raise_if_stopped,
    truncated_error,
)
from prefect_bt.weights.download.digest import StreamingDigests
from prefect_bt.weights.download.retry import RETRY_DELAYS, call_with_retries
from prefect_bt.weights.sources.file_listing import ListedFile, create_digests
from prefect_bt.weights.sources.protocol import RangesUnsupported, TransientError
from prefect_bt.weights.threads import run_workers

MAX_OPEN_FILES: Final = 8
MAX_BLOCKS_PER_REQUEST: Final = 8
"""Blocks that are asked for at once, at most: a slow connection keeps no more to itself."""
MIN_PROGRESS_BYTES: Final = 1 << 20
"""Bytes after which a try counts as one that went well."""
_POLL_INTERVAL: Final = 0.2
"""Seconds between two looks at a file that another process fetches."""


class _FileDownload:
    """One file, its blocks that nobody has taken yet, and how many are not back."""

    def __init__(
        self,
        context: DownloadContext,
        file: ListedFile,
        part: PartialFile,
        tries: int,
        max_blocks: int,
    ) -> None:
        """`max_blocks`: blocks that one request is for."""
        self.file, self.part, self.attempts = file, part, tries
        self.pending = deque(part.incomplete_blocks())
        self.remaining = len(self.pending)
        self._run = _blocks_per_request(len(self.pending), max_blocks)
        self.connections = 0
        """Connections that work on it."""
        digests = create_digests(file, part.size)
        self.digests = StreamingDigests(part, digests, context.stop.is_set)

    def next_blocks(self) -> range:
        """The next run of blocks; empty where all of it was here, but for its digest.

        Only its first block may have begun to arrive: one request brings the rest of it.
        """
        if not self.pending:
            return range(0)
        first = self.pending.popleft()
        end = first + 1
        while self.pending and self.pending[0] == end and end - first < self._run:
            if self.part.received[end]:
                break
            end += 1
            self.pending.popleft()
        return range(first, end)


class BlockDownloader:
    def __init__(self, context: DownloadContext, files: Sequence[ListedFile], workers: int) -> None:
        self._fetching = context
        self._waiting = deque((file, 0) for file in files)
        self._busy: list[ListedFile] = []
        self._arriving: list[_FileDownload] = []
        """Files with blocks that nobody has taken yet."""
        self._open: set[PartialFile] = set()
        self._lock = threading.Lock()
        blocks = sum(-(-(file.size or 0) // BLOCK_BYTES) for file in files)
        self._most = min(MAX_BLOCKS_PER_REQUEST, max(1, -(-blocks // workers)))
        self._hands = workers

    def run(self) -> None:
        """Until every file is in the fill. WeightsError, OSError."""
        try:
            while self._waiting:
                run_workers(self._hands, self._download_next, self._fetching.stop)
                raise_if_stopped(self._fetching)
                if not self._waiting:
                    self._wait_for_other_processes()
        except RangesUnsupported:
            for part in list(self._open):  # of no use to who reads from the beginning to the end
                part.remove()
                self._close(part)
                self._fetching.meter.subtract(part.received_bytes)
            raise
        finally:
            for part in list(self._open):
                self._close(part)

    # -- who does what ------------------------------------------------------------------------

    def _download_next(self) -> bool:
        with self._lock:
            found = self._next()
        if found is None:
            return False
        arriving, run = found
        self._download_with_retries(arriving, run)
        if self._fetching.stop.is_set():
            return False
        with self._lock:
            arriving.connections -= 1
            arriving.remaining -= len(run)
            last = arriving.remaining == 0
        if last:
            self._finish(arriving)
        return True

    def _next(self) -> tuple[_FileDownload, range] | None:
        while self._waiting and len(self._arriving) < MAX_OPEN_FILES:
            begun = self._open_file(*self._waiting.popleft())
            if begun is not None:
                self._arriving.append(begun)
        if not self._arriving:
            return None
        chosen = min(self._arriving, key=lambda one: one.connections)
        run = chosen.next_blocks()
        if not chosen.pending:
            self._arriving.remove(chosen)
        chosen.connections += 1
        return chosen, run

    def _open_file(self, file: ListedFile, tries: int) -> _FileDownload | None:
        try:
            part = open_partial_file(self._fetching, file)
        except PartialFileLocked:
            self._busy.append(file)
            return None
        if part is None:
            return None
        self._open.add(part)
        self._fetching.meter.add_present(part.received_bytes)
        return _FileDownload(self._fetching, file, part, tries, self._most)

    def _wait_for_other_processes(self) -> None:
        """Files that another process fetches: they are here when it is done, or are ours then."""
        fetching = self._fetching
        for file in self._busy:
            fetching.meter.set_note(f"another process fetches {file.path}")
            while get_partial_folder(fetching, file).is_locked():
                raise_if_stopped(fetching)
                time.sleep(_POLL_INTERVAL)
            fetching.staging.index.invalidate()
            if fetching.staging.link_cached(file):
                fetching.meter.add_present(file.size or 0, items=1)
            else:
                self._waiting.append((file, 0))
        self._busy.clear()

    # -- one run ------------------------------------------------------------------------------

    def _download_with_retries(self, arriving: _FileDownload, run: range) -> None:
        fetching = self._fetching
        call_with_retries(
            lambda: self._download_while_progressing(arriving, run),
            RETRY_DELAYS,
            fetching.stop,
            fetching.meter.set_note,
        )

    def _download_while_progressing(self, arriving: _FileDownload, run: range) -> None:
        """The rest of the run, once more for as long as each time brings much of it."""
        part = arriving.part
        while not self._fetching.stop.is_set():
            before = part.next_offset(run)
            try:
                return self._read(arriving, run)
            except TransientError as error:
                if part.next_offset(run) - before < MIN_PROGRESS_BYTES or error.retry_after:
                    raise
        return None

    def _read(self, arriving: _FileDownload, run: range) -> None:
        part, fetching = arriving.part, self._fetching
        at, end = part.next_offset(run), part.end_offset(run)
        if at == end:
            return
        for piece in fetching.reader.read(arriving.file, start=at, length=end - at):
            view = memoryview(piece)[: end - at]
            part.write(at, view)
            arriving.digests.update(at, view)
            fetching.meter.add_transferred(len(view))
            at += len(view)
            if fetching.stop.is_set():
                return
        if at < end:
            raise truncated_error(fetching.source, arriving.file, at)

    # -- one file -----------------------------------------------------------------------------

    def _finish(self, arriving: _FileDownload) -> None:
        fetching, part, file = self._fetching, arriving.part, arriving.file
        found = arriving.digests.hexdigests()
        if fetching.stop.is_set():
            return
        fault = commit_partial_file(fetching, file, part, found)
        self._close(part)
        if not fault:
            return
        if arriving.attempts + 1 == MAX_CORRUPT_DOWNLOADS:
            raise corrupt_twice_error(fetching.source, file, fault)
        with self._lock:
            self._waiting.append((file, arriving.attempts + 1))

    def _close(self, part: PartialFile) -> None:
        self._open.discard(part)
        part.close()


def _blocks_per_request(blocks: int, maximum: int) -> int:
    """Blocks a request, so that as few as `maximum` allows are of about the same size."""
    requests = max(1, -(-blocks // maximum))
    return -(-blocks // requests)


# -- parts --------------------------------------------------------------------------------------


def get_partial_folder(context: DownloadContext, file: ListedFile) -> PartialFolder:
    """Where the file's part lies: the same for all who want the same file."""
    fill = context.staging
    known = file_identity(fill.source, file) or f"{fill.name}/{file.path}"
    return PartialFolder(fill.cache.partial_path(partial_file_id(known)))


def open_partial_file(context: DownloadContext, file: ListedFile) -> PartialFile | None:
    """The file's part, ours alone; None when somebody finished it since we looked. Busy."""
    told = bool(file.sha256 or file.git_sha1 or file.md5)
    part = PartialFile(get_partial_folder(context, file), file.size or 0, has_digest=told)
    if context.staging.link_cached(file):
        part.remove()
        part.close()
        context.meter.add_present(part.size, items=1)
        return None
    return part


def commit_partial_file(
    context: DownloadContext, file: ListedFile, partial: PartialFile, found: dict[str, str]
) -> str:
    """A whole part becomes a blob of that digest; else why not, and it is empty again."""
    fault = find_mismatch(context, file, partial.size, found)
    if fault:
        context.reader.mark_corrupt(file)
        partial.reset()
        context.meter.subtract(partial.size)
        return fault
    sha256 = found["sha256"]
    if (
        context.reader.source.detects_changes
    ):  # else only when all of it is known to be still the same
        context.staging.record_digests(
            {file.path: (sha256, partial.size)}
        )  # first: or a blob is lost
    context.staging.add_blob(file, partial.finalize(), sha256, partial.size)
    partial.remove()
    context.meter.add_items()
    return ""


def download_by_source(
    context: DownloadContext, waiting: deque[ListedFile], rest: list[ListedFile]
) -> bool:
    """The next file by its source's own way; into `rest` if it has none for it."""
    try:
        file = waiting.popleft()
    except IndexError:
        return False
    try:
        part = open_partial_file(context, file)
    except PartialFileLocked:
        rest.append(file)
        return True
    if part is None:
        return True
    try:
        if part.received_bytes or not _try_download_by_source(context, file, part):
            rest.append(file)
            return True
        following = StreamingDigests(part, create_digests(file, part.size), context.stop.is_set)
        fault = commit_partial_file(context, file, part, following.hexdigests())
        if fault:
            context.meter.set_note(f"{file.path} arrived damaged: {fault}")
            rest.append(file)
        return True
    finally:
        part.close()


def _try_download_by_source(fetching: DownloadContext, file: ListedFile, part: PartialFile) -> bool:
    whole = part.folder.path / "whole"

    def tick(size: int) -> None:
        raise_if_stopped(fetching)  # what it raises ends the fetch
        fetching.meter.add_transferred(size)

    try:
        done = fetching.reader.download_file(file, whole, tick)
    except TransientError as error:
        fetching.meter.set_note(error.message)
        done = False
    if whole.exists():
        part.import_file(whole)
    return done
