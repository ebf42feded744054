"""Checkpoints that are files: Lightning's, Keras', and what a loop of one's own saves."""

from dataclasses import replace

import pytest

from prefect_bt.checkpoints.committed.restore import (
    RestoreTarget,
    load_checkpoints,
    restore_directory,
)
from prefect_bt.checkpoints.committed.verify_committed import verify
from prefect_bt.ledger.records import RetentionPolicy
from tests.checkpoints import folders
from tests.checkpoints.folders import JOB, PROJECT, flush
from tests.checkpoints.shelf import listed, loaded

FILES = {
    "epoch=1-step=10.ckpt": folders.torch_zip(b"1"),
    "logs/version_0/epoch=2-step=20.ckpt": folders.torch_zip(b"2"),
    "last.ckpt": folders.torch_zip(b"2"),
    "hparams.yaml": b"lr: 1",
}


def test_checkpoints_that_are_files_are_committed_verified_and_restored(store, ckpts, tmp_path):
    def restore(directory):
        target = RestoreTarget(0, directory, tmp_path / "aside")
        return restore_directory(store, project_id=PROJECT, job_id=JOB, target=target)

    folders.write(ckpts, FILES)
    assert flush(store, ckpts).uncommitted == ()
    assert set(listed(store)) == {*FILES} - {"hparams.yaml"} | {"."}
    assert [one.step for one in listed(store).values() if one.checkpoint_id != "."].count(20) == 1
    assert verify(store, PROJECT, JOB) == []
    assert flush(store, ckpts, attempt=2).committed == (), "nothing is new"
    fresh = tmp_path / "fresh"
    assert set(restore(fresh).restored) == set(listed(store))
    assert folders.contents(fresh) == folders.contents(ckpts)
    (fresh / "last.ckpt").write_bytes(b"half")
    assert restore(fresh).restored == ("last.ckpt",)
    assert folders.contents(fresh) == folders.contents(ckpts)


def test_a_loaded_file_is_at_both_documented_places(store, ckpts, tmp_path):
    folders.write(ckpts, FILES)
    flush(store, ckpts)
    target = tmp_path / "loaded"
    name = "logs/version_0/epoch=2-step=20.ckpt"
    load_checkpoints(store, loaded(store, name), directory=target, group_size=1)
    for path in (f"rank-0/{name}", name):
        assert (target / path).read_bytes() == FILES[name]


@pytest.mark.parametrize("steps", [1, 2])
def test_retention_counts_files_of_a_series(store, ckpts, steps):
    options = replace(folders.FAST, retention=RetentionPolicy(keep_last=steps))
    for step in (10, 20, 30):
        flush(store, ckpts, {f"epoch={step}-step={step}.ckpt": b"%d" % step}, options=options)
    kept = (10, 20, 30)[-steps:]
    assert set(listed(store)) == {f"epoch={step}-step={step}.ckpt" for step in kept}
