"""Limits, unreadable files and files that change: a clear refusal, and nothing left behind."""

from __future__ import annotations

import io
import os
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from prefect_bt.errors import WorkspaceError
from prefect_bt.workspace import archive
from prefect_bt.workspace.archive import pack_workspace, write_archive
from prefect_bt.workspace.file_list import collect_entries
from prefect_bt.workspace.limits import MAX_WORKSPACE_BYTES, format_bytes
from prefect_bt.workspace.roots import plan_layout

from .conftest import MakeTree


@pytest.fixture
def source(tmp_path: Path, make_tree: MakeTree) -> Path:
    return make_tree(tmp_path / "s", {"a": "1", "sub/b": "22"})


@contextmanager
def without_privileges() -> Generator[None, None, None]:
    """File permissions do not bind root."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def open_to_all(folder: Path) -> None:
    """Let the unprivileged user reach `folder`: pytest makes its folders private to root."""
    above = Path(tempfile.gettempdir()).resolve()
    for path in (folder, *folder.parents):
        if os.geteuid() == 0 and path != above and path.is_relative_to(above):
            path.chmod(0o755)


@pytest.mark.parametrize("root", [None, "."])
def test_six_gibibytes_are_refused_unread(source: Path, tmp_path: Path, root: str | None) -> None:
    with (source / "sub/model.bin").open("wb") as file:
        file.truncate(6 * 1024**3)
    os.utime(source / "sub/model.bin", (0, 1))  # reading the file would set the first one
    with pytest.raises(WorkspaceError) as caught:
        pack_workspace(plan_layout(source, workspace_root=root), tmp_path / "out.tar")
    assert (source / "sub/model.bin").stat().st_atime == 0
    message = str(caught.value)
    for fact in ("6.00 GiB", "5.00 GiB", "'sub/'", "'sub/model.bin' (6.00 GiB)"):
        assert fact in message
    for way in (".truss_ignore", "exclude_dirs", "weights source"):
        assert way in caught.value.next_step
    assert [path.name for path in tmp_path.iterdir()] == ["s"]


def test_ignored_and_excluded_files_do_not_count(source: Path, tmp_path: Path) -> None:
    for name in ("model.log", "data"):
        with (source / name).open("wb") as file:
            file.truncate(6 * 1024**3)
    layout = plan_layout(source, exclude_dirs=["data"])
    assert pack_workspace(layout, tmp_path / "out.tar").file_count == 2


def test_linked_content_counts_where_it_is_packed(source: Path, tmp_path: Path) -> None:
    (tmp_path / "big").write_bytes(bytes(50_000))
    (source / "link").symlink_to(tmp_path / "big")
    with pytest.raises(WorkspaceError, match="'link'"):
        pack_workspace(plan_layout(source, workspace_root="."), tmp_path / "o", max_bytes=40_000)


def test_the_limit_holds_for_the_finished_archive_too(source: Path, tmp_path: Path) -> None:
    layout = plan_layout(source)
    with pytest.raises(WorkspaceError, match="at most"):
        pack_workspace(layout, tmp_path / "out.tar", max_bytes=10_239)
    assert [path.name for path in tmp_path.iterdir()] == ["s"]
    packed = pack_workspace(layout, tmp_path / "out.tar", max_bytes=10_240)
    assert packed.size_bytes == 10_240


def test_the_number_of_files_is_limited(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive, "MAX_WORKSPACE_ENTRIES", 1)
    with pytest.raises(WorkspaceError, match="2 files; 1 are allowed"):
        pack_workspace(plan_layout(source), tmp_path / "out.tar")


def test_the_limit_is_five_gibibytes() -> None:
    assert MAX_WORKSPACE_BYTES == 5 * 1024**3
    assert [format_bytes(n) for n in (0, 1023, 2048, 3 * 1024**4)] == [
        "0 bytes",
        "1023 bytes",
        "2.00 KiB",
        "3.00 TiB",
    ]


@pytest.mark.parametrize("name", ["a", "sub"])
def test_an_unreadable_entry_is_named(source: Path, name: str) -> None:
    open_to_all(source)
    target = source.parent / "out"
    target.mkdir()
    target.chmod(0o777)
    (source / name).chmod(0)
    try:
        with (
            without_privileges(),
            pytest.raises(WorkspaceError, match="Permission denied") as caught,
        ):
            pack_workspace(plan_layout(source), target / "out.tar")
    finally:
        (source / name).chmod(0o755)
    assert caught.value.path == str(source / name)
    assert list(target.iterdir()) == []


@pytest.mark.parametrize("change", ["grow", "shrink", "touch", "replace", "vanish"])
def test_a_file_that_is_no_longer_what_was_collected_is_refused(source: Path, change: str) -> None:
    entries = collect_entries(plan_layout(source)).entries
    path = source / "a"
    if change == "touch":
        os.utime(path, (5, 5))
    elif change == "replace":
        state = path.stat()
        (source / "new").write_text("2")
        os.utime(source / "new", ns=(state.st_atime_ns, state.st_mtime_ns))
        (source / "new").replace(path)
    elif change == "vanish":
        path.unlink()
    else:
        path.write_text("longer" if change == "grow" else "")
    with pytest.raises(WorkspaceError, match="while the workspace was packed") as caught:
        write_archive(entries, io.BytesIO())
    assert caught.value.path == str(path)


@pytest.mark.parametrize("size", [0, 200_000_000])
def test_a_file_that_changes_while_it_is_read_is_refused(source: Path, size: int) -> None:
    class Meddler(io.BytesIO):
        def write(self, data: object, /) -> int:
            os.truncate(source / "a", size)
            return 0

    with (source / "a").open("wb") as file:
        file.truncate(100_000_000)
    entries = collect_entries(plan_layout(source)).entries
    with pytest.raises(WorkspaceError, match=r"'.*/a' changed while"):
        write_archive(entries, Meddler())


def test_a_failure_leaves_an_older_archive_as_it_was(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "out.tar"
    target.write_text("older")
    with pytest.raises(WorkspaceError):
        pack_workspace(plan_layout(source), target, max_bytes=5_000)
    assert target.read_text() == "older"
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize("target", ["absent/out.tar", "s"])
def test_a_target_that_cannot_be_written_is_named(
    source: Path, tmp_path: Path, target: str
) -> None:
    with pytest.raises(WorkspaceError, match="cannot be written") as caught:
        pack_workspace(plan_layout(source), tmp_path / target)
    assert caught.value.path == str(tmp_path / target)
    assert [path.name for path in tmp_path.iterdir()] == ["s"]


def test_a_full_disk_is_not_blamed_on_the_user_s_file(source: Path) -> None:
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("no /dev/full here")
    from prefect_bt.workspace.archive import _HashingWriter  # pyright: ignore[reportPrivateUsage]

    with full.open("wb", buffering=0) as device, pytest.raises(WorkspaceError) as caught:
        entries = collect_entries(plan_layout(source)).entries
        write_archive(entries, _HashingWriter(device, Path("x.tar")))  # pyright: ignore
    assert "'x.tar' cannot be written: No space left" in str(caught.value)
