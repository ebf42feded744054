import hashlib
import os
import random
import resource
import shutil
import signal
import time
from dataclasses import replace

import pytest

from prefect_bt.checkpoints.committed.catalog import list_checkpoints
from prefect_bt.checkpoints.committed.download import download_files, file_matches, find_matching
from prefect_bt.checkpoints.committed.restore import (
    RestoreResult,
    RestoreTarget,
    load_checkpoints,
    restore_directory,
)
from prefect_bt.checkpoints.manifest import ManifestEntry
from prefect_bt.checkpoints.upload import transfer
from prefect_bt.errors import CheckpointError
from prefect_bt.object_store import open_store
from tests.checkpoints import folders
from tests.checkpoints.folders import JOB, PROJECT, flush
from tests.checkpoints.shelf import listed, loaded
from tests.forked import Forked


@pytest.fixture
def prepare(store, tmp_path):
    def run(directory, rank=0, targets=()):
        target = RestoreTarget(rank, directory, tmp_path / "aside", mounts=targets)
        return restore_directory(store, project_id=PROJECT, job_id=JOB, target=target)

    return run


def three(ckpts):
    folders.write(ckpts / "checkpoint-10", folders.hf_full(10))
    folders.write(ckpts / "v0/checkpoint-20", folders.hf_lora(20))
    folders.write(ckpts, {"train.log": b"line"})
    (ckpts / "checkpoint-10/README.md").write_bytes(b"#!")
    (ckpts / "checkpoint-10/README.md").chmod(0o755)


NAMES = (".", "checkpoint-10", "v0/checkpoint-20")


def test_a_first_attempt_has_nothing(prepare, ckpts):
    assert prepare(ckpts) == RestoreResult((), (), ())
    assert list(ckpts.iterdir()) == []


def test_a_fresh_node_gets_everything_back(prepare, store, ckpts, tmp_path):
    three(ckpts)
    folders.touch_back(ckpts / "checkpoint-10/config.json", 1000)
    flush(store, ckpts)
    fresh = tmp_path / "fresh"
    assert prepare(fresh) == RestoreResult((), NAMES, ())
    assert folders.contents(fresh) == folders.contents(ckpts)
    for path in ckpts.rglob("*"):
        there = fresh / path.relative_to(ckpts)
        assert there.stat().st_mode == path.stat().st_mode
        if path.is_file():
            assert there.stat().st_mtime_ns == path.stat().st_mtime_ns
    assert prepare(fresh) == RestoreResult(NAMES, (), ())
    assert not list(fresh.glob(".prefect*"))


def test_the_same_node_keeps_correct_files(prepare, store, ckpts):
    three(ckpts)
    flush(store, ckpts)
    inodes = {path: path.stat().st_ino for path in ckpts.rglob("*") if path.is_file()}
    assert prepare(ckpts) == RestoreResult(NAMES, (), ())
    assert {path: path.stat().st_ino for path in ckpts.rglob("*") if path.is_file()} == inodes


def test_half_written_ones_are_moved_out_of_the_way_and_kept(prepare, store, ckpts, tmp_path):
    three(ckpts)
    flush(store, ckpts)
    committed = folders.contents(ckpts)
    half = {"model.safetensors": b"half"}
    folders.write(ckpts / "checkpoint-30", half)
    folders.write(ckpts / "tmp-checkpoint-40", half)
    folders.write(ckpts, {"stray.txt": b"1"})
    folders.write(ckpts / "checkpoint-10", {"extra.tmp": b"1"})
    (ckpts / "empty/inner").mkdir(parents=True)
    prepared = prepare(ckpts)
    assert prepared.moved_aside == (
        *("checkpoint-10/extra.tmp", "checkpoint-30", "stray.txt", "tmp-checkpoint-40"),
    )
    assert folders.contents(ckpts) == committed
    assert not (ckpts / "empty").exists()
    aside = folders.contents(tmp_path / "aside")
    assert set(aside) == {
        *("checkpoint-10/extra.tmp", "checkpoint-30/model.safetensors", "stray.txt"),
        "tmp-checkpoint-40/model.safetensors",
    }
    # A second time, with the same names again: nothing set aside before is lost.
    folders.write(ckpts, {"stray.txt": b"2"})
    prepare(ckpts)
    assert (tmp_path / "aside/stray.txt").read_bytes() == b"1"
    assert (tmp_path / "aside/stray.txt.1").read_bytes() == b"2"


