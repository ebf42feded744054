"""Check the members of the archive: their names, modes and order."""

from __future__ import annotations

import hashlib
import os
import shutil
import socket
import stat
import tarfile
import time
from pathlib import Path
from typing import Any

import pytest

from prefect_bt.errors import WorkspaceError
from prefect_bt.workspace.archive import pack_workspace
from prefect_bt.workspace.roots import plan_layout

from .conftest import MakeTree, ReadMembers


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "out.tar"


def test_files_are_packed_and_the_result_describes_them(
    tmp_path: Path, target: Path, make_tree: MakeTree, read_members: ReadMembers
) -> None:
    source = make_tree(tmp_path / "s", {"config.py": "x", "src/train.py": "yy", "empty/": ""})
    packed = pack_workspace(plan_layout(source), target)
    assert list(read_members(target)) == ["config.py", "src/train.py"]
    assert packed.path == target
    assert packed.sha256 == hashlib.sha256(target.read_bytes()).hexdigest()
    assert packed.size_bytes == target.stat().st_size
    assert packed.file_count == 2
    assert packed.skipped == ()


def test_the_archive_is_an_uncompressed_tar_of_anonymous_members(
    tmp_path: Path, target: Path, make_tree: MakeTree, read_members: ReadMembers
) -> None:
    source = make_tree(tmp_path / "s", {"a": "1"})
    pack_workspace(plan_layout(source), target)
    member = read_members(target)["a"]
    assert (member.mtime, member.uid, member.gid, member.uname, member.gname) == (0, 0, 0, "", "")


def test_mode_bits_are_kept(
    tmp_path: Path, target: Path, make_tree: MakeTree, read_members: ReadMembers
) -> None:
    source = make_tree(tmp_path / "s", {"run.sh": "", "plain": "", "open": ""})
    for name, mode in {"run.sh": 0o755, "plain": 0o640, "open": 0o666}.items():
        (source / name).chmod(mode)
    pack_workspace(plan_layout(source), target)
    modes = {name: member.mode for name, member in read_members(target).items()}
    assert modes == {"run.sh": 0o755, "plain": 0o640, "open": 0o666}


def test_two_packs_at_different_places_and_times_are_the_same_bytes(
    tmp_path: Path, make_tree: MakeTree
) -> None:
    files = {"b": "1", "a/z": "2", "a.txt": "3", "é/ü": "4", "n" * 120 + "/" + "m" * 120: "5"}
    one = make_tree(tmp_path / "one", files)
    two = make_tree(tmp_path / "far/two", dict(reversed(files.items())))
    for path in (one, two):
        (path / "link").symlink_to("a/z")
    os.utime(two / "b", (1, 1))
    first = pack_workspace(plan_layout(one), tmp_path / "1.tar")
    time.sleep(0.01)
    second = pack_workspace(plan_layout(two), tmp_path / "2.tar")
    assert first.sha256 == second.sha256


def test_a_gathered_layout_of_plain_files_is_the_same_bytes_as_a_direct_one(
    tmp_path: Path, make_tree: MakeTree
) -> None:
    source = make_tree(tmp_path / "s", {"config.py": "", "src/a.py": "1"})
    direct = pack_workspace(plan_layout(source), tmp_path / "1.tar")
    gathered = pack_workspace(plan_layout(source, workspace_root="."), tmp_path / "2.tar")
    assert direct.sha256 == gathered.sha256


OUTSIDE = ("else/shared/util.py", "else/shared/data/z", "else/data/new")
"""Files beside the repository."""
LAYOUTS: dict[str, tuple[dict[str, str], str, dict[str, Any], list[str]]] = {
    "root entries and external folders side by side": (
        dict.fromkeys(("train/config.py", "data/x", "sub/data/y"), ""),
        "train",
        {
            "workspace_root": "..",
            "external_dirs": ["../../else/shared"],
            "exclude_dirs": ["../data"],
        },
        ["shared/data/z", "shared/util.py", "sub/data/y", "train/config.py"],
    ),
    "an external folder in place of an excluded one": (
        dict.fromkeys(("config.py", "data/old"), ""),
        ".",
        {"external_dirs": ["../else/data"], "exclude_dirs": ["data"]},
        ["config.py", "data/new"],
    ),
    "the ignore file of the archive's root counts, and is packed": (
        {
            **{".truss_ignore": "*.bin", "a.bin": "", "lib/a.py": ""},
            **{"train/.truss_ignore": "lib", "train/lib/b.py": ""},
        },
        "train",
        {"workspace_root": ".."},
        [".truss_ignore", "lib/a.py", "train/.truss_ignore", "train/lib/b.py"],
    ),
    "an excluded ignore file does not count": (
        {".truss_ignore": "*.py", "a.py": "", "lib/x": ""},
        ".",
        {"exclude_dirs": [".truss_ignore"]},
        ["a.py"],
    ),
}
"""Files of a repository, the folder of the config, options of the workspace -> members."""


