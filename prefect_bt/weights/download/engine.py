"""The transfer of files into a staging tree: blocks of one file after another, several at a time.

A file is read in blocks by a pool of threads. Each thread writes its block in slices, hashes them
while they are in the processor's cache, and marks what has arrived. A file of at most one granule
is held in memory until it is verified. A file without ranges is one stream.
"""

from __future__ import annotations

import hashlib
import itertools
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from prefect_bt.host.cgroup import count_cpus
from prefect_bt.host.job_lock import is_free
from prefect_bt.weights.cache.digest_index import file_identity
from prefect_bt.weights.cache.partial_file import GRANULE_BYTES, PartialFile, PartialFileLocked
from prefect_bt.weights.download.errors import (
    corrupt_twice_error,
    interrupted_error,
    write_error,
)
from prefect_bt.weights.download.open_file import DownloadContext, OpenFile
from prefect_bt.weights.download.retry import RETRY_DELAYS, call_with_retries
from prefect_bt.weights.sources.file_listing import ListedFile, describe_mismatch
from prefect_bt.weights.sources.protocol import RangesUnsupported, TransientError
from prefect_bt.weights.threads import run_workers

BLOCK_BYTES: Final = 8 << 20
"""The largest request: what each connection holds in memory."""
OPEN_FILES: Final = 4
"""Files that are read at a time. A thread stays with a file, so that most bytes come in order."""
CONNECTIONS: Final = (8, 16)
"""The least and the greatest number; four for each CPU between them."""
MAX_SECONDS_PER_GRANULE: Final = 300.0
"""Seconds in which a request must bring a granule, or it counts as stalled."""
MAX_CORRUPT_DOWNLOADS: Final = 2
"""Downloads of one file with a wrong digest that end the mirror."""
_POLL_INTERVAL: Final = 0.2
"""Seconds between two looks at a file that another process downloads."""
_LINK_WORKERS: Final = 4


def link_from_store(context: DownloadContext, files: Sequence[ListedFile]) -> list[ListedFile]:
    """Link files that a store on this disk has. Return the files that remain."""

    def link(file: ListedFile) -> bool:
        path = context.reader.find_local_path(file)
        if path is None or not context.staging.link_verified(file, path):
            return False
        context.add_linked(file)
        return True

    return _filter_out(files, link, context)


def clone_from_source(context: DownloadContext, files: Sequence[ListedFile]) -> list[ListedFile]:
    """Clone large files of a folder on a disk that shares blocks. Return the files that remain."""

    def clone(file: ListedFile) -> bool:
        path = context.staging.path / f"clone-{threading.get_ident()}"
        if (file.size or 0) <= GRANULE_BYTES or not context.reader.clone(file, path):
            return False
        with path.open("rb") as reader:
            found = hashlib.file_digest(reader, "sha256").hexdigest()
        size = path.stat().st_size
        if describe_mismatch(file, size, {"sha256": found}):
            path.unlink()
            return False
        context.staging.move_in(file, path, found, size)
        context.meter.add_transferred(size)
        context.meter.add_items()
        return True

    return _filter_out(files, clone, context)


def download_files(context: DownloadContext, batches: Iterator[Sequence[ListedFile]]) -> None:
    """Download the files into the staging tree, one batch after another.

    WeightsError; bytes that arrived are kept for the next run.
    """
    try:
        _Download(context, batches).run()
    except OSError as error:
        raise write_error(context.staging.source, error) from error
    context.raise_if_stopped()


def _filter_out(
    files: Sequence[ListedFile], call: Callable[[ListedFile], bool], context: DownloadContext
) -> list[ListedFile]:
    """Call `call` with every file, in a few threads. Return the files for which it is False."""
    waiting, done = iter(files), set[str]()

    def step() -> bool:
        file = next(waiting, None)
        if file is not None and call(file):
            done.add(file.path)
        return file is not None

    run_workers(min(_LINK_WORKERS, len(files)), step, context.stop)
    context.raise_if_stopped()
    return [file for file in files if file.path not in done]


@dataclass
class _Block:
    """Bytes of one file for one thread. `at`: the next one to request."""

    file: OpenFile
    at: int
    end: int

    @property
    def is_in_memory(self) -> bool:
        """Return whether it is all of a small file: kept also when the download is stopped."""
        return self.at == self.end and self.file.part is None and self.file.stream is None


