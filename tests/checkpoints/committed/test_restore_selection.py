"""A retry gets back what the nodes had when they last ran, as far as it fits on the disk."""

import shutil
from types import SimpleNamespace

import pytest

from prefect_bt.checkpoints.committed.download import download_files
from prefect_bt.checkpoints.committed.restore import RestoreTarget, restore_directory
from prefect_bt.checkpoints.upload.upload_status import StatusPublisher
from prefect_bt.errors import CheckpointError
from prefect_bt.node_agent.staging import format_restore
from prefect_bt.object_keys import uploads_prefix
from prefect_bt.object_store import open_store
from tests.checkpoints import folders
from tests.checkpoints.folders import JOB, PROJECT, flush
from tests.checkpoints.running import Running, listed, wait_for
from tests.filesystem.small_disk import small_disk

MEGABYTE = 1_000_000


def run(store, directory, files=None, *, attempt=0, rank=0, group_size=1):
    """Write files, and flush; the status is in the store, as that of a node is."""
    where = {"attempt": attempt, "rank": rank, "group_size": group_size}
    publisher = StatusPublisher(store, folders.origin(**where))
    flush(store, directory, files, reports=SimpleNamespace(append=publisher.publish), **where)
    publisher.close()


def restore(store, directory, *, rank=0, attempt=1, group_size=1, neighbors=()):
    target = RestoreTarget(
        rank,
        directory,
        directory.parent / "aside",
        attempt=attempt,
        group_size=group_size,
        neighbors=dict(neighbors),
    )
    return restore_directory(store, project_id=PROJECT, job_id=JOB, target=target)


def train(store, ckpts, *, steps=range(10, 101, 10), keep=2, size=1000, **where):
    """Save at each step, and keep the newest ones, as `save_total_limit` does."""
    for step in steps:
        run(store, ckpts, {f"checkpoint-{step}/state.dat": bytes([step]) * size}, **where)
        shutil.rmtree(ckpts / f"checkpoint-{step - 10 * keep}", ignore_errors=True)
    run(store, ckpts, **where)


def names(result):
    return {*result.restored, *result.unchanged}


@pytest.mark.parametrize("keep", [1, 2, 3])
@pytest.mark.parametrize("is_fresh", [True, False], ids=["another machine", "the same machine"])
def test_what_the_training_deleted_stays_in_the_store(store, ckpts, tmp_path, keep, is_fresh):
    train(store, ckpts, keep=keep)
    node = tmp_path / "fresh" if is_fresh else ckpts
    restored = restore(store, node)
    kept = {f"checkpoint-{step}" for step in range(100, 100 - 10 * keep, -10)}
    assert names(restored) == kept == {path.name for path in node.iterdir()}
    assert {one.name for one in restored.left} == {
        f"checkpoint-{s}" for s in range(10, 101, 10)
    } - kept
    *_, line = format_restore(restored, tmp_path)
    size = f"{10 - keep}.0 KB"
    assert line.startswith(
        f"checkpoints left in the store ({size}), because the training had deleted them: "
        "checkpoint-10, "
    )


def remove(name):
    return lambda ckpts: shutil.rmtree(ckpts / name)


def write(path, data=b"half"):
    return lambda ckpts: folders.write(ckpts, {path: data})


WHOLE = folders.safetensors()


@pytest.mark.parametrize(
    ("last_changes", "expected"),
    [
        ([], {"best", "checkpoint-10", "checkpoint-20", "v0/checkpoint-5"}),
        ([remove("best")], {"checkpoint-10", "checkpoint-20", "v0/checkpoint-5"}),
        ([remove("v0"), remove("checkpoint-10")], {"best", "checkpoint-20"}),
        # Its only checkpoint is not complete: the one before is needed, though it was deleted.
        (
            [
                remove("checkpoint-10"),
                remove("checkpoint-20"),
                write("checkpoint-30/w.safetensors"),
            ],
            {"best", "checkpoint-20", "v0/checkpoint-5"},
        ),
        # The same of a series that the job does not resume from.
        (
            [remove("v0/checkpoint-5"), write("v0/checkpoint-6/w.safetensors")],
            {"best", "checkpoint-10", "checkpoint-20", "v0/checkpoint-5"},
        ),
        (
            [remove(name) for name in ("best", "v0", "checkpoint-10", "checkpoint-20")],
            {"checkpoint-20"},
        ),
    ],
    ids=["all", "best deleted", "old deleted", "newest half", "series half", "all deleted"],
)
def test_the_last_report_of_the_node_counts(store, ckpts, tmp_path, last_changes, expected):
    for name in ("v0/checkpoint-5", "best", "checkpoint-10", "checkpoint-20"):
        run(store, ckpts, {f"{name}/w.safetensors": WHOLE})
    for change in last_changes:
        change(ckpts)
    run(store, ckpts)
    assert names(restore(store, tmp_path / "fresh")) == expected