def test_same_size_and_time_prove_nothing(prepare, store, ckpts, tmp_path):
    three(ckpts)
    flush(store, ckpts)
    path = ckpts / "checkpoint-10/model.safetensors"
    committed, seen = path.read_bytes(), path.stat()
    path.write_bytes(b"\0" * len(committed))
    os.utime(path, ns=(seen.st_atime_ns, seen.st_mtime_ns))
    prepared = prepare(ckpts)
    assert prepared.restored == ("checkpoint-10",)
    assert path.read_bytes() == committed
    assert (tmp_path / "aside/checkpoint-10/model.safetensors").exists()


def test_the_newest_version_comes_back_and_the_rotated(prepare, store, ckpts):
    folders.write(ckpts / "best", {"a": b"old", "b": b"same"})
    folders.write(ckpts / "checkpoint-10", folders.hf_full(10))
    flush(store, ckpts)
    folders.write(ckpts / "best", {"a": b"new"})
    shutil.rmtree(ckpts / "checkpoint-10")
    flush(store, ckpts, attempt=2)
    shutil.rmtree(ckpts / "best")
    assert prepare(ckpts).restored == ("best", "checkpoint-10")
    assert (ckpts / "best/a").read_bytes() == b"new"
    assert (ckpts / "checkpoint-10/trainer_state.json").exists()


def test_folders_are_as_old_as_their_files(prepare, store, ckpts, tmp_path):
    folders.write(ckpts / "checkpoint-9", {"a": b"9"})
    folders.write(ckpts / "checkpoint-10", {"a": b"10"})
    folders.touch_back(ckpts / "checkpoint-9/a", 50)
    flush(store, ckpts)
    fresh = tmp_path / "fresh"
    prepare(fresh)
    newest = max(fresh.iterdir(), key=lambda path: path.stat().st_mtime)
    assert newest.name == "checkpoint-10"


def test_a_step_that_another_rank_did_not_commit_is_left_out(prepare, store, ckpts, tmp_path):
    other = tmp_path / "other"
    for rank, folder in enumerate((ckpts, other)):
        folders.write(folder / "checkpoint-10", {f"shard-{rank}.dat": b"10"})
        flush(store, folder, rank=rank, group_size=2)
    flush(store, ckpts, {"checkpoint-20/shard-0.dat": b"20"}, rank=0, group_size=2)
    restored = prepare(ckpts)
    assert (restored.unchanged, restored.moved_aside) == (("checkpoint-10",), ("checkpoint-20",))
    (left,) = restored.left
    assert (left.name, left.reason) == ("checkpoint-20", "rank 1 did not commit a part of it")
    assert prepare(other, rank=1).unchanged == ("checkpoint-10",)


def test_links_stay_when_they_show_what_was_committed(prepare, store, ckpts, tmp_path):
    folders.write(ckpts / "checkpoint-10", folders.hf_full(10))
    (ckpts / "last").symlink_to("checkpoint-10")
    flush(store, ckpts)
    assert prepare(ckpts).unchanged == ("checkpoint-10", "last")
    assert (ckpts / "last").is_symlink()
    # Retargeted to something that was not committed: copies of what was, and no write through it.
    folders.write(ckpts / "checkpoint-20", {"model.safetensors": b"half"})
    (ckpts / "last").unlink()
    (ckpts / "last").symlink_to("checkpoint-20")
    prepared = prepare(ckpts)
    assert prepared.unchanged == ("checkpoint-10",) and prepared.restored == ("last",)
    assert not (ckpts / "last").is_symlink()
    assert folders.contents(ckpts / "last") == folders.contents(ckpts / "checkpoint-10")
    assert (tmp_path / "aside/last").is_symlink()
    assert (tmp_path / "aside/checkpoint-20/model.safetensors").read_bytes() == b"half"


def test_a_link_out_of_the_directory_is_never_written_through(prepare, store, ckpts, tmp_path):
    outside = tmp_path / "outside"
    folders.write(outside, {"a": b"committed"})
    (ckpts / "best").symlink_to(outside)
    targets = ((str(outside), outside),)
    flush(store, ckpts, options=replace(folders.FAST, mounts=targets))
    assert prepare(ckpts, targets=targets).unchanged == ("best",)
    assert (ckpts / "best").is_symlink()
    (outside / "a").write_bytes(b"mine now!")
    prepare(ckpts, targets=targets)
    assert (outside / "a").read_bytes() == b"mine now!"
    assert (ckpts / "best/a").read_bytes() == b"committed"


