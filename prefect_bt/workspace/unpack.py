"""Unpack an archive of unknown origin to a working directory, entirely or not at all.

    <ancestor>/.unpack-<random>/tree/    filled and checked here, beside the target
    <target>                             then renamed into place

Where the target exists already (empty: a volume, a mount point) the staging folder is inside it and
its children are moved up, so that the folder itself, its owner and its mount stay as they are.

Member types, names and links are checked by `extraction`, headers by `tar_members`, sizes by
`tar_stream`. The filters of tarfile are not used: Python before 3.11.4 has none, before 3.11.13
links longer than a path pass them (CVE-2025-4517), and they bound neither memory nor time. Times
are those of the unpacking (a workspace dated 1970 could not be zipped into a wheel); owners are not
restored.
"""

from __future__ import annotations

import errno
import tarfile
import tempfile
from collections.abc import Generator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import IO, BinaryIO, cast

from prefect_bt.errors import WorkspaceError
from prefect_bt.filesystem.trees import remove_tree
from prefect_bt.workspace.extraction import ExtractionRoot
from prefect_bt.workspace.limits import (
    MAX_WORKSPACE_BYTES,
    MAX_WORKSPACE_ENTRIES,
    UNPACK_SLACK_BYTES,
)
from prefect_bt.workspace.tar_members import MALFORMED, iter_members
from prefect_bt.workspace.tar_stream import (
    BoundedReader,
    corrupt_archive_error,
    open_decompressed,
    refused,
    spelled,
    too_large_error,
)


def unpack_workspace(
    archive: Path | BinaryIO,
    target: Path,
    *,
    max_bytes: int = MAX_WORKSPACE_BYTES + UNPACK_SLACK_BYTES,
) -> None:
    """Unpack a tar (plain, gzip, bzip2 or xz; detected) into `target`, absent or an empty folder.

    `max_bytes` bounds what comes out, headers included; a stream need not be seekable. Raises
    WorkspaceError naming the member or the archive, with `target` as it was before: for names or
    links that lead outside, devices and fifos, writing through a link, damage, and the limits.
    """
    name = str(archive) if isinstance(archive, Path) else str(getattr(archive, "name", "stream"))
    try:
        _check_target(target)
        with _open_archive(archive) as stream, _staging_folder(target) as tree:
            reader = BoundedReader(open_decompressed(stream, name), name=name, max_bytes=max_bytes)
            _extract_all(ExtractionRoot(tree), reader, name, max_bytes)
            _publish(tree, target)
    except OSError as error:
        raise _unpack_error(str(target), error) from error


def _check_target(target: Path) -> None:
    if not target.exists() and not target.is_symlink():
        return
    if not target.is_dir():
        what = "is not a folder"
    elif any(target.iterdir()):
        what = "is not empty"
    else:
        return
    raise WorkspaceError(
        f"The workspace cannot be unpacked to {str(target)!r}: it {what}.",
        next_step="Choose a folder that does not exist or is empty.",
        path=str(target),
    )


@contextmanager
def _open_archive(archive: Path | BinaryIO) -> Generator[IO[bytes], None, None]:
    try:
        source = archive.open("rb") if isinstance(archive, Path) else nullcontext(archive)
    except OSError as error:
        raise WorkspaceError(
            f"The workspace archive {str(archive)!r} cannot be opened: {error.strerror or error}.",
            next_step="Check that the file exists and is readable.",
            path=str(archive),
        ) from error
    with source as stream:
        yield stream


@contextmanager
def _staging_folder(target: Path) -> Generator[Path, None, None]:
    """Yield an empty folder on the target's file system, removed at the end with its contents."""
    place = target
    while not place.exists():
        place = place.parent
    holder = Path(tempfile.mkdtemp(dir=place, prefix=".unpack-"))
    try:
        tree = holder / "tree"  # mkdtemp made the holder private; this one has ordinary permissions
        tree.mkdir()
        yield tree
    finally:
        remove_tree(holder)


def _extract_all(tree: ExtractionRoot, reader: BoundedReader, name: str, max_bytes: int) -> None:
    unpacked = 0
    for count, (tar, member) in enumerate(iter_members(reader, name)):
        unpacked += member.size if member.isreg() else 0
        # A sparse member is larger than what is stored for it, so the reader alone cannot tell.
        if unpacked > max_bytes:
            raise too_large_error(name, max_bytes)
        if count + tree.folders_made >= MAX_WORKSPACE_ENTRIES:
            raise _too_many_members_error(name)
        try:
            _extract_member(tree, tar, member)
        except OSError as error:
            raise _unpack_error(member.name, error) from error
        except MALFORMED as error:
            raise corrupt_archive_error(name, str(error) or type(error).__name__) from error
    tree.create_links()


def _extract_member(tree: ExtractionRoot, tar: tarfile.TarFile, member: tarfile.TarInfo) -> None:
    if member.size < 0:
        raise refused(member.name, "has a negative size")
    if member.isdir():
        tree.add_folder(member)
    elif member.issym():
        tree.add_symlink(member)
    elif member.islnk():
        tree.add_hard_link(member)
    elif member.isreg():
        tree.add_file(member, cast("IO[bytes]", tar.extractfile(member)))
    else:
        raise refused(member.name, "is neither a file, a folder nor a link")


def _publish(tree: Path, target: Path) -> None:
    if target.exists():
        for child in tree.iterdir():
            child.rename(target / child.name)
    else:
        target.parent.mkdir(parents=True, exist_ok=True)
        tree.rename(target)


def _too_many_members_error(name: str) -> WorkspaceError:
    return WorkspaceError(
        f"The workspace archive {name!r} has more than {MAX_WORKSPACE_ENTRIES} files and folders.",
        next_step="Leave some out (.truss_ignore, exclude_dirs), or pack them into one file.",
        path=name,
    )


def _unpack_error(path: str, error: OSError) -> WorkspaceError:
    return WorkspaceError(
        f"{spelled(path)} cannot be unpacked: {error.strerror or error}.",
        next_step="Use shorter names."
        if error.errno == errno.ENAMETOOLONG
        else "Check the free space and the permissions of the node's disk.",
        path=path,
    )
