"""Hash stored contents again, in several threads, to find missing or corrupt ones."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Generator, Hashable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import repeat
from pathlib import Path
from typing import NamedTuple, TypeVar

from prefect_bt.errors import ObjectNotFound, StoreError

Key = TypeVar("Key", bound=Hashable)
ByteCallback = Callable[[int], None]


class HashTask(NamedTuple):
    """A content to verify. `read` yields its bytes, and at least one more if it is too long."""

    sha256: str
    size: int
    read: Callable[[], Iterable[bytes]]


def ignore_progress(size: int) -> None:
    """Accept a number of bytes and do nothing."""
    _ = size


@contextmanager
def cancellable(on_bytes: ByteCallback) -> Generator[ByteCallback]:
    """Yield a callback that raises InterruptedError in threads once the body has failed."""
    failed = threading.Event()

    def count_bytes(size: int) -> None:
        if failed.is_set():
            raise InterruptedError
        on_bytes(size)

    try:
        yield count_bytes
    except BaseException:
        failed.set()
        raise


def rehash(
    tasks: Mapping[Key, HashTask], *, workers: int, on_bytes: ByteCallback = ignore_progress
) -> dict[Key, str]:
    """Read every content once. Return the problem of each that is not intact.

    Ctrl-C cancels the tasks that have not started and stops the others at their next chunk.
    """
    from concurrent.futures import ThreadPoolExecutor  # slow to import

    with ThreadPoolExecutor(workers, "rehash") as pool, cancellable(on_bytes) as count:
        try:
            found = list(pool.map(_find_problem, tasks.values(), repeat(count)))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return {key: problem for key, problem in zip(tasks, found, strict=True) if problem}


def _find_problem(task: HashTask, on_bytes: ByteCallback) -> str:
    digest, size = hashlib.sha256(), 0
    try:
        for chunk in task.read():
            digest.update(chunk)
            on_bytes(len(chunk))
            size += len(chunk)
            if size > task.size:
                return f"has more than {task.size} bytes"
    except (FileNotFoundError, ObjectNotFound):
        return "is missing"
    except StoreError as error:
        return f"cannot be read: {error.message.rstrip('.')}"
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    if size < task.size:
        return f"has {size} bytes, not {task.size}"
    return "" if digest.hexdigest() == task.sha256 else "has different content than expected"


def read_file(path: Path) -> Iterator[bytes]:
    """Yield the bytes of a file in chunks of 1 MiB."""
    with path.open("rb") as reader:
        while chunk := reader.read(1 << 20):
            yield chunk


def hash_file(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with path.open("rb") as reader:
        return hashlib.file_digest(reader, "sha256").hexdigest()
