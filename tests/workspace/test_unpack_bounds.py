"""Archives that ask for memory or time without end are refused, in a process that has little."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from prefect_bt.errors import WorkspaceError
from prefect_bt.workspace import unpack
from prefect_bt.workspace.unpack import unpack_workspace

from .conftest import MakeTar

END = bytes(1024)
FEW_MEBIBYTES = 128
"""Address space of the process, Python and its libraries included."""

UNPACK = f"""
import resource, sys
from pathlib import Path
from prefect_bt.errors import WorkspaceError
from prefect_bt.workspace.unpack import unpack_workspace
resource.setrlimit(resource.RLIMIT_AS, ({FEW_MEBIBYTES} << 20,) * 2)
resource.setrlimit(resource.RLIMIT_CPU, (300, 300))
try:
    unpack_workspace(Path(sys.argv[1]), Path(sys.argv[2]))
except WorkspaceError as error:
    print("refused:", error)
else:
    print("unpacked")
"""


def unpack_with_little(archive: Path, target: Path) -> str:
    """Unpack in a process of little memory and five minutes of CPU time; return its output."""
    done = subprocess.run(
        [sys.executable, "-c", UNPACK, archive, target], check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.strip()


def header(kind: bytes, payload: bytes = b"", name: str = "x") -> bytes:
    info = tarfile.TarInfo(name)
    info.type, info.size = kind, len(payload)
    return info.tobuf(tarfile.USTAR_FORMAT) + payload + bytes(-len(payload) % 512)


def records(*pairs: tuple[str, str]) -> bytes:
    """Extended header records that say their own length."""
    told = b""
    for key, value in pairs:
        rest = f" {key}={value}\n".encode()
        size = len(rest) + len(str(len(rest) + 2))
        told += str(size).encode() + rest
    return told


def global_headers() -> Iterator[bytes]:
    for n in range(80):
        yield header(
            b"g", b"".join(b"30 %04d-%05d=aaaaaaaaaaaaaaa\n" % (n, m) for m in range(30_000))
        )
        yield header(b"0", name=f"f{n}")


def one_global_header() -> Iterator[bytes]:
    yield header(b"g", records(*[(f"k{n}", "") for n in range(100)]))
    yield header(b"0")


def large_global_values() -> Iterator[bytes]:
    for n in range(60):  # as text that has a wide character, four bytes a letter
        yield header(b"g", records((f"k{n}", "a" * 1_000_000 + "\N{ROCKET}")))
        yield header(b"0", name=f"f{n}")


def overlapping_records() -> Iterator[bytes]:
    # Each record says four bytes and its key goes to the end of the header: n bytes make n * n / 8.
    yield header(b"x", b"4 " * 250_000 + b"=")
    yield header(b"0")


def long_number() -> Iterator[bytes]:
    yield header(b"x", b"1" * 900_000)
    yield header(b"0")


def large_headers() -> Iterator[bytes]:
    for _ in range(3):
        yield header(b"x", records(("comment", "c" * 500_000)))
    yield header(b"0")


def sparse_map() -> Iterator[bytes]:
    first = bytearray(header(b"S"))
    first[482] = 1  # more of the map follows
    first[148:156] = b" " * 8
    first[148:156] = b"%06o\0 " % sum(first)
    yield bytes(first)
    more = b"".join(b"%011o\0" % n for n in range(42)) + b"\1" + bytes(7)
    for _ in range(10):
        yield more * 8192  # 40 MiB, 3.4 million pieces


def many_members() -> Iterator[bytes]:
    member = header(b"x", records(("comment", "c" * 40_000))) + header(b"5", name=".")
    for _ in range(60):
        yield member * 40


def deep_names() -> Iterator[bytes]:
    for n in range(300):
        yield header(b"x", records(("path", f"{n}/" + "d/" * 1900 + "f")))
        yield header(b"0")


HUNGRY: dict[str, tuple[Callable[[], Iterator[bytes]], str]] = {
    "global headers": (global_headers, "global headers have more than 64 records"),
    "one global header": (one_global_header, "global headers have more than 64 records"),
    "large global values": (large_global_values, "global headers are too large"),
    "overlapping records": (overlapping_records, "longer than it says"),
    "long number": (long_number, "an invalid number"),
    "large headers": (large_headers, "headers of one member are too large"),
    "sparse map": (sparse_map, "headers of one member are too large"),
    "deep names": (deep_names, "lies in more than 255 folders"),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", HUNGRY)
def test_what_asks_for_gigabytes_or_hours_is_refused(tmp_path: Path, case: str) -> None:
    parts, why = HUNGRY[case]
    with (tmp_path / "w.tar").open("wb") as archive:
        for part in parts():
            archive.write(part)
        archive.write(END)
    told = unpack_with_little(tmp_path / "w.tar", tmp_path / "t")
    assert told.startswith("refused:")
    assert why in told
    assert len(told) < 1000
    assert [path.name for path in tmp_path.iterdir()] == ["w.tar"]


@pytest.mark.slow
def test_members_take_no_memory(tmp_path: Path) -> None:
    with (tmp_path / "w.tar").open("wb") as archive:
        for part in many_members():
            archive.write(part)
        archive.write(END)
    assert unpack_with_little(tmp_path / "w.tar", tmp_path / "t") == "unpacked"


def link(name: str, target: str) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = tarfile.SYMTYPE, target
    return info, b""


def chain(length: int) -> list[tuple[tarfile.TarInfo, bytes]]:
    return [link(f"l{n}", f"l{n + 1}") for n in range(length)]


@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize("length", [41, 3000])
def test_a_chain_of_links_that_the_kernel_does_not_follow_is_refused(
    tmp_path: Path, make_tar: MakeTar, length: int, backwards: bool
) -> None:
    links = chain(length)[:: -1 if backwards else 1]
    with pytest.raises(WorkspaceError, match="goes through more than 40 links"):
        unpack_workspace(make_tar((f"l{length}", b"1"), *links), tmp_path / "t")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("backwards", [False, True])
def test_a_chain_of_links_that_the_kernel_follows_is_kept(
    tmp_path: Path, make_tar: MakeTar, backwards: bool
) -> None:
    links = chain(40)[:: -1 if backwards else 1]
    unpack_workspace(make_tar(("l40", b"1"), *links), tmp_path / "t")
    assert (tmp_path / "t/l0").read_bytes() == b"1"


def test_a_chain_that_ends_outside_is_refused(tmp_path: Path, make_tar: MakeTar) -> None:
    links = [link("d/e/up", ".."), link("a", "b"), link("b", "d/e/up/up2"), link("d/up2", "../..")]
    with pytest.raises(WorkspaceError, match="leads outside"):
        unpack_workspace(make_tar(("d/e/x", b""), *links), tmp_path / "t")


def test_links_that_double_at_each_step_end(tmp_path: Path, make_tar: MakeTar) -> None:
    doubling = [link("l0", "d")]
    doubling += [link(f"l{n + 1}", f"l{n}/../l{n}") for n in range(64)]
    with pytest.raises(WorkspaceError, match="through another link"):
        unpack_workspace(make_tar(("d/x", b""), *doubling), tmp_path / "t")


def test_a_target_of_many_parts_is_refused(tmp_path: Path, make_tar: MakeTar) -> None:
    with pytest.raises(WorkspaceError, match="target of more than 256 parts"):
        unpack_workspace(make_tar(link("l", "a/" * 1000)), tmp_path / "t")


def test_links_whose_names_fill_the_memory_are_refused(
    tmp_path: Path, make_tar: MakeTar, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("prefect_bt.workspace.member_writer.MAX_LINK_BYTES", 10_000)
    unpack_workspace(make_tar(*[link(f"{n}", "x") for n in range(20)]), tmp_path / "few")
    with pytest.raises(WorkspaceError, match="is one link too many"):
        unpack_workspace(make_tar(*[link(f"{n}", "x" * 200) for n in range(30)]), tmp_path / "t")


def test_a_link_that_was_replaced_is_no_link_any_more(tmp_path: Path, make_tar: MakeTar) -> None:
    links = [link("a/top", ".."), link("out", "a/top/../evil")]
    unpack_workspace(make_tar(("a/x", b""), *links, ("out", b"file")), tmp_path / "t")
    assert (tmp_path / "t/out").read_bytes() == b"file"


def test_folders_are_known_again_among_many(tmp_path: Path, make_tar: MakeTar) -> None:
    names = [f"{top}/b/{n}/f" for n in range(5) for top in "xyz"]
    unpack_workspace(make_tar(*[(name, b"1") for name in names]), tmp_path / "t")
    assert all((tmp_path / "t" / name).is_file() for name in names)


def test_folders_that_names_imply_count(
    tmp_path: Path, make_tar: MakeTar, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unpack, "MAX_WORKSPACE_ENTRIES", 20)
    deep = [("/".join([str(n), *"abcdefg", "f"]), b"") for n in range(4)]
    unpack_workspace(make_tar(*deep[:2]), tmp_path / "few")
    with pytest.raises(WorkspaceError, match="more than 20 files and folders"):
        unpack_workspace(make_tar(*deep), tmp_path / "t")


def test_the_deepest_name_is_unpacked(tmp_path: Path, make_tar: MakeTar) -> None:
    name = "/".join(["d"] * 256)
    unpack_workspace(make_tar((name, b"1"), (f"{name[:-1]}e", b"2")), tmp_path / "t")
    assert Path(os.fspath(tmp_path / "t" / name)).read_bytes() == b"1"
