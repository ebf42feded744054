"""A folder of this machine or of a shared disk as a weights source: `file:///absolute/path`.

Copied, not linked: what a job mounts must not change when somebody edits the original. Where the
file system can share blocks (XFS, Btrfs) the copy takes no time and no space.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NoReturn

from prefect_bt.errors import WeightsError
from prefect_bt.weights.listing import ListedFile, Listing


def list_folder(source: str) -> Listing:
    """The files as they are now; the revision follows their names, sizes and times."""
    folder = _folder(source)
    if not folder.is_dir():
        raise WeightsError(
            f"{source}: {str(folder)!r} is not a folder on this machine.",
            source=source,
            next_step="Check the path; for one file, name its folder and give allow_patterns.",
        )
    try:
        found = sorted(_walk(source, folder))
    except OSError as error:
        _unreadable(source, error)
    seen = [(path, facts.st_size, facts.st_mtime_ns, facts.st_ino) for path, facts in found]
    revision = hashlib.sha256(json.dumps(seen).encode()).hexdigest()[:40]
    files = tuple(ListedFile(path, facts.st_size) for path, facts in found)
    return Listing(source, revision, files)


def copy_files(listing: Listing, files: Sequence[ListedFile], target: Path) -> None:
    """The files below `target`; WeightsError when the folder changed meanwhile."""
    folder = _folder(listing.source)
    try:
        for file in files:
            _copy(folder / file.path, target / file.path)
    except OSError as error:
        _unreadable(listing.source, error)
    if list_folder(listing.source).revision != listing.revision:
        raise WeightsError(
            f"{listing.source} changed while it was copied.",
            source=listing.source,
            next_step="Push again when nothing writes there.",
        )


def _folder(source: str) -> Path:
    return Path(source.removeprefix("file://"))


def _walk(source: str, folder: Path) -> Iterator[tuple[str, os.stat_result]]:
    for place, folders, names in os.walk(folder, onerror=_raise):
        linked = [name for name in folders if (Path(place) / name).is_symlink()]
        for name in [*linked, *names]:
            path = Path(place) / name
            facts = path.stat()
            if not stat.S_ISREG(facts.st_mode):
                raise WeightsError(
                    f"{source} holds {str(path)!r}, which is neither a file nor a folder of it.",
                    source=source,
                    next_step="Only plain files, folders and links to files can be mirrored.",
                )
            yield path.relative_to(folder).as_posix(), facts


def _copy(source: Path, target: Path) -> None:
    if target.exists():
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    half = target.with_name(f"{target.name}.half")
    with source.open("rb") as reader, half.open("wb") as writer:
        try:
            while os.copy_file_range(reader.fileno(), writer.fileno(), 1 << 30):
                pass
        except (AttributeError, OSError):  # not this platform, not between these file systems
            reader.seek(0)
            writer.seek(0)
            writer.truncate()
            shutil.copyfileobj(reader, writer, 1 << 20)
    half.replace(target)


def _raise(error: OSError) -> NoReturn:
    raise error


def _unreadable(source: str, error: OSError) -> NoReturn:
    raise WeightsError(
        f"{source} could not be copied ({error}).",
        source=source,
        next_step="Check that it can be read, and that the disk has room.",
    ) from error
