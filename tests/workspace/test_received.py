"""Archives that other programs packed: accepted exactly if a node can unpack them."""

from __future__ import annotations

import bz2
import hashlib
import io
import lzma
import os
import tarfile
import zipfile
from pathlib import Path

import pytest

from prefect_bt.errors import WorkspaceError
from prefect_bt.workspace.received import inspect_archive
from prefect_bt.workspace.unpack import unpack_workspace

from .conftest import MakeTar
from .test_unpack_hostile import HOSTILE, member

NOISE = os.urandom(100_000)


@pytest.mark.parametrize("mode", ["w:", "w:gz"])
def test_archive_plain_or_gzip_becomes_one_that_a_node_unpacks(
    make_tar: MakeTar, tmp_path: Path, mode: str
) -> None:
    path = tmp_path / "workspace.tgz"
    path.write_bytes(make_tar(("train.py", b"print()"), ("d/data", NOISE), mode=mode).getvalue())
    packed = inspect_archive(path)
    assert packed.file_count == 2
    assert packed.size_bytes == path.stat().st_size
    assert packed.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    assert list(tmp_path.iterdir()) == [path]
    unpack_workspace(path, tmp_path / "node")
    assert (tmp_path / "node/d/data").read_bytes() == NOISE


def test_archive_empty_is_accepted(tmp_path: Path) -> None:
    path = tmp_path / "workspace.tgz"
    path.write_bytes(bytes(10240))
    assert inspect_archive(path).file_count == 0


@pytest.mark.parametrize("case", HOSTILE)
def test_archive_that_a_node_refuses_is_refused(
    make_tar: MakeTar, tmp_path: Path, case: str
) -> None:
    members, name, why = HOSTILE[case]
    path = tmp_path / "workspace.tgz"
    path.write_bytes(make_tar(*members).getvalue())
    with pytest.raises(WorkspaceError, match=why) as caught:
        inspect_archive(path)
    assert caught.value.path == name
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("mode", ["w:", "w:gz"])
@pytest.mark.parametrize("cut", [0.5, 0.9])
def test_archive_cut_anywhere_is_refused(
    make_tar: MakeTar, tmp_path: Path, mode: str, cut: float
) -> None:
    whole = make_tar(("data", NOISE), ("more", NOISE), mode=mode).getvalue()
    path = tmp_path / "workspace.tgz"
    path.write_bytes(whole[: int(len(whole) * cut)])
    with pytest.raises(WorkspaceError, match="corrupt or not a tar"):
        inspect_archive(path)


@pytest.mark.parametrize("content", [b"", b"text", NOISE, b"\x1f\x8bnoise", b"BZh9noise"])
def test_file_that_is_no_archive_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "workspace.tgz"
    path.write_bytes(content)
    with pytest.raises(WorkspaceError, match="corrupt or not a tar"):
        inspect_archive(path)


def _zipped() -> bytes:
    with zipfile.ZipFile(stream := io.BytesIO(), "w") as archive:
        archive.writestr("train.py", NOISE)
    return stream.getvalue()


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (bz2.compress(NOISE), "bzip2"),
        (b"\x28\xb5\x2f\xfd" + NOISE, "zstd"),
        (b"PK\x05\x06" + bytes(18), "zip"),
        (lzma.compress(NOISE), "xz"),
        (_zipped(), "zip"),
    ],
)
def test_other_formats_are_named(tmp_path: Path, content: bytes, kind: str) -> None:
    path = tmp_path / "workspace.tgz"
    path.write_bytes(content)
    with pytest.raises(WorkspaceError, match=rf"a file of {kind}\..* tar or tar\.gz") as caught:
        inspect_archive(path)
    assert "corrupt" not in str(caught.value)


@pytest.mark.parametrize("kind", [tarfile.REGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE])
def test_name_with_a_backslash_is_refused(make_tar: MakeTar, tmp_path: Path, kind: bytes) -> None:
    path = tmp_path / "workspace.tgz"
    path.write_bytes(make_tar(member("src\\train.py", kind=kind, link="x")).getvalue())
    with pytest.raises(WorkspaceError, match=r"'src\\+train.py' has a backslash") as caught:
        inspect_archive(path)
    assert caught.value.path == "src\\train.py"


def test_archive_that_decompresses_to_too_much_is_refused(
    make_tar: MakeTar, tmp_path: Path
) -> None:
    path = tmp_path / "workspace.tgz"
    path.write_bytes(make_tar(("zeros", bytes(4_000_000)), mode="w:gz").getvalue())
    with pytest.raises(WorkspaceError, match="unpacks to more than"):
        inspect_archive(path, max_bytes=2_000_000)
    assert list(tmp_path.iterdir()) == [path]
