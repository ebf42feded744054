"""Files that travel: random bytes, made once, and their digests; the page cache around them."""

from __future__ import annotations

import hashlib
import json
import mmap
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from random import Random

_BLOCK = 16 * 1024 * 1024
_READ = 4 * 1024 * 1024
_PART = 8 * 1024 * 1024
_SEED = 20


@dataclass(frozen=True)
class Digested:
    """A file at `place` that a server offers as `path`.

    `git_sha1` is of git's blob object; `etag` is S3's after an upload in parts of 8 MiB, which are
    the AWS CLI's, where the file has more than one.
    """

    path: str
    size: int
    sha256: str
    git_sha1: str
    etag: str
    place: Path


def make(folder: Path, *, count: int, size: int, seed: int = _SEED) -> Path:
    """`count` files of `size` bytes, no two blocks alike, in a folder that looks like a checkpoint.

    What is there already is kept: its name says what it is. Other seeds have other bytes.
    """
    done = folder / (f"{count}x{size}" if seed == _SEED else f"{count}x{size}-{seed}")
    if done.is_dir():
        return done
    random = Random(seed)
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


def digest(folder: Path, *, ending: str) -> list[Digested]:
    """What `make` has made in `folder`, as `part-00000<ending>` and so on.

    Read once; what was found is kept beside the folder.
    """
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    kept = folder.with_name(f".{folder.name}.digests")
    if not kept.exists():
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            kept.write_text(json.dumps(list(pool.map(_digests, files))))
    return [
        Digested(file.stem + ending, file.stat().st_size, *digests, place=file)
        for file, digests in zip(files, json.loads(kept.read_bytes()), strict=True)
    ]


def _digests(path: Path) -> list[str]:
    head = f"blob {path.stat().st_size}\0".encode()
    sha256, git_sha1 = hashlib.sha256(), hashlib.sha1(head)
    parts: list[bytes] = []
    with path.open("rb") as stream:
        while part := stream.read(_PART):
            sha256.update(part)
            git_sha1.update(part)
            parts.append(hashlib.md5(part).digest())
    etag = parts[0].hex() if len(parts) == 1 else f"{_md5(b''.join(parts))}-{len(parts)}"
    return [sha256.hexdigest(), git_sha1.hexdigest(), etag]


def _md5(data: bytes) -> str:
    return hashlib.md5(data).hexdigest()


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
