"""What the directory watcher knows must be what a look at everything finds."""

import os
import random
import shutil
import time

import pytest

from prefect_bt.checkpoints.volume_links import Volumes
from prefect_bt.checkpoints.watch import watcher
from prefect_bt.checkpoints.watch.grouping import group_by_checkpoint
from prefect_bt.checkpoints.watch.inotify import OVERFLOW_EVENT, Inotify
from prefect_bt.checkpoints.watch.scanner import scan
from prefect_bt.checkpoints.watch.watcher import DirectoryWatcher

NAMES = ["a", "b.log", "config.json", "model.safetensors", "tmp-x", "checkpoint-1", "v0", "x.tmp"]


def volumes(root):
    """Return a checkpoint directory, and a volume beside it that links may lead to."""
    outside = root.parent / "outside"
    return Volumes(root, [(str(outside), outside)])


@pytest.fixture(params=[True, False], ids=["hints", "polling"])
def watched(request, tmp_path):
    root = tmp_path / "ckpts"
    root.mkdir()
    directory = DirectoryWatcher(volumes(root), poll_interval=0.01, use_inotify=request.param)
    directory.refresh()
    yield root, directory
    directory.close()


def change_something(rng, root):
    folders = [root, *(path for path in root.rglob("*") if path.is_dir() and not path.is_symlink())]
    folder = rng.choice(folders)
    target = folder / rng.choice(NAMES)
    action = rng.randrange(8)
    if action < 4 and not target.is_dir():
        target.write_bytes(os.urandom(rng.randrange(50)))
    elif action == 4 and not target.exists() and len(target.parts) - len(root.parts) < 4:
        target.mkdir()
    elif action == 5 and target.is_dir() and not target.is_symlink():
        shutil.rmtree(target)
    elif action == 5 and target.exists():
        target.unlink()
    elif action == 6 and target.exists():
        other = rng.choice(folders) / rng.choice(NAMES)
        if not other.exists() and target not in other.parents:
            target.rename(other)
    elif action == 7 and target.exists():
        os.utime(target, (rng.randrange(9), 5))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_the_same_as_a_look_at_everything(watched, seed):
    root, directory = watched
    rng = random.Random(seed)
    for _ in range(60):
        for _ in range(rng.randrange(1, 12)):
            change_something(rng, root)
        assert directory.refresh() == group_by_checkpoint(scan(Volumes(root)))
        assert directory.files == scan(Volumes(root))


def test_what_did_not_change_stays_the_same_object(watched):
    root, directory = watched
    for name in ("checkpoint-1", "checkpoint-2"):
        (root / name).mkdir()
        (root / name / "w").write_bytes(b"1")
    before = dict(directory.refresh())
    (root / "checkpoint-2" / "w").write_bytes(b"22")
    after = directory.refresh()
    assert after["checkpoint-1"] is before["checkpoint-1"]
    assert after["checkpoint-2"] != before["checkpoint-2"]
    assert before["checkpoint-2"].files["w"].size == 1


def test_a_change_without_an_event_of_the_kernel_is_found(watched):
    root, directory = watched
    (root / "target").write_bytes(b"1")
    outside = root.parent / "outside/file"
    outside.parent.mkdir()
    outside.write_bytes(b"1")
    (root / "best").mkdir()
    (root / "best/link").symlink_to(outside)
    found = directory.refresh()["best"]
    assert directory.is_unchanged(found)
    outside.write_bytes(b"22")
    assert not directory.is_unchanged(found)
    assert directory.checkpoints["best"].files["link"].size == 2


def test_a_folder_that_is_made_later(tmp_path):
    directory = DirectoryWatcher(Volumes(tmp_path / "later"), poll_interval=0.01)
    assert directory.refresh() == {}
    (tmp_path / "later/a").mkdir(parents=True)
    (tmp_path / "later/a/w").write_bytes(b"1")
    deadline = time.monotonic() + 200
    while "a" not in directory.refresh():
        assert time.monotonic() < deadline
        directory.wait_for_change(0.05)
    (tmp_path / "later/a/x").write_bytes(b"1")
    assert directory.wait_for_change(30) or directory.wait_for_change(30)
    assert set(directory.refresh()["a"].files) == {"w", "x"}
    directory.close()


def test_too_many_folders_for_this_user_is_polling(tmp_path, monkeypatch):
    def refuse(self, folder, descriptor):
        raise OSError(28, "No space left on device", folder)

    monkeypatch.setattr(Inotify, "add_watch", refuse)
    directory = DirectoryWatcher(Volumes(tmp_path), poll_interval=0.01)
    directory.refresh()
    (tmp_path / "a").mkdir()
    (tmp_path / "a/w").write_bytes(b"1")
    assert set(directory.refresh()) == {"a"}
    directory.close()


def test_a_queue_that_overflowed_is_a_look_at_everything(watched, monkeypatch):
    root, directory = watched
    (root / "a").write_bytes(b"1")
    monkeypatch.setattr(Inotify, "read_events", lambda self: {OVERFLOW_EVENT})
    assert set(directory.refresh()) == {"."}


def test_waiting_ends_when_something_happens(tmp_path):
    directory = DirectoryWatcher(Volumes(tmp_path))
    directory.refresh()
    time.sleep(watcher._COALESCE)
    assert not directory.wait_for_change(0.05)
    (tmp_path / "a").write_bytes(b"1")
    assert directory.wait_for_change(30)
    directory.close()


def test_lost_files_are_reported_once(watched):
    root, directory = watched
    (root / "a").write_bytes(b"1")
    directory.refresh()
    assert not directory.has_removed_files()
    (root / "a").unlink()
    directory.refresh()
    assert directory.has_removed_files()
    assert not directory.has_removed_files()