def test_file_and_folder_changed_places(prepare, store, ckpts):
    flush(store, ckpts, {"a/b": b"1", "c": b"2"})
    committed = folders.contents(ckpts)
    shutil.rmtree(ckpts)
    folders.write(ckpts, {"a": b"file", "c/d": b"folder"})
    prepare(ckpts)
    assert folders.contents(ckpts) == committed


def test_the_next_uploader_reads_no_restored_file(prepare, store, ckpts, tmp_path, monkeypatch):
    three(ckpts)
    flush(store, ckpts)
    fresh = tmp_path / "fresh"
    prepare(fresh)
    reads = []
    monkeypatch.setattr(transfer, "read_digest", lambda source, *_: reads.append(source))
    for directory in (fresh, ckpts):
        status = flush(store, directory, attempt=2)
        assert (status.committed, status.uncommitted, reads) == ((), (), [])


def test_a_corrupt_object_is_refused(prepare, store, ckpts, tmp_path):
    flush(store, ckpts, {"a/x": b"111"})
    store.put(next(list_checkpoints(store, PROJECT, JOB)[0].files()).key, b"1x1")
    with pytest.raises(CheckpointError, match="not hold the bytes") as caught:
        prepare(tmp_path / "fresh")
    assert caught.value.path and caught.value.path.endswith("rank-0/a/x")
    assert not list((tmp_path / "fresh").rglob("x"))


@pytest.mark.slow
def test_killed_at_any_point_and_run_again(store, ckpts, tmp_path):
    random.seed(7)
    for step in range(1, 7):
        folders.write(ckpts / f"checkpoint-{step}", folders.hf_full(step, os.urandom(4), 400_000))
    flush(store, ckpts)
    committed = folders.contents(ckpts)
    node = tmp_path / "node"
    for number in range(6):
        folders.write(node / f"half-{number}", {"x": b"%d" % number})
    code = (
        "import sys; from pathlib import Path; from prefect_bt.object_store import open_store\n"
        "from prefect_bt.checkpoints.committed.restore import RestoreTarget\n"
        "from prefect_bt.checkpoints.committed.restore import restore_directory as p\n"
        "print('go', flush=True)\n"
        f"p(open_store(sys.argv[1]), project_id={PROJECT!r}, job_id={JOB!r},"
        " target=RestoreTarget(0, Path(sys.argv[2]), Path(sys.argv[3])))"
    )
    arguments = [store.url, node, tmp_path / "aside"]
    for _ in range(8):
        process = Forked(code, arguments)
        assert process.stdout.readline()
        time.sleep(random.uniform(0, 0.06))
        process.send_signal(signal.SIGKILL)
        process.communicate()
        for path in node.glob("checkpoint-*/*"):
            found = folders.contents(path.parent)[path.name]
            assert found == committed[f"{path.parent.name}/{path.name}"]
    assert Forked(code, arguments).wait(200) == 0
    assert folders.contents(node) == committed
    assert len(folders.contents(tmp_path / "aside")) == 6


def test_loading_gives_both_documented_places(store, ckpts, tmp_path):
    three(ckpts)
    flush(store, ckpts)
    target = tmp_path / "loaded"
    for _ in range(2):
        load_checkpoints(store, loaded(store, *listed(store)), directory=target, group_size=1)
        assert folders.contents(target / "rank-0") == folders.contents(ckpts)
        assert (target / "checkpoint-10/config.json").exists()
        assert (target / "v0/checkpoint-20/adapter_config.json").exists()
        assert (target / "train.log").read_bytes() == b"line"
        assert str((target / "checkpoint-10").readlink()) == "rank-0/checkpoint-10"


def test_loading_on_many_nodes_has_ranks_only(store, tmp_path):
    for rank in (0, 1):
        folders.write(tmp_path / f"r{rank}/checkpoint-10", {f"shard-{rank}": b"%d" % rank})
        flush(store, tmp_path / f"r{rank}", rank=rank, group_size=2)
    target = tmp_path / "loaded"
    load_checkpoints(store, loaded(store, *listed(store)), directory=target, group_size=2)
    assert set(folders.contents(target)) == {
        f"rank-{rank}/checkpoint-10/shard-{rank}" for rank in (0, 1)
    }