@pytest.mark.parametrize("name", LAYOUTS)
def test_the_members_of_a_layout(
    tmp_path: Path, target: Path, make_tree: MakeTree, read_members: ReadMembers, name: str
) -> None:
    files, folder, options, members = LAYOUTS[name]
    make_tree(tmp_path, dict.fromkeys(OUTSIDE, ""))
    pack_workspace(plan_layout(make_tree(tmp_path / "repo", files) / folder, **options), target)
    assert list(read_members(target)) == members


def test_ignored_entries_are_left_out_and_named(
    tmp_path: Path, target: Path, make_tree: MakeTree, read_members: ReadMembers
) -> None:
    source = make_tree(tmp_path / "s", {"config.py": "", "lib/a.py": "", "run.log": ""})
    packed = pack_workspace(plan_layout(source), target)
    assert list(read_members(target)) == ["config.py"]
    assert packed.skipped == (
        "'lib/' is ignored by the built-in list",
        "'run.log' is ignored by the built-in list",
    )


def test_an_ignored_external_folder_is_named(
    tmp_path: Path, target: Path, make_tree: MakeTree
) -> None:
    source = make_tree(tmp_path / "s", {"config.py": ""})
    other = make_tree(tmp_path / "else/lib", {"a.py": ""})
    packed = pack_workspace(plan_layout(source, external_dirs=[str(other)]), target)
    assert packed.skipped == ("'lib/' is ignored by the built-in list",)


def test_hard_links_are_packed_as_files(
    tmp_path: Path, target: Path, make_tree: MakeTree, read_members: ReadMembers
) -> None:
    source = make_tree(tmp_path / "s", {"a": "same"})
    (source / "b").hardlink_to(source / "a")
    pack_workspace(plan_layout(source), target)
    assert [member.isreg() for member in read_members(target).values()] == [True, True]


def test_sockets_fifos_and_devices_are_skipped_with_a_note(
    tmp_path: Path, target: Path, make_tree: MakeTree, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = make_tree(tmp_path / "s", {"a": "1"})
    os.mkfifo(source / "pipe")
    (source / "null").symlink_to("/dev/null")
    monkeypatch.chdir(source)  # a socket's path may have a hundred bytes only
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("sock")
        packed = pack_workspace(plan_layout(source), target)
    assert packed.file_count == 1
    assert packed.skipped == ("'null' is a device", "'pipe' is a fifo", "'sock' is a socket")


def test_names_that_are_not_unicode_survive(
    tmp_path: Path, target: Path, make_tree: MakeTree
) -> None:
    source = make_tree(tmp_path / "s", {"ünïcode 名前": "1"})
    odd = os.fsdecode(b"latin-\xe9.txt")
    (source / odd).write_text("2")
    assert pack_workspace(plan_layout(source), target).file_count == 2
    with tarfile.open(target, encoding="utf-8", errors="surrogateescape") as tar:
        assert set(tar.getnames()) == {"ünïcode 名前", odd}


@pytest.mark.parametrize(
    ("files", "why"),
    [({}, "holds no files"), ({"sub/": ""}, "holds no files"), ({"lib/a": ""}, "was skipped")],
)
def test_nothing_to_pack_is_refused(
    tmp_path: Path, target: Path, make_tree: MakeTree, files: dict[str, str], why: str
) -> None:
    source = make_tree(tmp_path / "s", files)
    with pytest.raises(WorkspaceError, match=f"nothing to pack.*{why}"):
        pack_workspace(plan_layout(source), target)
    assert not target.exists()


def test_a_deep_tree_is_packed(tmp_path: Path, target: Path) -> None:
    source = tmp_path / "s"
    source.mkdir()
    here = os.open(source, os.O_RDONLY)
    for _ in range(300):
        os.mkdir("d", dir_fd=here)
        here, above = os.open("d", os.O_RDONLY, dir_fd=here), here
        os.close(above)
    os.close(os.open("leaf", os.O_CREAT, dir_fd=here))
    os.close(here)
    assert pack_workspace(plan_layout(source), target).file_count == 1
    shutil.rmtree(source)


@pytest.mark.slow
def test_ten_thousand_files(
    tmp_path: Path, target: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "s"
    for folder in range(100):
        (source / f"d{folder}").mkdir(parents=True)
        for number in range(100):
            (source / f"d{folder}" / f"f{number}.txt").write_text("x")
    started = time.perf_counter()
    packed = pack_workspace(plan_layout(source), target)
    with capsys.disabled():
        print(f"\n10 000 files packed in {time.perf_counter() - started:.2f} s")
    assert packed.file_count == 10_000


def test_the_archive_is_private_and_replaces_an_older_one(
    tmp_path: Path, target: Path, make_tree: MakeTree
) -> None:
    source = make_tree(tmp_path / "s", {"a": "1"})
    target.write_text("older")
    pack_workspace(plan_layout(source), target)
    assert tarfile.is_tarfile(target)
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
