"""A private view of the file system: the host's, with a job's folders at their exact paths.

    <node>/root/            the new root: a mount point for every top-level entry of the host
        .prefect-bt/host-<i>/   the host's own folder behind mirror i, for its plain files
    <node>/mirrors/<i>/     mounted over a host folder that lacks a target:
        <child folder>          mount point of the host's child
        <child file>         -> /.prefect-bt/host-<i>/<child file>; a link, so that replacing a
                                file by rename (git config, editors) works as on the host
        <missing folder>/       made for the target

Where something is mounted, and what, is found without following links below the root: what a job
left on this machine cannot put the next one's folders elsewhere.

It is a view, not a security boundary. Only the node's own processes see it, and it ends with them:
nothing is ever mounted in the host's namespace, so deleting the node's folder there meets empty
mount points only. The agent itself enters it, before it has a second thread (the kernel's rule for
user namespaces) and before the commands: one namespace then holds every command, the uploader and
what they leave behind, with no code between fork and exec.
"""

from __future__ import annotations

import errno
import os
import stat
import sys
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

from prefect_bt.filesystem.confined import Identity, get_identity, open_folder_path
from prefect_bt.host import syscalls as sc
from prefect_bt.host.mounts.namespace_plan import Bind, ViewError, ViewPlan

HIDDEN_FOLDER = ".prefect-bt"

_PRESERVED_FLAGS = sc.MS_NOSUID | sc.MS_NODEV | sc.MS_NOEXEC | sc.MS_NOATIME | sc.MS_NODIRATIME
"""Mount flags that a bind keeps; statvfs reports them under the same numbers."""
_ST_RELATIME = 4096


def enter_view(plan: ViewPlan, *, root: Path, mirrors: Path) -> None:
    """Move this process into the view; `root` and `mirrors` are empty folders of ours.

    OSError where the kernel refuses, with the process still in the host's view; ViewError where a
    folder of the definition cannot be put in place.
    """
    enter_mount_namespace()
    sc.mount(None, "/", sc.MS_REC | sc.MS_PRIVATE)
    sc.mount(str(root), str(root), sc.MS_BIND)
    # So that the recursive bind of a folder above `root` does not hold the view within the view.
    sc.mount(None, str(root), sc.MS_UNBINDABLE)
    _bind_top(root)
    for index, host in enumerate(plan.mirrors):
        _create_mirror(host, index=index, root=root, private=mirrors / str(index))
    for bind in plan.binds:
        _mount_bind(bind, root)
    os.chdir(root)
    sc.pivot_root(".", ".")
    sc.umount(".", sc.MNT_DETACH)
    os.chdir("/")
    sc.mount(None, "/", sc.MS_PRIVATE)


def enter_mount_namespace() -> None:
    """Enter a new mount namespace: as root directly, else as root of a user namespace."""
    if os.geteuid() == 0:
        try:
            sc.unshare(sc.CLONE_NEWNS)
        except PermissionError:
            pass  # root in a container without CAP_SYS_ADMIN
        else:
            return
    user, group = os.geteuid(), os.getegid()
    sc.unshare(sc.CLONE_NEWUSER | sc.CLONE_NEWNS)
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"0 {user} 1")
    Path("/proc/self/gid_map").write_text(f"0 {group} 1")


def find_view_error(scratch: Path) -> str:
    """Try an empty view under `scratch` in this process: "" when it works, else the reason."""
    root, mirrors = scratch / "root", scratch / "mirrors"
    root.mkdir()
    mirrors.mkdir()
    try:
        enter_view(ViewPlan((), ()), root=root, mirrors=mirrors)
    except OSError as error:
        return error.strerror or str(error)
    return ""


def _bind_top(root: Path) -> None:
    root.chmod(0o755)
    (root / HIDDEN_FOLDER).mkdir()
    _bind_children("/", root, mounted=str(root), behind=None)


