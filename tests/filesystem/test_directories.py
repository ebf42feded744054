"""Folders are listed while other processes remove them."""

from __future__ import annotations

import os
import shutil
import threading
from pathlib import Path

from prefect_bt.filesystem.directories import find_paths
from prefect_bt.filesystem.trees import find_files


def test_what_a_pattern_finds(tmp_path: Path) -> None:
    for name in ("b/lock", "a/lock", ".hidden/lock", "c/other"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).touch()
    (tmp_path / "file").touch()
    assert find_paths(tmp_path, "*/lock") == [tmp_path / f"{n}/lock" for n in (".hidden", "a", "b")]
    assert find_paths(tmp_path, "?/") == [tmp_path / name for name in "abc"]
    assert find_paths(tmp_path / "file", "*") == find_paths(tmp_path / "gone", "*") == []


def test_links_are_found_and_not_followed(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/secret").touch()
    inside = tmp_path / "inside"
    (inside / "deep").mkdir(parents=True)
    (inside / "deep/file").touch()
    (inside / "folder").symlink_to(tmp_path / "outside")
    (inside / "nowhere").symlink_to(tmp_path / "gone")
    found = {str(path.relative_to(inside)) for path in find_files(inside)}
    assert found == {"deep/file", "folder", "nowhere"}


def test_folders_that_come_and_go(tmp_path: Path) -> None:
    over = threading.Event()

    def come_and_go() -> None:
        while not over.is_set():
            (tmp_path / "job/attempt-0/rank-0").mkdir(parents=True)
            shutil.rmtree(tmp_path / "job")

    going = threading.Thread(target=come_and_go)
    going.start()
    try:
        for _ in range(1000):
            assert len(find_paths(tmp_path / "job", "attempt-*/rank-*")) <= 1
            assert list(find_files(tmp_path / "job")) == []
            os.sched_yield()
    finally:
        over.set()
        going.join()
