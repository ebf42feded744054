"""Files to upload: random bytes, made once; and the page cache around them."""

from __future__ import annotations

import mmap
import os
from pathlib import Path
from random import Random

_BLOCK = 16 * 1024 * 1024
_READ = 4 * 1024 * 1024


def make(folder: Path, *, count: int, size: int) -> Path:
    """`count` files of `size` bytes, no two blocks alike, in a folder that looks like a checkpoint.

    What is there already is kept: its name says what it is.
    """
    done = folder / f"{count}x{size}"
    if done.is_dir():
        return done
    random = Random(20)
    block = bytearray(random.randbytes(_BLOCK))
    inside = done.with_name(f".{done.name}") / "checkpoint-1"
    inside.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        with (inside / f"part-{number:05d}.raw").open("wb") as stream:
            left = size
            while left > 0:
                # A fresh head makes every block new to anything that looks for equal content.
                block[:32] = random.randbytes(32)
                left -= stream.write(memoryview(block)[: min(left, _BLOCK)])
    inside.parent.rename(done)
    os.sync()
    return done


def warm(folder: Path) -> None:
    """Every byte into the page cache."""
    buffer = memoryview(bytearray(_READ))
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            with path.open("rb", buffering=0) as stream:
                while stream.readinto(buffer):
                    pass


def cool(folder: Path) -> None:
    """Every byte out of the page cache."""
    os.sync()
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb", buffering=0) as stream:
                os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def cached(path: Path) -> float:
    """The share of the file that is in the page cache (mincore), 0 to 1."""
    import ctypes

    size = path.stat().st_size
    pages = -(-size // mmap.PAGESIZE)
    with path.open("r+b") as stream, mmap.mmap(stream.fileno(), size) as mapped:
        here = (ctypes.c_char * size).from_buffer(mapped)
        told = (ctypes.c_ubyte * pages)()
        ctypes.CDLL(None).mincore(
            ctypes.c_void_p(ctypes.addressof(here)), ctypes.c_size_t(size), told
        )
        share = sum(value & 1 for value in told) / pages
        del here
    return share


def size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