def _create_mirror(host: str, *, index: int, root: Path, private: Path) -> None:
    private.mkdir()
    behind = f"/{HIDDEN_FOLDER}/host-{index}"
    (root / behind[1:]).mkdir()
    mounted = f"{root}{host}"
    readable = os.access(host, os.R_OK | os.X_OK, effective_ids=True)
    if readable:
        with _open_mount_path(Path("/"), host) as source:
            sc.mount(source, f"{root}{behind}", sc.MS_BIND | sc.MS_REC)
    with _open_mount_path(root, host) as target:
        sc.mount(str(private), target, sc.MS_BIND)
    if readable:
        _copy_owner(host, private)
        _bind_children(host, private, mounted=mounted, behind=behind)


def _bind_children(host: str, private: Path, *, mounted: str, behind: str | None) -> None:
    with os.scandir(host) as entries:
        listed = sorted(entries, key=lambda entry: entry.name)
    for entry in listed:
        own = private / entry.name
        if entry.is_symlink():
            own.symlink_to(os.readlink(entry.path))  # noqa: PTH115 (a Path would normalize it)
        elif entry.is_dir(follow_symlinks=False):
            own.mkdir()
            _try_bind(entry.path, f"{mounted}/{entry.name}")
        elif behind is not None:
            own.symlink_to(f"{behind}/{entry.name}")
        elif entry.is_file(follow_symlinks=False):
            own.touch()
            _try_bind(entry.path, f"{mounted}/{entry.name}")


def _try_bind(source: str, target: str) -> None:
    # A foreign user's FUSE mount, or a folder that is gone by now.
    with suppress(PermissionError, FileNotFoundError):
        sc.mount(source, target, sc.MS_BIND | sc.MS_REC)


def _mount_bind(bind: Bind, root: Path) -> None:
    """Mount the opened source on the opened target: either path may have an earlier job's link."""
    try:
        with (
            _open_mount_path(root, bind.target, create=True) as target,
            _open_mount_path(bind.source, "", expected=bind.identity) as source,
        ):
            sc.mount(source, target, sc.MS_BIND | sc.MS_REC)
    except (NotADirectoryError, FileExistsError, PermissionError, _FolderReplaced) as error:
        raise ViewError(f"{bind.target!r} cannot be made: {error.strerror}") from error
    if bind.read_only:
        with _open_mount_path(root, bind.target) as place:
            _make_read_only(place, f"{root}{bind.target}")


class _FolderReplaced(OSError):
    """Error: another folder has the name of the one that was opened before."""


@contextmanager
def _open_mount_path(
    root: Path, relative: str, *, create: bool = False, expected: Identity | None = None
) -> Generator[str]:
    """Yield a path that leads to this folder alone, found without following links below `root`."""
    descriptor = open_folder_path(root, relative.lstrip("/"), create=create)
    try:
        if expected not in {None, get_identity(descriptor)}:
            raise _FolderReplaced(errno.ESTALE, f"{root} was replaced by another folder")
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)


def _make_read_only(opened: str, target: str) -> None:
    below = [place for place in list_mount_points() if place.startswith(f"{target}/")]
    for place in (opened, *below):
        now = os.statvfs(place).f_flag
        # A user namespace may add restrictions, never drop the ones that the host has set.
        kept = now & _PRESERVED_FLAGS | (sc.MS_RELATIME if now & _ST_RELATIME else 0)
        sc.mount(None, place, sc.MS_REMOUNT | sc.MS_BIND | sc.MS_RDONLY | kept)


def list_mount_points() -> list[str]:
    """Return every mount point that this process sees."""
    lines = Path("/proc/self/mountinfo").read_bytes().splitlines()
    return [os.fsdecode(_unescape(line.split(b" ", 5)[4])) for line in lines]


def _unescape(field: bytes) -> bytes:
    for octal, sign in ((b"\\040", b" "), (b"\\011", b"\t"), (b"\\012", b"\n"), (b"\\134", b"\\")):
        field = field.replace(octal, sign)
    return field


def _copy_owner(host: str, private: Path) -> None:
    facts = Path(host).stat()
    with suppress(OSError):  # an owner that the user namespace does not know
        os.chown(private, facts.st_uid, facts.st_gid)
    mode = stat.S_IMODE(facts.st_mode)
    # A process that is not the owner needs the owner's rights to create the targets.
    private.chmod(mode | stat.S_IRWXU)


if __name__ == "__main__":
    sys.stdout.write(find_view_error(Path(sys.argv[1])))
