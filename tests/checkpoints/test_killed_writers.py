"""A training is killed in the middle of a save: the retry finds whole checkpoints only."""

import os

import pytest

from prefect_bt.checkpoints.committed.catalog import list_checkpoints
from prefect_bt.checkpoints.committed.restore import RestoreTarget, restore_directory
from prefect_bt.object_store.disk import DiskStore
from tests.checkpoints import folders
from tests.checkpoints.folders import JOB, PROJECT, flush
from tests.checkpoints.writers import WRITERS


def write(directory, writing, count=None, *, clock):
    """Write the first `count` files, one second after the other."""
    for path, data in [*writing.files.items()][:count]:
        target = directory / os.path.normpath(f"{writing.name}/{path}")
        folders.write(target.parent, {target.name: data})
        clock += 1_000_000_000
        os.utime(target, ns=(clock, clock))


def restored_files(store, root, rank):
    """The files of each checkpoint that a retry has on another machine."""
    target = RestoreTarget(rank, root / "fresh", root / "aside", attempt=2)
    restored = restore_directory(store, project_id=PROJECT, job_id=JOB, target=target).restored
    return {
        checkpoint.checkpoint_id: {file.path for file in checkpoint.files() if file.rank == rank}
        for checkpoint in list_checkpoints(store, PROJECT, JOB)
        if checkpoint.checkpoint_id in restored
    }


def complete_files(writing):
    """The paths of a writer's own files, relative to the checkpoint directory."""
    own = (path for path in writing.files if not path.startswith("../"))
    return {os.path.normpath(f"{writing.name}/{path}") for path in own}


@pytest.mark.parametrize("writer", WRITERS)
def test_killed_after_any_file_of_the_second_save(tmp_path, writer):
    first, second = (WRITERS[writer](step) for step in (10, 20))
    where = {"rank": first.place.rank, "group_size": first.place.group_size}
    own = [path for path in second.files if not path.startswith("../")]
    for count in range(1, len(second.files)):
        last = [*second.files][count - 1]
        if last in second.silent_again or last == own[-1] or last not in own:
            continue
        root = tmp_path / str(count)
        store, directory = DiskStore(root / "store"), root / "ckpts"
        write(directory, first, clock=10**18)
        flush(store, directory, succeeded=True, **where)
        write(directory, second, count, clock=10**18 + 10**12)
        flush(store, directory, succeeded=False, **where)
        restored = restored_files(store, root, first.place.rank)
        assert restored[first.name] >= complete_files(first)
        assert second.name not in restored, f"killed after {last}"


@pytest.mark.parametrize("writer", WRITERS)
def test_ended_well_after_the_second_save(tmp_path, writer):
    store, directory = DiskStore(tmp_path / "store"), tmp_path / "ckpts"
    writings = [WRITERS[writer](step) for step in (10, 20)]
    where = {"rank": writings[0].place.rank, "group_size": writings[0].place.group_size}
    for number, writing in enumerate(writings):
        write(directory, writing, clock=10**18 + number * 10**12)
    assert flush(store, directory, succeeded=True, **where).uncommitted == ()
    restored = restored_files(store, tmp_path, writings[0].place.rank)
    for writing in writings:
        assert restored[writing.name] >= complete_files(writing)
