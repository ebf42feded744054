"""Check that an archive is unpacked completely or not at all, whatever its dialect."""

from __future__ import annotations

import io
import os
import stat
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import BinaryIO, cast

import pytest

from prefect_bt.errors import WorkspaceError
from prefect_bt.workspace.unpack import unpack_workspace

from .conftest import MakeTar


def info(
    name: str, kind: bytes = tarfile.REGTYPE, link: str = "", mode: int = 0o644
) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.linkname, member.mode = kind, link, mode
    return member


@pytest.mark.parametrize("mode", ["w:gz", "w:bz2", "w:xz"])
def test_a_compressed_archive_is_refused(tmp_path: Path, make_tar: MakeTar, mode: str) -> None:
    with pytest.raises(WorkspaceError, match="not a tar"):
        unpack_workspace(make_tar(("a/b", b"1"), mode=mode), tmp_path / "t")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("format", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT])
def test_every_tar_dialect_is_read(tmp_path: Path, format: int) -> None:
    stream = io.BytesIO()
    name = "/".join(["d" * 60, "e" * 60, "f" * 60])
    with tarfile.open(fileobj=stream, mode="w:", format=format) as tar:
        tar.addfile(info(name))
    stream.seek(0)
    unpack_workspace(stream, tmp_path / "t")
    assert (tmp_path / "t" / name).is_file()


def test_a_path_and_a_stream_that_cannot_seek_are_both_read(
    tmp_path: Path, make_tar: MakeTar
) -> None:
    class Dribble:
        """A socket: short reads, no seek, no name."""

        def __init__(self, under: BinaryIO) -> None:
            self._under = under

        def read(self, size: int = -1) -> bytes:
            return self._under.read(min(size, 7) if size > 0 else size)

    data = make_tar(("a", b"x" * 5000)).getvalue()
    (tmp_path / "w.tar").write_bytes(data)
    unpack_workspace(tmp_path / "w.tar", tmp_path / "one")
    unpack_workspace(cast("BinaryIO", Dribble(io.BytesIO(data))), tmp_path / "two")
    assert (tmp_path / "one/a").read_bytes() == (tmp_path / "two/a").read_bytes() == b"x" * 5000


def test_folders_links_and_modes_are_restored(tmp_path: Path, make_tar: MakeTar) -> None:
    archive = make_tar(
        (info("./", tarfile.DIRTYPE, mode=0o700), b""),
        (info("./empty", tarfile.DIRTYPE, mode=0o750), b""),
        (info("closed", tarfile.DIRTYPE, mode=0o500), b""),
        (info("closed/in", mode=0o444), b"1"),
        (info("run.sh", mode=0o777), b"2"),
        (info("a/link", tarfile.SYMTYPE, "../run.sh"), b""),
        (info("a/folder", tarfile.SYMTYPE, "../closed"), b""),
        (info("a/dangling", tarfile.SYMTYPE, "later"), b""),
        (info("twin", tarfile.LNKTYPE, "./run.sh"), b""),
    )
    old = os.umask(0o027)
    try:
        unpack_workspace(archive, tmp_path / "t")
    finally:
        os.umask(old)
    root = tmp_path / "t"
    modes = {
        name: stat.S_IMODE((root / name).stat().st_mode)
        for name in ("", "empty", "closed", "closed/in", "run.sh", "a")
    }
    assert modes == {
        "": 0o750,
        "empty": 0o750,
        "closed": 0o700,
        "closed/in": 0o444,
        "run.sh": 0o777,
        "a": 0o750,
    }
    assert str((root / "a/link").readlink()) == "../run.sh"
    assert (root / "a/folder/in").read_bytes() == b"1"
    assert (root / "twin").samefile(root / "run.sh")


def test_setuid_setgid_and_sticky_bits_are_dropped(tmp_path: Path, make_tar: MakeTar) -> None:
    archive = make_tar(
        (info("su", mode=0o6755), b""), (info("d", tarfile.DIRTYPE, mode=0o7755), b"")
    )
    unpack_workspace(archive, tmp_path / "t")
    for name in ("su", "d"):
        assert stat.S_IMODE((tmp_path / "t" / name).stat().st_mode) == 0o755


def test_times_are_those_of_the_unpacking(tmp_path: Path, make_tar: MakeTar) -> None:
    unpack_workspace(make_tar(("a", b"")), tmp_path / "t")
    assert (tmp_path / "t/a").stat().st_mtime > 1_000_000_000


