"""Unpack an archive of unknown origin to a working directory, entirely or not at all.

    <ancestor>/.unpack-<random>/    filled and checked here, beside the target
    <target>                        then renamed into place

Where the target exists already (empty: a volume, a mount point) the staging folder is inside it and
its children are moved up, so that the folder itself, its owner and its mount stay as they are.

Archives are plain tars, as `pack_workspace` writes them. Member types, names and links are checked
by `extraction`, headers and sizes by `tar_reader`. The filters of tarfile are not used: Python
before 3.11.4 has none, before 3.11.13 links longer than a path pass them (CVE-2025-4517), and they
bound neither memory nor time. Times are those of the unpacking (a workspace dated 1970 could not be
zipped into a wheel); owners are not restored.
"""

from __future__ import annotations

import errno
import tarfile
import uuid
from collections.abc import Generator
from contextlib import contextmanager, nullcontext
from io import BytesIO
from pathlib import Path
from typing import IO, BinaryIO, cast

from prefect_bt.errors import WorkspaceError
from prefect_bt.filesystem.trees import remove_tree
from prefect_bt.workspace.limits import (
    MAX_WORKSPACE_BYTES,
    MAX_WORKSPACE_ENTRIES,
    UNPACK_SLACK_BYTES,
)
from prefect_bt.workspace.member_writer import ExtractionRoot
from prefect_bt.workspace.tar_reader import (
    MALFORMED,
    corrupt_archive_error,
    iter_members,
    quote_name,
    refused_member,
)


def unpack_workspace(
    archive: Path | BinaryIO,
    target: Path,
    *,
    max_bytes: int = MAX_WORKSPACE_BYTES + UNPACK_SLACK_BYTES,
) -> None:
    """Unpack an uncompressed tar into `target`, absent or an empty folder.

    `max_bytes` bounds the archive, headers included; a stream need not be seekable. Raises
    WorkspaceError naming the member or the archive, with `target` as it was before: for names or
    links that lead outside, devices and fifos, writing through a link, damage, and the limits.
    """
    try:
        _check_target(target)
        source = archive.open("rb") if isinstance(archive, Path) else nullcontext(archive)
        with source as stream, _staging_folder(target) as tree:
            name = str(getattr(stream, "name", "stream"))
            _extract_all(ExtractionRoot(tree), stream, name, max_bytes)
            _publish(tree, target)
    except OSError as error:
        raise _unpack_error(str(error.filename or target), error) from error


def check_archive(archive: BinaryIO, scratch: Path) -> int:
    """Raise WorkspaceError for an archive that `unpack_workspace` refuses; return its members.

    It is unpacked to the folder `scratch` without the contents of files, and removed there. Names
    with backslashes are refused as well: they are paths of Windows.
    """
    bounds = MAX_WORKSPACE_BYTES + UNPACK_SLACK_BYTES
    try:
        with _staging_folder(scratch) as tree:
            root = ExtractionRoot(tree)
            return _extract_all(root, archive, "workspace.tar", bounds, with_contents=False)
    except OSError as error:
        raise _unpack_error("workspace.tar", error) from error


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
def _staging_folder(target: Path) -> Generator[Path]:
    """Yield an empty folder on the target's file system, removed at the end with its contents."""
    place = target
    while not place.exists():
        place = place.parent
    tree = place / f".unpack-{uuid.uuid4().hex}"
    tree.mkdir()
    try:
        yield tree
    finally:
        remove_tree(tree)


def _extract_all(
    tree: ExtractionRoot,
    stream: IO[bytes],
    name: str,
    max_bytes: int,
    *,
    with_contents: bool = True,
) -> int:
    """Extract all members; return how many there are."""
    count = -1
    for count, (tar, member) in enumerate(iter_members(stream, name, max_bytes)):
        if count + tree.folders_made >= MAX_WORKSPACE_ENTRIES:
            limit = MAX_WORKSPACE_ENTRIES
            raise WorkspaceError(
                f"The workspace archive {name!r} has more than {limit} files and folders.",
                next_step="Leave some out (.truss_ignore, exclude_dirs), or pack them into one "
                "file.",
                path=name,
            )
        try:
            _extract_member(tree, tar, member, with_contents=with_contents)
        except OSError as error:
            raise _unpack_error(member.name, error) from error
        except MALFORMED as error:
            raise corrupt_archive_error(name, str(error) or type(error).__name__) from error
    tree.create_links()
    return count + 1


def _extract_member(
    tree: ExtractionRoot, tar: tarfile.TarFile, member: tarfile.TarInfo, *, with_contents: bool
) -> None:
    if "\\" in member.name and not with_contents:
        raise refused_member(member.name, "has a backslash in its name; write folders with '/'")
    if member.isdir():
        tree.add_folder(member)
    elif member.issym():
        tree.add_symlink(member)
    elif member.islnk():
        tree.add_hard_link(member)
    elif member.isreg() and not member.issparse():
        content = cast("IO[bytes]", tar.extractfile(member)) if with_contents else BytesIO()
        tree.add_file(member, content)
    else:
        raise refused_member(member.name, "is neither a file, a folder nor a link")


def _publish(tree: Path, target: Path) -> None:
    if target.exists():
        moved: list[Path] = []
        try:
            for child in tree.iterdir():
                moved.append(child.rename(target / child.name))
        except BaseException:
            for child in moved:
                child.rename(tree / child.name)
            raise
    else:
        target.parent.mkdir(parents=True, exist_ok=True)
        tree.rename(target)


def _unpack_error(path: str, error: OSError) -> WorkspaceError:
    return WorkspaceError(
        f"{quote_name(path)} cannot be unpacked: {error.strerror or error}.",
        next_step="Use shorter names."
        if error.errno == errno.ENAMETOOLONG
        else "Check the free space and the permissions of the node's disk.",
        path=path,
    )
