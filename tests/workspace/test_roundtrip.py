"""Any folder comes back as it was; any damaged archive is refused or comes back whole."""

from __future__ import annotations

import io
import os
import stat
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prefect_bt.errors import WorkspaceError
from prefect_bt.workspace.archive import pack_workspace
from prefect_bt.workspace.roots import plan_layout
from prefect_bt.workspace.unpack import unpack_workspace

pytestmark = [pytest.mark.slow]

Files = dict[tuple[str, ...], tuple[bytes, int]]

_raw = st.binary(min_size=1, max_size=30).filter(lambda raw: not set(raw) & {0, ord("/")})
_text = st.text(min_size=1, max_size=12).filter(
    lambda text: not set(text) & {"\0", "/"} and not any(0xD800 <= ord(c) <= 0xDFFF for c in text)
)
_part = st.one_of(_raw.map(os.fsdecode), _text, st.just("n" * 200)).filter(
    lambda part: part not in (".", "..", ".truss_ignore") and len(os.fsencode(part)) < 250
)
_name = st.lists(_part, min_size=1, max_size=4).map(tuple)
_content = st.tuples(st.binary(max_size=2000), st.integers(0o400, 0o777).map(lambda m: m | 0o400))


def _without_conflicts(files: Files) -> Files:
    """Drop files whose name is a folder of another."""
    folders = {name[:end] for name in files for end in range(1, len(name))}
    return {name: value for name, value in files.items() if name not in folders}


_files = st.dictionaries(_name, _content, min_size=1, max_size=8).map(_without_conflicts)


def write(root: Path, files: Files) -> None:
    for name, (content, mode) in files.items():
        path = root.joinpath(*name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        path.chmod(mode)


def read(root: Path) -> Files:
    return {
        path.relative_to(root).parts: (path.read_bytes(), stat.S_IMODE(path.stat().st_mode))
        for path in root.rglob("*")
        if path.is_file()
    }


@settings(max_examples=90, deadline=None)
@given(files=_files)
def test_pack_then_unpack_gives_the_same_files(files: Files) -> None:
    with tempfile.TemporaryDirectory() as name:
        here = Path(name)
        write(here / "s", files)
        (here / "s/.truss_ignore").write_text("")
        one = pack_workspace(plan_layout(here / "s"), here / "1.tar")
        unpack_workspace(here / "1.tar", here / "t")
        two = pack_workspace(plan_layout(here / "t"), here / "2.tar")
        unpacked = read(here / "t")
        del unpacked[".truss_ignore",]
        assert unpacked == files
        assert one.file_count == len(files) + 1
        assert one.sha256 == two.sha256


def _sample() -> bytes:
    with tempfile.TemporaryDirectory() as name:
        here = Path(name)
        write(here / "s", {("a", "b"): (b"1" * 700, 0o644), ("é" * 90, "x"): (b"2", 0o755)})
        (here / "s/link").symlink_to("a/b")
        pack_workspace(plan_layout(here / "s"), here / "w.tar")
        return (here / "w.tar").read_bytes()


SAMPLE = _sample()
_edit = st.tuples(st.integers(0, 5000), st.binary(min_size=1, max_size=12))


@settings(max_examples=600, deadline=None)
@given(edits=st.lists(_edit, min_size=1, max_size=4))
def test_a_damaged_archive_is_refused_or_unpacked_inside(edits: list[tuple[int, bytes]]) -> None:
    data = bytearray(SAMPLE)
    for offset, patch in edits:
        data[offset : offset + len(patch)] = patch
    with tempfile.TemporaryDirectory() as name:
        here = Path(name)
        try:
            unpack_workspace(io.BytesIO(bytes(data)), here / "t")
        except WorkspaceError:
            assert list(here.iterdir()) == []
        else:
            assert [path.name for path in here.iterdir()] == ["t"]


@settings(max_examples=60, deadline=None)
@given(end=st.integers(0, len(SAMPLE.rstrip(b"\0"))))
def test_an_archive_cut_anywhere_before_its_end_is_refused(end: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        try:
            unpack_workspace(io.BytesIO(SAMPLE[:end]), Path(name) / "t")
        except WorkspaceError:
            assert list(Path(name).iterdir()) == []
        else:
            raise AssertionError("accepted")
