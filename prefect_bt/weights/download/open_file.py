"""One file that is being downloaded: where its bytes are kept, and what ends its download."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from prefect_bt.text.progress import ProgressMeter
from prefect_bt.weights.cache.partial_file import PartialFile
from prefect_bt.weights.cache.staged_tree import StagingTree
from prefect_bt.weights.download.errors import stopped_error
from prefect_bt.weights.download.ordered_digest import OrderedDigest
from prefect_bt.weights.download.readers import FallbackReader
from prefect_bt.weights.sources.file_listing import ListedFile, create_digests, describe_mismatch
from prefect_bt.weights.threads import StopSignal
from prefect_bt.weights.url_redaction import redact_url

_SLICE_BYTES: Final = 256 << 10
"""Bytes that are written and hashed at a time: they stay in the processor's cache meanwhile."""


@dataclass(frozen=True)
class DownloadContext:
    """What the threads of one download share. `stop` ends all of them at their next piece."""

    staging: StagingTree
    reader: FallbackReader
    meter: ProgressMeter
    stop: StopSignal
    on_finished: Callable[[str, str], None] | None = None
    """Called with the path and the sha256 of each file that is complete."""

    @property
    def source(self) -> str:
        """The source's URL without its query."""
        return redact_url(self.staging.source)

    def raise_if_stopped(self) -> None:
        """WeightsError when `stop` is set."""
        if self.stop.is_set():
            raise stopped_error(self.staging.source)

    def add_linked(self, file: ListedFile) -> None:
        """Count a file of the staging tree that needed no transfer."""
        self.meter.add_present(file.size or 0, items=1)
        if self.on_finished:
            self.on_finished(file.path, self.staging.find_sha256(file))


class OpenFile:
    """A file whose bytes go to a partial file, a stream's path, or else memory."""

    def __init__(
        self,
        context: DownloadContext,
        listed: ListedFile,
        *,
        part: PartialFile | None = None,
        stream: Path | None = None,
    ) -> None:
        self.listed, self.part, self.stream = listed, part, stream
        self.open_blocks = 0
        """Blocks that are not finished."""
        self.received = 0
        """Bytes that are here, all of which the meter counts."""
        self.lacks_ranges = False
        self._context = context
        self._lock = threading.Lock()
        self._pieces: list[memoryview] = []
        self.restart()
        if part is not None:
            self.received = part.received_bytes
            context.meter.add_present(self.received)

    def restart(self) -> None:
        """Forget what was streamed, hashed and counted."""
        if self.stream is not None:
            self.stream.unlink(missing_ok=True)
        self._context.meter.subtract(self.received)
        self.received = 0
        digests = create_digests(self.listed, self.listed.size or 0)
        self._digests = {name: OrderedDigest(digest) for name, digest in digests.items()}

    def write(self, at: int, piece: memoryview) -> None:
        """Keep bytes, and hash them if they are the next ones."""
        if self.part is None and self.stream is None:
            self._pieces.append(piece)
        for begin in range(0, len(piece), _SLICE_BYTES):
            view = piece[begin : begin + _SLICE_BYTES]
            if self.part is not None:
                self.part.write(at + begin, view)
            for digest in self._digests.values():
                digest.offer(at + begin, view)
        with self._lock:
            self.received += len(piece)
        self._context.meter.add_transferred(len(piece))

    def catch_up(self) -> None:
        """Hash what arrived before the bytes in front of it."""
        if self.part is not None:
            for digest in self._digests.values():
                digest.catch_up(self.part, self._context.stop.is_set)

    def find_mismatch(self) -> str:
        """Return how the file differs from what the source listed; "" when it does not."""
        found = {name: digest.hexdigest() for name, digest in self._digests.items()}
        return describe_mismatch(self.listed, self.received, found)

    def commit(self) -> None:
        """Add the verified file to the staging tree."""
        staging, size = self._context.staging, self.received
        sha256 = self._digests["sha256"].hexdigest()
        if self.part is not None:
            if self._context.reader.source.detects_changes:
                # Before the blob: after a kill nothing else would find it.
                staging.record_digests({self.listed.path: sha256})
            staging.add_blob(self.listed, self.part.finalize(), sha256, size)
        elif self.stream is not None:
            staging.move_in(self.listed, self.stream, sha256, size)
        else:
            one = len(self._pieces) == 1
            staging.write(self.listed, self._pieces[0] if one else b"".join(self._pieces), sha256)
        if self._context.on_finished:
            self._context.on_finished(self.listed.path, sha256)
        self._context.meter.add_items()