def test_the_last_of_several_members_of_one_name_counts(tmp_path: Path, make_tar: MakeTar) -> None:
    archive = make_tar(
        ("a", b"old"),
        (info("b", tarfile.LNKTYPE, "a"), b""),
        ("./a", b"new"),
        (info("d", tarfile.DIRTYPE), b""),
        (info("d/", tarfile.DIRTYPE), b""),
    )
    unpack_workspace(archive, tmp_path / "t")
    assert (tmp_path / "t/a").read_bytes() == b"new"
    assert (tmp_path / "t/b").read_bytes() == b"old"


def test_a_sparse_member_is_refused(tmp_path: Path) -> None:
    with (tmp_path / "holes").open("wb") as file:
        file.truncate(8 * 1024**2)
        file.write(b"x")
    archive = tmp_path / "w.tar"
    subprocess.run(["tar", "-S", "-C", tmp_path, "-cf", archive, "holes"], check=True)
    assert archive.stat().st_size < 100_000
    with pytest.raises(WorkspaceError, match="'holes' is neither a file"):
        unpack_workspace(archive, tmp_path / "t")
    assert not (tmp_path / "t").exists()


def test_missing_parents_of_the_target_are_made(tmp_path: Path, make_tar: MakeTar) -> None:
    unpack_workspace(make_tar(("a", b"1")), tmp_path / "x/y/t")
    assert (tmp_path / "x/y/t/a").read_bytes() == b"1"


def test_an_existing_empty_target_is_filled_and_stays_itself(
    tmp_path: Path, make_tar: MakeTar
) -> None:
    target = tmp_path / "t"
    target.mkdir(mode=0o711)
    before = target.stat().st_ino
    unpack_workspace(make_tar(("a/b", b"1"), (".hidden", b"2")), target)
    assert sorted(path.name for path in target.iterdir()) == [".hidden", "a"]
    assert target.stat().st_ino == before
    assert [path.name for path in tmp_path.iterdir()] == ["t"]


@pytest.mark.parametrize("kind", ["full", "file", "dangling"])
def test_a_target_in_use_is_refused_and_untouched(
    tmp_path: Path, make_tar: MakeTar, kind: str
) -> None:
    target = tmp_path / "t"
    if kind == "full":
        target.mkdir()
        (target / "mine").write_text("1")
    elif kind == "file":
        target.write_text("mine")
    else:
        target.symlink_to("absent")
    with pytest.raises(WorkspaceError, match="not empty" if kind == "full" else "not a folder"):
        unpack_workspace(make_tar(("a", b"1")), target)
    assert [path.name for path in tmp_path.iterdir()] == ["t"]
    assert kind != "full" or [path.name for path in target.iterdir()] == ["mine"]


def test_a_missing_archive_is_refused(tmp_path: Path) -> None:
    with pytest.raises(WorkspaceError, match=r"absent\.tar' cannot be unpacked: No such file"):
        unpack_workspace(tmp_path / "absent.tar", tmp_path / "t")
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def good(make_tar: MakeTar) -> bytes:
    return make_tar(("a", b"1" * 3000), ("b", b"2"), ("c", b"")).getvalue()


CUTS = (0, 1, 100, 511, 512, 513, 2000, 3584, 3585, 4096, 4608, 5119, 5120)


@pytest.mark.parametrize("end", CUTS)
def test_an_archive_cut_short_is_refused(tmp_path: Path, good: bytes, end: int) -> None:
    with pytest.raises(WorkspaceError, match="corrupt"):
        unpack_workspace(io.BytesIO(good[:end]), tmp_path / "t")
    assert list(tmp_path.iterdir()) == []


def test_a_broken_header_in_the_middle_is_not_taken_for_the_end(
    tmp_path: Path, good: bytes
) -> None:
    data = bytearray(good)
    data[3584 + 512 - 300] ^= 0xFF
    with pytest.raises(WorkspaceError, match="corrupt"):
        unpack_workspace(io.BytesIO(bytes(data)), tmp_path / "t")


def test_a_file_that_is_no_tar_is_refused(tmp_path: Path) -> None:
    with pytest.raises(WorkspaceError, match="not a tar"):
        unpack_workspace(io.BytesIO(b"PK\x03\x04" + b"zip" * 1000), tmp_path / "t")


def test_an_archive_without_members_makes_an_empty_folder(
    tmp_path: Path, make_tar: MakeTar
) -> None:
    unpack_workspace(make_tar(), tmp_path / "t")
    assert list((tmp_path / "t").iterdir()) == []


def test_a_node_needs_only_the_standard_library() -> None:
    code = (
        "import sys, prefect_bt.workspace.unpack as u\n"
        "loaded = {name.partition('.')[0] for name in sys.modules}\n"
        "print(sorted(n for n in loaded if n in ('pathspec', 'pydantic', 'prefect')))"
    )
    answer = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert answer.stdout.strip() == "[]"
