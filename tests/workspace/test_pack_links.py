"""Check links in a folder packed directly and in a gathered workspace."""

from __future__ import annotations

import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from prefect_bt.errors import WorkspaceError
from prefect_bt.workspace.archive import pack_workspace
from prefect_bt.workspace.roots import plan_layout
from prefect_bt.workspace.unpack import unpack_workspace

from .conftest import MakeTree

Pack = Callable[..., dict[str, str]]


@pytest.fixture
def source(tmp_path: Path, make_tree: MakeTree) -> Path:
    return make_tree(tmp_path / "s", {"real.txt": "real", "sub/deep.txt": "deep"})


@pytest.fixture
def pack(tmp_path: Path, source: Path) -> Pack:
    """Pack `source` and describe each member: "-> target" for a link, else its content.

    Every archive is unpacked as well, so that no link is kept which a node would refuse.
    """

    def run(*, gathered: bool = False) -> dict[str, str]:
        target = tmp_path / "out.tar"
        pack_workspace(plan_layout(source, workspace_root="." if gathered else None), target)
        unpack_workspace(target, tmp_path / "unpacked")
        found: dict[str, str] = {}
        with tarfile.open(target) as tar:
            for member in tar:
                content = tar.extractfile(member) if member.isreg() else None
                found[member.name] = content.read().decode() if content else f"-> {member.linkname}"
                assert (tmp_path / "unpacked" / member.name).is_file()
        return found

    return run


PLAIN = {"real.txt": "real", "sub/deep.txt": "deep"}


def test_direct_keeps_a_link_to_a_file(source: Path, pack: Pack) -> None:
    (source / "link").symlink_to("real.txt")
    (source / "sub/up").symlink_to("../real.txt")
    (source / "chain").symlink_to("link")
    assert pack() == {
        **PLAIN,
        "link": "-> real.txt",
        "sub/up": "-> ../real.txt",
        "chain": "-> link",
    }


def test_gathered_packs_the_content_behind_a_link(source: Path, pack: Pack) -> None:
    (source / "link").symlink_to("real.txt")
    (source / "chain").symlink_to("link")
    assert pack(gathered=True) == {**PLAIN, "link": "real", "chain": "real"}


def test_direct_rewrites_an_absolute_link_into_the_folder_as_relative(
    source: Path, pack: Pack
) -> None:
    (source / "sub/link").symlink_to(source / "real.txt")
    assert pack() == {**PLAIN, "sub/link": "-> ../real.txt"}


def test_direct_packs_the_content_where_the_target_stays_behind(
    source: Path, pack: Pack, make_tree: MakeTree
) -> None:
    make_tree(source.parent, {"outside.txt": "outside"})
    make_tree(source, {"lib/ignored.txt": "ignored"})
    (source / "out").symlink_to("../outside.txt")
    (source / "into").symlink_to("lib/ignored.txt")
    assert pack() == {**PLAIN, "out": "outside", "into": "ignored"}


def test_direct_points_a_link_through_a_dropped_folder_link_at_the_real_file(
    source: Path, pack: Pack
) -> None:
    (source / "alias").symlink_to("sub")
    (source / "link").symlink_to("alias/deep.txt")
    (source / "round").symlink_to("sub/../real.txt")
    assert pack() == {**PLAIN, "link": "-> sub/deep.txt", "round": "-> real.txt"}


def test_direct_drops_a_link_to_a_folder_with_a_note(source: Path, tmp_path: Path) -> None:
    (source / "alias").symlink_to("sub")
    packed = pack_workspace(plan_layout(source), tmp_path / "out.tar")
    assert packed.file_count == 2
    assert packed.skipped == ("'alias' is a link to a folder",)


def test_gathered_packs_the_content_of_a_linked_folder(
    source: Path, pack: Pack, tmp_path: Path, make_tree: MakeTree
) -> None:
    make_tree(tmp_path / "big", {"x/y": "far", "lib/z": "ignored"})
    (source / "alias").symlink_to("sub")
    (source / "data").symlink_to(tmp_path / "big")
    assert pack(gathered=True) == {**PLAIN, "alias/deep.txt": "deep", "data/x/y": "far"}


@pytest.mark.parametrize("root", [None, "."])
@pytest.mark.parametrize("to", ["absent", "/absent/x", "broken"])
def test_a_broken_link_is_refused(source: Path, tmp_path: Path, root: str | None, to: str) -> None:
    (source / "broken").symlink_to(to)
    with pytest.raises(WorkspaceError, match=f"broken link.*{to}") as caught:
        pack_workspace(plan_layout(source, workspace_root=root), tmp_path / "out.tar")
    assert caught.value.path == str(source / "broken")
    assert not (tmp_path / "out.tar").exists()


@pytest.mark.parametrize("root", [None, "."])
def test_a_broken_link_that_is_ignored_is_no_error(
    source: Path, tmp_path: Path, root: str | None
) -> None:
    (source / ".venv").mkdir()
    (source / ".venv/python").symlink_to("/absent")
    (source / "old.log").symlink_to("/absent")
    layout = plan_layout(source, workspace_root=root)
    assert pack_workspace(layout, tmp_path / "out.tar").file_count == 2


@pytest.mark.parametrize("to", [".", "..", "../s/sub/.."])
def test_gathered_refuses_a_folder_that_contains_itself(
    source: Path, tmp_path: Path, to: str
) -> None:
    (source / "loop").symlink_to(to)
    with pytest.raises(WorkspaceError, match="contains itself through a link"):
        pack_workspace(plan_layout(source, workspace_root="."), tmp_path / "out.tar")


def test_direct_is_not_bothered_by_a_link_to_its_own_folder(source: Path, tmp_path: Path) -> None:
    (source / "loop").symlink_to(".")
    assert pack_workspace(plan_layout(source), tmp_path / "out.tar").file_count == 2


def test_a_source_folder_reached_through_a_link_is_packed(source: Path, tmp_path: Path) -> None:
    (tmp_path / "alias").symlink_to(source)
    (source / "link").symlink_to(tmp_path / "alias" / "real.txt")
    pack_workspace(plan_layout(tmp_path / "alias"), tmp_path / "out.tar")
    with tarfile.open(tmp_path / "out.tar") as tar:
        assert tar.getmember("link").linkname == "real.txt"