def test_loading_refuses_two_of_one_name(store, ckpts, tmp_path):
    flush(store, ckpts, {"checkpoint-10/x": b"1"})
    first = loaded(store, *listed(store))
    flush(store, ckpts, {"checkpoint-10/x": b"2"})
    both = [*first, *loaded(store, *listed(store))]
    with pytest.raises(CheckpointError, match="Two checkpoints"):
        load_checkpoints(store, both, directory=tmp_path / "l", group_size=1)
    load_checkpoints(store, [*first, *first], directory=tmp_path / "l", group_size=1)


def test_of_a_file_that_grows_only_its_size_is_read(tmp_path):
    """A link may lead to a folder that another running job can write."""
    data, file = random.Random(1).randbytes(9 << 20), tmp_path / "x"
    file.write_bytes(data)
    entry = ManifestEntry("x", "x", "x", len(data), hashlib.sha256(data).hexdigest())
    read: list[int] = []

    def grow(size):
        read.append(size)
        os.truncate(file, 1 << 32)

    assert not file_matches(tmp_path, "x", entry, grow)
    assert sum(read) == len(data)


SIZES = {"empty": 0, "small": 7, "one range": 4 << 20, "many ranges": (33 << 20) + 5}


@pytest.fixture
def bucket(tmp_path):
    """A store that is no folder, with objects of several sizes, and what is wanted of it."""
    bucket, wanted = open_store("memory://"), {}
    for name, size in SIZES.items():
        data = random.Random(size).randbytes(size)
        bucket.put(f"objects/{name}", data)
        digest = hashlib.sha256(data).hexdigest()
        wanted[name] = ManifestEntry(
            name, name, f"objects/{name}", size=size, sha256=digest, mtime_ns=10**18
        )
    return bucket, wanted


@pytest.mark.slow
def test_a_large_object_arrives_in_ranges_and_every_byte_is_counted(bucket, tmp_path):
    store, wanted = bucket
    told: list[int] = []
    download_files(store, wanted, root=tmp_path / "here", on_bytes=told.append)
    assert sum(told) == sum(SIZES.values())
    assert max(told) < SIZES["many ranges"]
    for name in SIZES:
        assert (tmp_path / "here" / name).read_bytes() == store.get(f"objects/{name}")
    told.clear()
    assert find_matching(tmp_path / "here", wanted, on_bytes=told.append) == set(SIZES)
    assert sum(told) == sum(SIZES.values())


@pytest.mark.slow
@pytest.mark.parametrize("change", [lambda data: data[:-1], lambda data: data[:-1] + b"?"])
def test_a_large_object_that_is_not_what_was_committed_never_appears(bucket, tmp_path, change):
    store, wanted = bucket
    store.put("objects/many ranges", change(store.get("objects/many ranges")))
    with pytest.raises(CheckpointError, match="does not hold the bytes"):
        download_files(store, wanted, root=tmp_path)
    assert not (tmp_path / "many ranges").exists()
    assert not list(tmp_path.glob(".*"))


def test_ctrl_c_ends_downloads(bucket, tmp_path):
    store, wanted = bucket
    told: list[int] = []

    def interrupt(size: int) -> None:
        told.append(size)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        download_files(store, wanted, root=tmp_path, on_bytes=interrupt)
    assert len(told) <= len(SIZES)
    assert not (tmp_path / "many ranges").exists()
    assert not list(tmp_path.glob(".*"))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["folder", "bucket"])
def test_a_disk_that_takes_no_more_is_named(bucket, tmp_path, kind):
    store, wanted = bucket
    if kind == "folder":
        folder = open_store(str(tmp_path / "store"))
        for entry in wanted.values():
            folder.put(entry.key, store.get(entry.key))
        store = folder
    # The one way to a disk that takes no more which needs no rights.
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, hard))
    try:
        with pytest.raises(CheckpointError, match=f"cannot be written to {tmp_path / 'here'}: "):
            download_files(store, wanted, root=tmp_path / "here")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert not list((tmp_path / "here").glob(".*"))
