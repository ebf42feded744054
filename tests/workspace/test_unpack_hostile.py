"""Archives made to do harm: each is refused by name, and nothing is left anywhere."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest

from prefect_bt.errors import WorkspaceError
from prefect_bt.workspace import unpack
from prefect_bt.workspace.unpack import unpack_workspace

from .conftest import MakeTar

Member = tuple[tarfile.TarInfo, bytes]


def member(
    name: str, content: bytes = b"", *, kind: bytes = tarfile.REGTYPE, link: str = ""
) -> Member:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, link
    return info, content


def sym(name: str, to: str) -> Member:
    return member(name, kind=tarfile.SYMTYPE, link=to)


def hard(name: str, to: str) -> Member:
    return member(name, kind=tarfile.LNKTYPE, link=to)


HOSTILE: dict[str, tuple[list[Member], str, str]] = {
    "absolute name": ([member("/etc/evil")], "/etc/evil", "absolute"),
    "climbing name": ([member("../evil")], "../evil", r"climbs out"),
    "climbing name inside": ([member("a/../b")], "a/../b", r"climbs out"),
    "climbing folder": ([member("a/..", kind=tarfile.DIRTYPE)], "a/..", r"climbs out"),
    "no name": ([member(".")], ".", "workspace itself"),
    "absolute link": ([sym("l", "/etc/passwd")], "l", "leads outside.*'/etc/passwd'"),
    "climbing link": ([sym("a/l", "../../x")], "a/l", "leads outside"),
    "climbing link inside": ([sym("l", "a/../../x")], "l", "leads outside"),
    "link to the parent": ([sym("l", "..")], "l", "leads outside"),
    "empty link": ([sym("l", "")], "l", "leads outside"),
    "file through a link": (
        [member("d", kind=tarfile.DIRTYPE), sym("l", "d"), member("l/x", b"1")],
        "l/x",
        "written through a link",
    ),
    "folder through a link": (
        [sym("l", "d"), member("l/sub", kind=tarfile.DIRTYPE)],
        "l/sub",
        "written through a link",
    ),
    "folder in place of a link": (
        [sym("l", "d"), member("l", kind=tarfile.DIRTYPE)],
        "l",
        "written through a link",
    ),
    "link through a link": (
        [member("d", kind=tarfile.DIRTYPE), sym("l", "d"), sym("l/m", "x")],
        "l/m",
        "written through a link",
    ),
    "file below a file": ([member("f", b"1"), member("f/x")], "f/x", "link or a file"),
    "file in place of a folder": (
        [member("d/x"), member("d", b"1")],
        "d",
        "takes the name of a folder",
    ),
    "links that climb together": (
        [member("a/b/c/x"), sym("root", "a/b"), sym("up", "root/../../.."), member("z")],
        "up",
        "leads outside",
    ),
    "links that climb only when resolved": (
        [member("a/x"), sym("a/top", ".."), sym("out", "a/top/../..")],
        "out",
        "leads outside",
    ),
    "hard link outside": ([hard("h", "/etc/passwd")], "/etc/passwd", "absolute"),
    "hard link climbing": ([hard("h", "../x")], "../x", "climbs out"),
    "hard link to nothing": ([hard("h", "later"), member("later")], "h", "no earlier file"),
    "hard link to a link": ([member("x"), sym("l", "x"), hard("h", "l")], "h", "no earlier file"),
    "hard link to a folder": ([member("d/x"), hard("h", "d")], "h", "no earlier file"),
    "hard link through a link": (
        [member("d/x"), sym("l", "d"), hard("h", "l/x")],
        "h",
        "no earlier file",
    ),
    "fifo": ([member("p", kind=tarfile.FIFOTYPE)], "p", "neither a file"),
    "character device": ([member("c", kind=tarfile.CHRTYPE)], "c", "neither a file"),
    "block device": ([member("b", kind=tarfile.BLKTYPE)], "b", "neither a file"),
    "unknown type": ([member("u", kind=b"V")], "u", "neither a file"),
    "name too long": ([member("n" * 300)], "n" * 300, "File name too long"),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", HOSTILE)
@pytest.mark.parametrize("existing", [False, True])
def test_a_hostile_member_is_refused_by_name(
    tmp_path: Path, make_tar: MakeTar, case: str, existing: bool
) -> None:
    members, name, why = HOSTILE[case]
    target = tmp_path / "deep/er/t"
    target.parent.mkdir(parents=True)
    if existing:
        target.mkdir()
    with pytest.raises(WorkspaceError, match=why) as caught:
        unpack_workspace(make_tar(member("first", b"1"), *members), target)
    assert caught.value.path == name
    assert list(target.iterdir()) == [] if existing else not target.exists()
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["deep", "er", *["t"] * existing]


def test_a_link_whose_text_is_innocent_is_resolved_for_real(
    tmp_path: Path, make_tar: MakeTar
) -> None:
    """As text `a/top/../evil` is `a/evil`; through the link it is beside the workspace."""
    archive = make_tar(member("a/x"), sym("a/top", "../"), sym("out", "a/top/../evil"))
    with pytest.raises(WorkspaceError, match="leads outside") as caught:
        unpack_workspace(archive, tmp_path / "t")
    assert caught.value.path == "out"


def test_a_link_is_replaced_and_not_written_through(tmp_path: Path, make_tar: MakeTar) -> None:
    unpack_workspace(
        make_tar(member("x", b"keep"), sym("l", "x"), member("l", b"new")), tmp_path / "t"
    )
    assert (tmp_path / "t/x").read_bytes() == b"keep"
    assert (tmp_path / "t/l").read_bytes() == b"new"
    assert not (tmp_path / "t/l").is_symlink()


def test_links_in_a_circle_stay_inside(tmp_path: Path, make_tar: MakeTar) -> None:
    unpack_workspace(make_tar(sym("a", "b"), sym("b", "a")), tmp_path / "t")
    assert (tmp_path / "t/a").is_symlink()


def test_an_archive_is_stopped_at_the_limit(tmp_path: Path, make_tar: MakeTar) -> None:
    archive = make_tar(member("zeros", bytes(20 * 1024**2)))
    with pytest.raises(WorkspaceError, match=r"unpacks to more than the 10\.00 MiB"):
        unpack_workspace(archive, tmp_path / "t", max_bytes=10 * 1024**2)
    assert list(tmp_path.iterdir()) == []


def test_a_huge_number_of_members_is_refused(
    tmp_path: Path, make_tar: MakeTar, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unpack, "MAX_WORKSPACE_ENTRIES", 3)
    with pytest.raises(WorkspaceError, match="more than"):
        unpack_workspace(make_tar(*[member(f"f{n}") for n in range(4)]), tmp_path / "t")


def _raw_header(name: bytes, kind: bytes, size: bytes) -> bytes:
    info = tarfile.TarInfo(name.decode())
    info.type = kind
    block = bytearray(info.tobuf(tarfile.USTAR_FORMAT))
    block[124:136] = size
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


@pytest.mark.parametrize("kind", [b"0", b"x", b"g", b"L", b"K", b"S", b"V", b"5"])
@pytest.mark.parametrize(
    "size", [b"\xff" * 12, b"\xff" * 10 + b"\xfe\x00", b"77777777777\0", b"\x80" + b"\xff" * 11]
)
def test_impossible_sizes_end(tmp_path: Path, kind: bytes, size: bytes) -> None:
    data = _raw_header(b"a", kind, size) + bytes(2048)
    try:
        unpack_workspace(io.BytesIO(data), tmp_path / "t")
    except WorkspaceError:
        assert list(tmp_path.iterdir()) == []


def test_a_long_chain_of_extension_headers_is_refused(tmp_path: Path) -> None:
    data = _raw_header(b"x", b"x", b"00000000000\0") * 5000 + bytes(1024)
    with pytest.raises(WorkspaceError, match="corrupt"):
        unpack_workspace(io.BytesIO(data), tmp_path / "t")
    assert list(tmp_path.iterdir()) == []


def test_a_pax_header_cannot_smuggle_an_absolute_name(tmp_path: Path) -> None:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:", format=tarfile.PAX_FORMAT) as tar:
        info = tarfile.TarInfo("innocent")
        info.pax_headers = {"path": "/tmp/evil"}
        tar.addfile(info)
    stream.seek(0)
    with pytest.raises(WorkspaceError, match="absolute"):
        unpack_workspace(stream, tmp_path / "t")


def test_control_characters_in_a_name_are_spelled_out(tmp_path: Path, make_tar: MakeTar) -> None:
    with pytest.raises(WorkspaceError) as caught:
        unpack_workspace(make_tar(member("../\x1b[31m")), tmp_path / "t")
    assert "\x1b" not in str(caught.value)
