"""Folders and archives made in one line, and an archive's members read back independently of us."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

import pytest

MakeTree = Callable[[Path, Mapping[str, str]], Path]
ReadMembers = Callable[[Path], dict[str, tarfile.TarInfo]]
MakeTar = Callable[..., io.BytesIO]


@pytest.fixture
def make_tree() -> MakeTree:
    """Write {relative name: text}; a name that ends in a slash makes an empty folder."""

    def make(root: Path, files: Mapping[str, str]) -> Path:
        root.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if name.endswith("/"):
                path.mkdir(exist_ok=True)
            else:
                path.write_text(text)
        return root

    return make


@pytest.fixture
def read_members() -> ReadMembers:
    def read(archive: Path) -> dict[str, tarfile.TarInfo]:
        with tarfile.open(archive, "r:") as tar:
            members = tar.getmembers()
        assert len({member.name for member in members}) == len(members)
        return {member.name: member for member in members}

    return read


@pytest.fixture
def make_tar() -> MakeTar:
    """A tar of (TarInfo or name, content) pairs, in `mode` ("w:gz" and so on for compression)."""

    def make(*members: tuple[tarfile.TarInfo | str, bytes], mode: str = "w:") -> io.BytesIO:
        stream = io.BytesIO()
        with cast("Any", tarfile.open)(fileobj=stream, mode=mode) as tar:
            for named, content in members:
                info = tarfile.TarInfo(named) if isinstance(named, str) else named
                if info.isreg():
                    info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
        stream.seek(0)
        return stream

    return make
