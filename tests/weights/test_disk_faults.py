"""Mirroring on a disk that is full, read-only or without hard links."""

from __future__ import annotations

import errno
import os
import subprocess
from pathlib import Path

import pytest

from prefect_bt.errors import WeightsError
from prefect_bt.weights import NodeCache
from prefect_bt.weights.cache import eviction
from tests.filesystem.small_disk import small_disk

from .arranged import LARGE, Arranged, mirrored
from .conftest import tree


def test_a_disk_that_is_full_in_mid_file(
    source_here: Arranged, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(eviction, "free_bytes", lambda _: 1 << 40)  # it fills while we fetch
    with small_disk(tmp_path / "disk", "12m") as disk:
        for _ in range(2):  # nor does a first failure keep a second one waiting
            with pytest.raises(WeightsError, match="the disk is full") as caught:
                mirrored(disk)
            assert "Free space" in caught.value.next_step
            assert not list(disk.glob("weights/trees/*"))
        subprocess.run(["mount", "-o", "remount,size=100m", str(disk)], check=True)
        done = mirrored(disk)
        assert tree(done.folder) == source_here.files
        assert done.fetched_bytes < len(LARGE) - (4 << 20), "what had arrived is kept"


@pytest.mark.parametrize("at", ["nothing is there", "half of it is there"])
def test_a_disk_that_cannot_be_written(source_here: Arranged, tmp_path: Path, at: str) -> None:
    with small_disk(tmp_path / "disk", "100m") as disk:
        if at.startswith("half"):
            (disk / "weights").mkdir()
            source_here.files = {"small.txt": b"1"}
            mirrored(disk)
            source_here.files = {"small.txt": b"2"}
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        with pytest.raises(WeightsError, match="Read-only file system") as caught:
            mirrored(disk)
        assert "PREFECT_BT_STATE_DIR" in caught.value.next_step


def test_a_file_system_without_hard_links(
    source_here: Arranged, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))  # as vfat answers

    monkeypatch.setattr(os, "link", refuse)
    with pytest.raises(WeightsError, match="needs a file system with hard links") as caught:
        mirrored(tmp_path)
    assert "PREFECT_BT_STATE_DIR" in caught.value.next_step
    monkeypatch.undo()
    assert not list(tmp_path.glob("weights/trees/*"))


def test_what_a_killed_process_had_in_its_hands_is_not_published(
    source_here: Arranged, tmp_path: Path
) -> None:
    name = mirrored(tmp_path).name
    cache = NodeCache(tmp_path / "weights")
    cache.evict(name)
    cache.staging_path(name).mkdir(parents=True)
    (cache.staging_path(name) / "stream-1234").write_bytes(b"half")
    (cache.staging_path(name) / "link-1234").write_bytes(b"")
    (cache.staging_path(name) / "journal").write_bytes(b'7\n{"path": 3}\n["a"]\n\0\0')
    folder = mirrored(tmp_path).folder
    assert tree(folder) == source_here.files
    assert {path.name for path in folder.parent.iterdir()} == {
        *("files", "manifest.json", "summary.json", "used", "leases")
    }
