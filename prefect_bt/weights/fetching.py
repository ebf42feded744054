"""Files of a source onto this disk: several at a time, each whole or not at all.

A file that was cut off is continued where it ends, after a pause, a bounded number of times; what
is half here when the process dies is continued by the next.
"""

from __future__ import annotations

import hashlib
import random
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Final, TypeVar

from prefect_bt.errors import WeightsError
from prefect_bt.weights.listing import ListedFile, Listing
from prefect_bt.weights.source import Fetches, Interrupted, Source

AT_ONCE: Final = 8
PAUSES: Final = (0.5, 1.0, 2.0, 4.0)
"""Seconds before each further try without progress; a little more or less, so that many part."""
LISTING_PAUSES: Final = (0.5, 1.5)
PROGRESS: Final = 1 << 20
"""Bytes after which a try counts as one that went well."""
T = TypeVar("T")


def list_source(source: Source) -> Listing:
    """The source's listing, asked for again when that may help; WeightsError."""
    return _again(source.list, LISTING_PAUSES, threading.Event())


def fetch_files(source: Source, files: Sequence[ListedFile], target: Path, *, name: str) -> None:
    """The files below `target`; what is there is not fetched. `name` is the source in errors."""
    missing = [file for file in files if not (target / file.path).is_file()]
    if isinstance(source, Fetches):
        try:
            source.fetch(missing, target)
        except Interrupted:
            missing = [file for file in missing if not (target / file.path).is_file()]
        else:
            return
    _read_files(_Reading(source, name, target), missing)


def halves_of(target: Path) -> Path:
    """The folder beside `target` of what is not whole yet."""
    return target.with_name(f"{target.name}.halves")


def _read_files(reading: _Reading, files: Sequence[ListedFile]) -> None:
    pool = ThreadPoolExecutor(AT_ONCE, "prefect-bt-weights")
    try:
        for done in as_completed([pool.submit(reading.bring, file) for file in files]):
            done.result()
    finally:
        reading.stop.set()  # the others end at their next piece, and keep what they have
        pool.shutdown(wait=True, cancel_futures=True)


class _Reading:
    """Files of one source on their way to `target`."""

    def __init__(self, source: Source, name: str, target: Path) -> None:
        self._source, self._name, self._target = source, name, target
        self._halves = halves_of(target)
        self._halves.mkdir(parents=True, exist_ok=True)
        self.stop = threading.Event()

    def bring(self, file: ListedFile) -> None:
        half = self._halves / hashlib.sha256(file.path.encode()).hexdigest()[:32]
        try:
            _again(lambda: self._continue(file, half), PAUSES, self.stop)
            if self.stop.is_set():
                return
            place = self._target / file.path
            place.parent.mkdir(parents=True, exist_ok=True)
            half.replace(place)
        except OSError as error:
            raise WeightsError(
                f"{self._name}: {file.path} could not be written ({error}).",
                source=self._name,
                next_step="Check the disk of PREFECT_BT_STATE_DIR; what is here already is kept.",
            ) from error

    def _continue(self, file: ListedFile, half: Path) -> None:
        """The rest of the file, once more for as long as each time brings much of it."""
        while True:
            before = _size(half)
            try:
                return self._read(file, half)
            except Interrupted:
                if _size(half) - before < PROGRESS or file.size is None:
                    raise

    def _read(self, file: ListedFile, half: Path) -> None:
        start = _size(half)
        if file.size is None or start > file.size:
            half.unlink(missing_ok=True)  # nobody knows how much of it is missing
            start = 0
        length = -1 if file.size is None else file.size - start
        with half.open("ab") as writer:
            for piece in self._source.read(file, start=start, length=length) if length else ():
                writer.write(piece)
                start += len(piece)
                if self.stop.is_set():
                    return
        if file.size is not None and start != file.size:
            raise Interrupted(
                f"{self._name}: {file.path} ended after {start} of {file.size} bytes.",
                source=self._name,
                next_step="Push again: what is here already is kept.",
            )


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0


def _again(do: Callable[[], T], pauses: Sequence[float], stop: threading.Event) -> T:
    for pause in pauses:
        try:
            return do()
        except Interrupted:
            if stop.wait(pause * random.uniform(0.8, 1.2)):
                raise
    return do()
