"""Checkpoints that are committed again, and a wall clock that jumps between commits."""

import time
from dataclasses import replace
from hashlib import sha256

import pytest

from prefect_bt.checkpoints.committed import verify_committed
from tests.checkpoints import folders
from tests.checkpoints.folders import FAST, JOB, PROJECT
from tests.checkpoints.running import Running, listed, wait_for


@pytest.mark.parametrize("jump", [86_400.0, -86_400.0])
def test_the_wall_clock_jumps(store, ckpts, monkeypatch, jump):
    """Between two checkpoints, and while one settles: only the monotonic clock decides."""
    true_time = time.time
    with Running(store, ckpts) as running:
        running.commits("checkpoint-10", folders.hf_full(10))
        folders.write(ckpts / "checkpoint-20", folders.hf_full(20))
        monkeypatch.setattr(time, "time", lambda: true_time() + jump)
        wait_for(lambda: running.done("checkpoint-20"))
        folders.write(ckpts / "checkpoint-10", folders.hf_full(10, seed=b"new"))
        wait_for(lambda: listed(store)["checkpoint-10"].manifests[0].version >= 2)
    assert not running.status.error and running.status.uncommitted == ()
    newest = listed(store)["checkpoint-10"].manifests[0]
    assert newest.digests == digests(folders.hf_full(10, seed=b"new"))
    assert all(report.lag is None or report.lag >= 0 for report in running.reports)
    assert verify_committed.verify(store, PROJECT, JOB) == []


@pytest.mark.parametrize("again", [0.0, 3_600.0])
def test_a_model_that_changes_after_its_commit_is_committed_anew(store, ckpts, again):
    """At once, however long other folders wait between two versions."""
    with Running(store, ckpts, replace(FAST, recommit_interval=again)) as running:
        for number in range(1, 4):
            files = folders.hf_full(10, seed=b"%d" % number)
            folders.write(ckpts / "checkpoint-10", files)
            wait_for(
                lambda files=files: (
                    "checkpoint-10" in listed(store)
                    and listed(store)["checkpoint-10"].manifests[0].digests == digests(files)
                )
            )
    assert running.status.uncommitted == () and not running.status.error
    assert verify_committed.verify(store, PROJECT, JOB) == []


def digests(files):
    return {path: sha256(data).hexdigest() for path, data in files.items()}
