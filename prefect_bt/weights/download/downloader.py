"""The download of files into a staging tree: blocks of one file after another, several at a time.

A file is read in blocks by a pool of threads. Each thread writes its block in slices, hashes them
while they are in the processor's cache, and marks what has arrived. A file of at most one granule
is one block, and a file without ranges is one stream.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Final

from prefect_bt.host.cgroup import count_cpus
from prefect_bt.host.job_lock import is_free
from prefect_bt.host.malloc_settings import reuse_freed_memory
from prefect_bt.text.progress import ProgressMeter
from prefect_bt.weights.cache.partial_file import GRANULE_BYTES, PartialFile, PartialFileLocked
from prefect_bt.weights.cache.staged_tree import StagingTree
from prefect_bt.weights.download.open_file import Block, OpenFile, SequentialFile
from prefect_bt.weights.download.readers import FallbackReader
from prefect_bt.weights.manifest import FileEntry
from prefect_bt.weights.sources.file_listing import ListedFile, describe_mismatch
from prefect_bt.weights.sources.pointer_check import check_content
from prefect_bt.weights.sources.protocol import RangesUnsupported, TransientError, source_error
from prefect_bt.weights.worker_threads import (
    RETRY_DELAYS,
    StopSignal,
    call_with_retries,
    run_workers,
)

BLOCK_BYTES: Final = 8 << 20
"""The largest request: what each connection holds in memory."""
OPEN_FILES: Final = 4
"""Files that are read at a time. A thread stays with a file, so that most bytes come in order."""
CONNECTIONS: Final = (8, 16)
"""The least and the greatest number; four for each CPU between them."""
_SLOW_SECONDS: Final = 0.01
_SILENT_SECONDS: Final = 1.0
"""Time to the first piece, on average and of one request, from which all connections are used."""
MAX_SECONDS_PER_GRANULE: Final = 300.0
"""Seconds in which a request must bring a granule, or it counts as stalled."""
_POLL_INTERVAL: Final = 0.2
"""Seconds between two looks at a file that another process downloads."""
_MAX_FILES_PER_TURN: Final = 64
"""Small files that a thread reads before it writes them, which saves a third of the time."""
_NEXT_STEP: Final = "Try again: downloaded files are kept."


class Download:
    """One download into a staging tree. `stop` ends its threads at their next piece."""

    def __init__(
        self,
        staging: StagingTree,
        reader: FallbackReader,
        meter: ProgressMeter,
        stop: StopSignal,
        on_finished: Callable[[str, str], object] | None,
    ) -> None:
        """`on_finished` is called with the path and the SHA-256 of each complete file."""
        self._staging, self._reader, self._meter = staging, reader, meter
        self._stop = stop
        self._on_finished: Callable[[str, str], object] = on_finished or (lambda _p, _s: None)
        self._listed = {file.path: file for file in staging.listing.files}
        self._batches: Iterator[Sequence[ListedFile]] = iter(())
        self._is_fetching = self._is_exhausted = False
        self._waiting = deque[ListedFile]()
        self._locked: list[ListedFile] = []
        """Files that another process downloads."""
        self._open_files: list[OpenFile] = []
        """Files with blocks that no thread has taken."""
        self._opened = ExitStack()
        """Closes the partial files."""
        least, most = CONNECTIONS
        self._connections = max(least, min(4 * count_cpus(), most))
        self._is_slow = False
        """Whether a half of the connections would not use the CPUs."""
        self._delay = 0.0
        """Seconds to the first piece of an answer, averaged over the last ones."""
        self._unanswered = set[float]()
        """Times of the requests without a piece."""
        self._thread = threading.local()
        self._changed = threading.Condition()
        self._active = 0
        """Number of threads that work on a block, whose file may be put back into the queue."""
        self._has_ranges = True
        self._corrupt = set[str]()
        """Paths of files that arrived with a wrong digest."""
        self._request_bytes = BLOCK_BYTES
        """Size of the next request: halved by a fault, a granule more after a success."""

    def link_present(self, files: Sequence[ListedFile]) -> list[ListedFile]:
        """Link files that this machine or a store on its disk has. Return the files that remain."""
        staging, waiting, linked = self._staging, iter(files), set[str]()

        def step() -> bool:
            if (file := next(waiting, None)) is None:
                return False
            is_linked = staging.has(file) or staging.link_cached(file)
            if not is_linked and (path := self._reader.find_local_path(file)):
                is_linked = staging.link_verified(file, path)
            if is_linked:
                self._add_linked(file)
                linked.add(file.path)
            return True

        run_workers(min(OPEN_FILES, len(files)), step, self._stop)
        return [file for file in files if file.path not in linked]

    def run(self, batches: Iterator[Sequence[ListedFile]]) -> None:
        """Download one batch after another until `stop` is set. WeightsError or OSError."""
        self._batches = batches
        reuse_freed_memory()
        try:
            run_workers(self._count_workers, self._step, self._stop)
        finally:
            with self._changed:  # no thread opens a file now or later
                self._opened.close()  # a late thread writes to none

    def _count_workers(self) -> int:
        oldest = min([time.monotonic(), *self._unanswered])
        self._is_slow = self._is_slow or time.monotonic() - oldest > _SILENT_SECONDS
        return self._connections if self._is_slow else self._connections // 2

    def _add_linked(self, file: ListedFile) -> None:
        """Count a file of the staging tree that needed no transfer."""
        self._meter.add_present(file.size or 0, items=1)
        self._on_finished(file.path, self._staging.find_sha256(file))

    def _step(self) -> bool:
        blocks, received = self._take(), list[Block]()
        if not blocks:
            return False
        until = time.monotonic() + _SILENT_SECONDS
        try:
            for block in blocks:
                self._read(block)
                received.append(block)
                while received and time.monotonic() > until:
                    self._complete(received.pop())
        finally:
            try:
                for block in received:
                    self._complete(block)
            finally:
                with self._changed:
                    self._active -= 1
                    self._changed.notify_all()
        return True

    # -- the queue of blocks --------------------------------------------------------------------

    def _take(self) -> list[Block]:
        """Wait for a block, or several of small files. Return none when no file is left."""
        with self._changed:
            while not self._stop.is_set():
                if files := self._pop_sequential_files():
                    return [self._open_sequential(file) for file in files]
                has_room = len(self._open_files) < OPEN_FILES
                if self._waiting and has_room:
                    self._open_partial(self._waiting.popleft())
                elif has_room and not self._is_exhausted and not self._is_fetching:
                    self._fetch_batch()
                elif self._open_files:
                    return [self._pop_block()]
                elif self._is_exhausted and not self._active and not self._locked:
                    return []
                else:
                    self._changed.wait(_POLL_INTERVAL)
                    self._collect_unlocked()
        return []

    def _pop_sequential_files(self) -> list[ListedFile]:
        """Return a file that is one block, or several small ones if they arrive fast."""
        found, size = list[ListedFile](), 0
        share = len(self._waiting) // (2 * self._connections)
        most = 1 if self._is_slow else min(_MAX_FILES_PER_TURN, share)
        while self._waiting and (not found or len(found) < most):
            file = self._waiting[0]
            size += GRANULE_BYTES if file.size is None else file.size
            if size > GRANULE_BYTES and (found or self._can_read_ranges(file)):
                break
            found.append(self._waiting.popleft())
        self._active += bool(found)
        return found

    def _pop_block(self) -> Block:
        """Return the next block of the file that this thread worked on, else of another."""
        last = getattr(self._thread, "file", None)
        file = last if last in self._open_files else self._open_files[0]
        block = file.blocks.popleft()
        self._open_files.remove(file)
        if file.blocks:
            self._open_files.append(file)
        self._thread.file = file
        self._active += 1
        return block

    def _fetch_batch(self) -> None:
        """Queue the next batch. Other threads go on meanwhile: its store may be slow."""
        self._is_fetching = True
        self._changed.release()
        try:
            batch = next(self._batches, None)
        finally:
            self._changed.acquire()
            self._is_fetching = False
            self._changed.notify_all()
        self._is_exhausted = batch is None
        # Small files first: they are kept when a large one fails.
        self._waiting.extend(sorted(batch or (), key=lambda one: (one.size or 0) > GRANULE_BYTES))

    def _can_read_ranges(self, listed: ListedFile) -> bool:
        return self._has_ranges and listed.is_pinned and not listed.sequential_only

    def _open_sequential(self, listed: ListedFile) -> Block:
        end = listed.size if self._can_read_ranges(listed) else None
        kept = SequentialFile(self._staging.path)
        return OpenFile(listed, kept, [(0, end)], self._meter).blocks.popleft()

    def _open_partial(self, listed: ListedFile) -> None:
        """Open a file, unless another process downloads it."""
        size = listed.size or 0
        try:
            kept = PartialFile(self._staging.partial_folder(listed), size)
        except PartialFileLocked:
            self._locked.append(listed)
            self._meter.set_note(f"another process downloads {listed.path}")
            return
        self._opened.callback(kept.close)
        blocks = [(run.start, run.stop) for run in kept.missing_runs(BLOCK_BYTES)]
        if not blocks or self._staging.link_cached(listed):  # another process has finished it
            blocks = [(size, size)]
        self._open_files.append(OpenFile(listed, kept, blocks, self._meter))

    def _collect_unlocked(self) -> None:
        """Queue the files again that another process has finished or given up."""
        for file in list(self._locked):
            if is_free(self._staging.partial_folder(file) / "lock"):
                self._locked.remove(file)
                self._waiting.append(file)
                self._staging.index.reload()

    # -- one block ------------------------------------------------------------------------------

    def _read(self, block: Block) -> None:
        """Read a block until it is complete, until `stop` is set, or until ranges do not work."""
        file, note = block.file, self._meter.set_note
        while block.at != block.end and not self._stop.is_set() and not file.lacks_ranges:
            # Each request that brings something may fail as often as the first.
            request = partial(self._request, block)
            call_with_retries(request, RETRY_DELAYS, self._stop, TransientError, note)

    def _complete(self, block: Block) -> None:
        """Complete the file after its last block."""
        file = block.file
        if file.part:
            file.digest.catch_up(file.part, self._stop.is_set)
        is_complete = not file.part and block.at == block.end  # it is kept after a stop, too
        with self._changed:
            file.open_blocks -= 1
            is_last = not file.open_blocks
        if is_last and (is_complete or not self._stop.is_set()):
            self._finish(file)

    def _request(self, block: Block) -> None:
        """Request bytes of a block once.

        TransientError if the request fails before it brings a granule, if the server asks for a
        pause, or if the end of the block is unknown.
        """
        file, before = block.file, block.at
        length = -1 if block.end is None else min(self._request_bytes, block.end - before)
        try:
            self._receive(block, length)
        except RangesUnsupported as error:
            if block.end is None:  # no other way to read it is left
                raise
            self._meter.set_note(error.message)
            self._has_ranges, file.lacks_ranges = False, True
        except TransientError as error:
            self._is_slow = True
            if block.end is None:  # nothing of a stream is kept
                file.restart()
                block.at = 0
                raise
            if length > GRANULE_BYTES:
                self._request_bytes = max(GRANULE_BYTES, length // 2)
            if block.at - before < GRANULE_BYTES or error.retry_after:
                raise
        else:
            if block.end is None and not self._stop.is_set():
                block.end = block.at
            self._request_bytes = min(self._request_bytes + GRANULE_BYTES, BLOCK_BYTES)

    def _receive(self, block: Block, length: int) -> None:
        """Write the bytes of one request. TransientError when it stalls or ends early."""
        file, start = block.file.listed, block.at
        end = file.size if length < 0 else start + length
        asked = time.monotonic()
        self._unanswered.add(asked)
        mark, deadline = start, asked + MAX_SECONDS_PER_GRANULE
        for piece in self._reader.read(file, start=start, length=length):
            if asked in self._unanswered:
                self._unanswered.discard(asked)
                self._delay += 0.2 * (time.monotonic() - asked - self._delay)
                self._is_slow = self._is_slow or self._delay > _SLOW_SECONDS
            view = memoryview(piece)[: None if length < 0 else start + length - block.at]
            if not view:
                break
            block.file.write(block.at, view)
            block.at += len(view)
            if self._stop.is_set() or (end is not None and block.at > end):
                return  # a body that is too long may have no end
            if block.at - mark >= GRANULE_BYTES:
                mark, deadline = block.at, time.monotonic() + MAX_SECONDS_PER_GRANULE
            elif block.at != end and time.monotonic() > deadline:
                what = f"stalled at byte {block.at} of {file.path}"
                raise source_error(self._staging.source, what, _NEXT_STEP, TransientError)
        self._unanswered.discard(asked)  # without a piece
        if end is not None and block.at < end:
            what = f"sent only {block.at} of {file.size} bytes of {file.path}"
            raise source_error(self._staging.source, what, _NEXT_STEP, TransientError)

    # -- a complete file ------------------------------------------------------------------------

    def _finish(self, file: OpenFile) -> None:
        """Verify a file and add it to the staging tree, or have it downloaded once more."""
        listed, digests = file.listed, file.digest.hexdigests()
        if self._staging.has(listed):
            file.discard()
            self._add_linked(listed)
        elif file.lacks_ranges:
            self._put_back(file)
        elif mismatch := describe_mismatch(listed, file.received, digests):
            self._reader.mark_corrupt(listed)
            self._put_back(file, mismatch)
        else:
            self._commit(file, FileEntry(listed.path, file.received, digests["sha256"]))

    def _put_back(self, file: OpenFile, mismatch: str = "") -> None:
        """Queue the file as it was listed: the digest of another host may be wrong."""
        path = file.listed.path
        file.discard()
        if mismatch and path in self._corrupt:
            what = f"could not be verified: {path} arrived damaged twice: {mismatch}"
            hint = "Try again; if it happens again, a proxy or mirror on the way changes the bytes."
            raise source_error(self._staging.source, what, hint)
        if mismatch:
            self._corrupt.add(path)
        with self._changed:
            self._waiting.appendleft(self._listed[path])

    def _commit(self, file: OpenFile, entry: FileEntry) -> None:
        """Add the verified file to the staging tree. PointerFound."""
        if isinstance(file.kept, SequentialFile):
            check_content(self._staging.source, entry.path, file.kept.small_content)
        is_synced = file.part is not None
        if is_synced and self._reader.source.detects_changes:
            # Before the blob: after a kill nothing else would find it.
            self._staging.record_digests({entry.path: entry.sha256})
        kept = file.kept
        move = kept.finalize().replace if isinstance(kept, PartialFile) else kept.move_to
        self._staging.add(move, entry, is_synced=is_synced)
        kept.remove()
        self._meter.add_present(0, items=1)
        self._on_finished(entry.path, entry.sha256)