class _Queue:
    """Hands out the blocks of a few files; once all of one are taken, those of the next."""

    def __init__(self, context: DownloadContext, batches: Iterator[Sequence[ListedFile]]) -> None:
        self._context, self._batches = context, batches
        self._is_fetching = self._is_exhausted = False
        self._waiting = deque[ListedFile]()
        self._locked: list[ListedFile] = []
        """Files that another process downloads."""
        self._blocks = deque[deque[_Block]]()
        """Blocks of the open files that no thread has taken."""
        self._thread = threading.local()
        self._changed = threading.Condition()
        self._active = 0
        """Blocks that are being worked on, whose files may be put back."""
        self._parts: set[PartialFile] = set()
        self._streams = itertools.count()
        self.has_ranges = True

    def take(self) -> _Block | None:
        """Wait for a block. Return None when no file is left, or when stopped."""
        with self._changed:
            while not self._context.stop.is_set():
                while self._waiting and len(self._blocks) < OPEN_FILES:
                    self._open(self._waiting.popleft())
                has_room = len(self._blocks) < OPEN_FILES
                if has_room and not self._is_exhausted and not self._is_fetching:
                    self._fetch_batch()
                    continue
                if self._blocks:
                    return self._pop_block()
                if self._is_exhausted and not self._active and not self._locked:
                    return None
                self._changed.wait(_POLL_INTERVAL)
                self._collect_unlocked()
        return None

    def _pop_block(self) -> _Block:
        """Return the next block of the file that this thread worked on, else of another."""
        last = getattr(self._thread, "file", None)
        blocks = next((one for one in self._blocks if one[0].file is last), self._blocks[0])
        block = blocks.popleft()
        self._blocks.remove(blocks)
        if blocks:
            self._blocks.append(blocks)
        self._thread.file = block.file
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

    def is_last(self, block: _Block) -> bool:
        """Count a finished block. Return whether it was the last one of its file."""
        with self._changed:
            block.file.open_blocks -= 1
            return not block.file.open_blocks

    def release(self) -> None:
        """Say that the work on a block, and on its file if it was the last, has ended."""
        with self._changed:
            self._active -= 1
            self._changed.notify_all()

    def put_back(self, file: OpenFile) -> None:
        """Have the file downloaded from its beginning."""
        file.restart()
        with self._changed:
            self._waiting.appendleft(self._context.reader.find_listed(file.listed))

    def discard(self, part: PartialFile) -> None:
        part.remove()
        self._parts.discard(part)
        part.close()

    def close(self) -> None:
        """Close every partial file, so that a late thread writes to none."""
        with self._changed:  # no thread opens one now or later
            for part in list(self._parts):
                part.close()

    def _open(self, listed: ListedFile) -> None:
        context, size = self._context, listed.size or 0
        if not self.has_ranges or not _is_resumable(context, listed):
            stream = context.staging.path / f"stream-{next(self._streams)}"
            self._add_blocks(OpenFile(context, listed, stream=stream), [range(size)])
        elif size <= GRANULE_BYTES:
            self._add_blocks(OpenFile(context, listed), [range(size)])
        elif part := self._open_part(listed):
            runs = [*part.missing_runs(BLOCK_BYTES)] or [range(size, size)]
            self._add_blocks(OpenFile(context, listed, part=part), runs)

    def _add_blocks(self, file: OpenFile, runs: Sequence[range]) -> None:
        file.open_blocks = len(runs)
        self._blocks.append(deque(_Block(file, run.start, run.stop) for run in runs))

    def _open_part(self, listed: ListedFile) -> PartialFile | None:
        """Return the partial file; None when another process has it or has finished it."""
        context, folder = self._context, self._context.staging.partial_folder(listed)
        has_digest = bool(listed.sha256 or listed.git_sha1)
        try:
            part = PartialFile(folder, listed.size or 0, has_digest=has_digest)
        except PartialFileLocked:
            self._locked.append(listed)
            context.meter.set_note(f"another process downloads {listed.path}")
            return None
        self._parts.add(part)
        if not context.staging.link_cached(listed):
            return part
        self.discard(part)
        context.add_linked(listed)
        return None

    def _collect_unlocked(self) -> None:
        """Queue the files again that another process has finished or given up."""
        for file in list(self._locked):
            if is_free(self._context.staging.partial_folder(file) / "lock"):
                self._locked.remove(file)
                self._waiting.append(file)
                self._context.staging.index.invalidate()