def test_a_lost_node_has_reported_what_it_had(store, ckpts):
    with Running(store, ckpts) as uploader:
        for step, expected in ((10, (10,)), (20, (10, 20)), (30, (20, 30))):
            folders.write(ckpts, {f"checkpoint-{step}/w.safetensors": WHOLE})
            shutil.rmtree(ckpts / f"checkpoint-{step - 20}", ignore_errors=True)
            present = tuple(f"checkpoint-{step}" for step in expected)
            wait_for(lambda present=present: uploader.reports[-1].present == present, 10)


def forget(store, attempt):
    for info in list(store.list(uploads_prefix(PROJECT, JOB, attempt))):
        store.delete(info.key)


def test_without_a_report_everything_is_restored(store, ckpts, tmp_path):
    train(store, ckpts)
    forget(store, 0)
    assert len(names(restore(store, tmp_path / "fresh"))) == 10


def test_an_attempt_that_did_not_run_changes_nothing(store, ckpts, tmp_path):
    train(store, ckpts, keep=1)
    run(store, tmp_path / "other", attempt=3)
    assert names(restore(store, tmp_path / "fresh", attempt=3)) == {"checkpoint-100"}


def test_all_ranks_restore_the_same_checkpoints(store, tmp_path):
    ranks = [tmp_path / f"rank-{rank}" for rank in range(2)]
    for rank, keep in enumerate((1, 3)):
        train(store, ranks[rank], keep=keep, rank=rank, group_size=2)
    for rank in range(2):
        restored = restore(store, tmp_path / f"fresh-{rank}", rank=rank, group_size=2)
        assert names(restored) == {"checkpoint-80", "checkpoint-90", "checkpoint-100"}


@pytest.mark.parametrize(
    ("free", "expected"), [("30m", {80, 90, 100}), ("12m", {90, 100}), ("6m", {100})]
)
def test_the_newest_that_fit_are_restored(ckpts, tmp_path, free, expected):
    store = open_store(str(tmp_path / "store"))
    train(store, ckpts, steps=range(80, 101, 10), keep=9, size=5 * MEGABYTE)
    with small_disk(tmp_path / "disk", free) as disk:
        for _ in range(2):
            restored = restore(store, disk / "ckpts")
            assert names(restored) == {f"checkpoint-{step}" for step in expected}
            lines = "\n".join(format_restore(restored, tmp_path))
            assert len(expected) == 3 or "stay free for the job: checkpoint-80" in lines


def test_ranks_on_one_disk_share_its_space(ckpts, tmp_path):
    store = open_store(str(tmp_path / "store"))
    for rank in range(2):
        directory = tmp_path / f"rank-{rank}"
        train(
            store,
            directory,
            steps=range(80, 101, 10),
            keep=9,
            size=2 * MEGABYTE,
            rank=rank,
            group_size=2,
        )
    with small_disk(tmp_path / "disk", "10m") as disk:
        nodes = {rank: disk / f"ckpts-{rank}" for rank in range(2)}
        for rank, node in nodes.items():
            restored = restore(store, node, rank=rank, group_size=2, neighbors=nodes.items())
            assert names(restored) == {"checkpoint-90", "checkpoint-100"}


@pytest.mark.parametrize("is_shared", [True, False], ids=["store on the disk", "another disk"])
def test_a_disk_without_space_for_the_newest_is_named_with_sizes(ckpts, tmp_path, is_shared):
    with small_disk(tmp_path / "disk", "8m") as disk:
        store = open_store(str((disk if is_shared else tmp_path) / "store"))
        train(store, ckpts, steps=[100], size=5 * MEGABYTE)
        folders.write(disk, {} if is_shared else {"other": b"x" * 5 * MEGABYTE})
        with pytest.raises(CheckpointError) as caught:
            restore(store, disk / "ckpts")
        assert not list((disk / "ckpts").iterdir())
    message = str(caught.value)
    assert "checkpoint-100, from which the job resumes, does not fit" in message
    assert f"{disk / 'ckpts'}: 5.0 MB are needed and 3." in message
    assert "Free 1." in message or "Free 2." in message
    assert ("checkpoints prune" in message) == is_shared


def test_a_download_to_a_full_disk_is_refused_with_its_size(ckpts, tmp_path):
    store = open_store(str(tmp_path / "store"))
    train(store, ckpts, steps=[100], size=5 * MEGABYTE)
    (checkpoint,) = listed(store).values()
    wanted = {entry.path: entry for part in checkpoint.manifests for entry in part.entries}
    full = pytest.raises(CheckpointError, match=r"disk is full, and 5\.0 MB were to be")
    with small_disk(tmp_path / "disk", "4m") as disk, full:
        download_files(store, wanted, root=disk / "here")