class _Download:
    """The steps of the threads of one download."""

    def __init__(self, context: DownloadContext, batches: Iterator[Sequence[ListedFile]]) -> None:
        self._context, self._stop = context, context.stop
        self._queue = _Queue(context, batches)
        self._corrupt = Counter[str]()
        self._request_bytes = BLOCK_BYTES
        """Size of the next request: halved by a fault, a granule more after a success."""

    def run(self) -> None:
        least, most = CONNECTIONS
        try:
            run_workers(max(least, min(4 * count_cpus(), most)), self._step, self._stop)
        finally:
            self._queue.close()

    def _step(self) -> bool:
        block = self._queue.take()
        if block is None:
            return False
        try:
            self._transfer(block)
            block.file.catch_up()
            if self._queue.is_last(block) and (not self._stop.is_set() or block.is_in_memory):
                self._finish(block.file)
        finally:
            self._queue.release()
        return True

    def _transfer(self, block: _Block) -> None:
        """Transfer a block. After progress, a request may fail as often as the first one."""
        if block.file.stream is not None:
            return self._retry(lambda: self._download_stream(block.file))
        while block.at < block.end and not self._stop.is_set() and not block.file.lacks_ranges:
            self._retry(lambda: self._request(block))
        return None

    def _retry(self, call: Callable[[], None]) -> None:
        call_with_retries(call, RETRY_DELAYS, self._stop, self._context.meter.set_note)

    def _request(self, block: _Block) -> None:
        """Request bytes of a block once. TransientError when it brings less than a granule."""
        before, length = block.at, min(self._request_bytes, block.end - block.at)
        try:
            for piece in self._read(block.file, before, length):
                block.file.write(block.at, piece)
                block.at += len(piece)
            self._request_bytes = min(self._request_bytes + GRANULE_BYTES, BLOCK_BYTES)
        except RangesUnsupported as error:
            self._context.meter.set_note(error.message)
            self._queue.has_ranges, block.file.lacks_ranges = False, True
        except TransientError as error:
            if length > GRANULE_BYTES:
                self._request_bytes = max(GRANULE_BYTES, length // 2)
            if block.at - before < GRANULE_BYTES or error.retry_after:
                raise

    def _download_stream(self, file: OpenFile) -> None:
        """Read a file from its first byte to its last. Nothing of it is kept after a fault."""
        assert file.stream is not None
        file.restart()
        with file.stream.open("wb") as writer:
            for piece in self._read(file, 0, -1):
                writer.write(piece)
                file.write(file.received, piece)

    def _read(self, file: OpenFile, start: int, length: int) -> Iterator[memoryview]:
        """Yield the pieces of one request; no more once `stop` is set.

        TransientError when it stalls or ends early.
        """
        wanted = length if length >= 0 else file.listed.size
        received, mark, deadline = 0, 0, time.monotonic() + MAX_SECONDS_PER_GRANULE
        for piece in self._context.reader.read(file.listed, start=start, length=length):
            view = memoryview(piece) if length < 0 else memoryview(piece)[: length - received]
            if not view:
                break
            yield view
            received += len(view)
            if self._stop.is_set() or (wanted is not None and received > wanted):
                return  # a body that is too long may have no end
            if received - mark >= GRANULE_BYTES:
                mark, deadline = received, time.monotonic() + MAX_SECONDS_PER_GRANULE
            elif received != wanted and time.monotonic() > deadline:
                raise self._interrupted(file, f"stalled at byte {start + received}")
        if wanted is not None and received < wanted:
            end = f"ended after {start + received} of {file.listed.size} bytes"
            raise self._interrupted(file, end)

    def _interrupted(self, file: OpenFile, problem: str) -> TransientError:
        return interrupted_error(self._context.source, file.listed, problem)

    def _finish(self, file: OpenFile) -> None:
        """Verify and commit a file, or have it downloaded once more."""
        mismatch = "" if file.lacks_ranges else file.find_mismatch()
        if not mismatch and not file.lacks_ranges:
            file.commit()
        if file.part is not None:
            self._queue.discard(file.part)
        if mismatch:
            self._context.reader.mark_corrupt(file.listed)
            self._corrupt[file.listed.path] += 1
            if self._corrupt[file.listed.path] == MAX_CORRUPT_DOWNLOADS:
                raise corrupt_twice_error(self._context.source, file.listed, mismatch)
        if mismatch or file.lacks_ranges:
            self._queue.put_back(file)


def _is_resumable(context: DownloadContext, file: ListedFile) -> bool:
    """Return whether two requests for the file are known to be of the same bytes."""
    known = bool(file_identity(context.staging.source, file)) and file.size is not None
    return known and not file.sequential_only
