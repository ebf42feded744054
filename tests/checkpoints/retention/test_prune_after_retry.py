"""A prune is killed, and the job is started again: no checkpoint that it may need goes."""

import os
import signal
from dataclasses import replace

import pytest

from prefect_bt.checkpoints.committed.tombstones import discard_outdated
from prefect_bt.checkpoints.retention import prune
from prefect_bt.checkpoints.retention.prune import prune_job, prune_rank
from prefect_bt.errors import StoreError
from prefect_bt.ledger.fencing_epochs import PRUNE, RUN, Epochs
from prefect_bt.ledger.records import RetentionPolicy
from prefect_bt.object_keys import attempt_prefix, job_prefix, tombstones_prefix
from prefect_bt.object_store.disk import DiskStore
from tests.checkpoints.folders import FAST, JOB, PROJECT, flush, hf_full, origin, write
from tests.checkpoints.shelf import (
    Interrupted,
    check_whole,
    commit,
    commit_ranks,
    listed,
    names,
    rest,
)


@pytest.fixture
def two(store, ckpts):
    """A job that is over after attempt 1, with two checkpoints."""
    begin(store, 0)
    begin(store, 1)
    commit(store, ckpts, (10, 20))
    return store


def begin(store, attempt):
    store.create(f"{attempt_prefix(PROJECT, JOB, attempt)}/attempt.json", b"{}")


def claim(store, purpose):
    prefix = job_prefix(PROJECT, JOB)
    store.put(f"{prefix}/job.json", b"{}")
    return Epochs(store, JOB, prefix, clock=lambda: 0.0).claim("box:ab", purpose=purpose)


def killed_prune(store, step, word="/withdrawn/", *, live=False):
    """SIGKILL a prune right after it has changed a key that has `word` in it."""

    def kill():
        os.kill(os.getpid(), signal.SIGKILL)

    child = os.fork()
    if child == 0:
        try:
            prune_job(
                Interrupted(store._root, word, kill), PROJECT, JOB, names(step), is_running=live
            )
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL
    assert withdrawals(store)


def withdrawals(store):
    return [info.key for info in store.list(tombstones_prefix(PROJECT, JOB))]


@pytest.mark.parametrize("retention", [RetentionPolicy(), RetentionPolicy(keep_last=5)])
def test_the_next_attempts_uploader_keeps_what_a_killed_prune_announced(two, ckpts, retention):
    killed_prune(two, 20)
    begin(two, 2)
    write(ckpts / "checkpoint-30", hf_full(30))
    flush(two, ckpts, attempt=2, options=replace(FAST, retention=retention))
    assert set(listed(two)) == {*names(10, 20, 30)}
    assert withdrawals(two) == []
    check_whole(two)


def test_the_next_attempts_prune_keeps_what_a_killed_prune_announced(two):
    killed_prune(two, 20)
    begin(two, 2)
    done = prune_rank(two, origin(attempt=2), names(10))
    assert done.pruned == names(10)
    assert set(listed(two)) == {*names(20)}
    assert rest(two) == set()


@pytest.mark.parametrize("live", [False, True])
def test_a_prune_by_command_after_a_retry_keeps_it_too(two, live):
    killed_prune(two, 20)
    begin(two, 2)
    prune_job(two, PROJECT, JOB, names(10), is_running=live)
    assert set(listed(two)) == {*names(20)}


def test_a_run_that_has_only_claimed_the_job_counts_as_a_retry(two):
    claim(two, PRUNE)
    killed_prune(two, 20)
    claim(two, RUN)
    prune_job(two, PROJECT, JOB, names(10), is_running=True)
    assert set(listed(two)) == {*names(20)}


def test_a_retry_without_an_attempt_counts_for_a_later_prune_too(two):
    """Such as one whose machine died: the prune claims the job before it looks."""
    claim(two, PRUNE)
    killed_prune(two, 20)
    claim(two, RUN)
    claim(two, PRUNE)
    prune_job(two, PROJECT, JOB, names(10), is_running=False)
    assert set(listed(two)) == {*names(20)}
    assert rest(two) == set()


def test_a_retry_that_begins_after_the_look_for_outdated_ones_counts(two, monkeypatch):
    killed_prune(two, 20)
    look = prune.discard_outdated

    def look_and_begin(*place):
        look(*place)
        begin(two, 2)

    monkeypatch.setattr(prune, "discard_outdated", look_and_begin)
    prune_job(two, PROJECT, JOB, (), is_running=True)
    assert set(listed(two)) == {*names(10, 20)}


def test_what_begins_to_be_deleted_while_it_is_dropped_stays_withdrawn(store, ckpts):
    """The prune had looked before the attempt began, and is killed after its first deletion."""
    commit_ranks(store, ckpts, (10, 20))
    first = next(iter(listed(store)["checkpoint-10"].manifest_keys.values()))
    killed_prune(store, 10)
    begin(store, 2)

    class Late(DiskStore):
        def delete(self, key):
            if "/withdrawn/" in key:
                super().delete(first)
            super().delete(key)

    discard_outdated(Late(store._root), PROJECT, JOB)
    assert set(listed(store)) == {*names(20)}
    assert len(withdrawals(store)) == 1


def test_without_a_retry_the_next_prune_finishes_it(two):
    claim(two, PRUNE)
    killed_prune(two, 10)
    claim(two, PRUNE)
    prune_job(two, PROJECT, JOB, (), is_running=False)
    assert set(listed(two)) == {*names(20)}
    assert rest(two) == set()


def test_what_a_killed_prune_began_to_delete_is_finished_by_the_next_attempt(store, ckpts):
    """Half of a checkpoint is no use to the job, and must not look like a whole one."""
    begin(store, 0)
    begin(store, 1)
    commit_ranks(store, ckpts, (10, 20))
    killed_prune(store, 10, "/manifests/")
    begin(store, 2)
    assert set(listed(store)) == {*names(20)}
    for rank in (0, 1, 0):
        prune_rank(store, origin(attempt=2, rank=rank), ())
    assert set(listed(store)) == {*names(20)}
    assert rest(store) == set()


def test_a_prune_sees_that_an_attempt_began_while_it_looked(two):
    """No claim tells it: of a running job, Prefect's retry begins the next attempt in its epoch."""
    store = Interrupted(two._root, "/withdrawn/", lambda: begin(two, 2))
    done = prune_job(store, PROJECT, JOB, names(10), is_running=True)
    assert (done.pruned, done.protected) == ((), names(10))
    assert set(listed(two)) == {*names(10, 20)}
    assert withdrawals(two) == []


def test_a_checkpoint_that_is_half_deleted_stays_withdrawn(store, ckpts):
    """The next attempt drops the withdrawal between the prune's last look and a deletion."""
    commit_ranks(store, ckpts, (10, 20))

    def drop_and_look():
        for key in withdrawals(store):
            store.delete(key)

    interrupted = Interrupted(store._root, "/manifests/", drop_and_look)
    seen = []
    deleted = interrupted.delete

    def delete(key):
        deleted(key)
        if "/manifests/" in key:
            seen.append(set(listed(store)))

    interrupted.delete = delete
    prune_job(interrupted, PROJECT, JOB, names(10), is_running=True)
    assert seen[1:] == [{*names(20)}]
    assert withdrawals(store), "its objects go when the job is over"


KEEP_ALL_OF_THEM = replace(FAST, retention=RetentionPolicy(keep_last=9))


def write_again(ckpts, *steps):
    """The same bytes as `commit` writes, in another folder."""
    again = ckpts.with_name("again")
    for step in steps:
        write(again / f"checkpoint-{step}", hf_full(step, seed=b"w0.%d" % step))
    return again


@pytest.mark.parametrize("word", ["/manifests/", "/objects/"])
def test_an_uploader_sends_again_what_it_has_just_let_go(two, ckpts, word):
    """It finishes a killed prune as it begins; then training writes the same bytes again."""
    killed_prune(two, 20, word)
    begin(two, 2)
    flush(two, write_again(ckpts, 20), attempt=2, options=KEEP_ALL_OF_THEM)
    assert set(listed(two)) == {*names(10, 20)}
    check_whole(two)


class RefusesOnce(DiskStore):
    """Refuses the second deletion of an object."""

    deletions = 0

    def delete(self, key):
        if "/objects/" in key:
            self.deletions += 1
            if self.deletions == 2:
                raise StoreError("busy", url=self.url, key=key)
        super().delete(key)


def test_an_uploader_sends_again_what_a_failed_retention_has_deleted(store, ckpts):
    for step, written_ns in ((10, 1), (20, 2)):
        write(ckpts / f"checkpoint-{step}", hf_full(step, seed=b"%d" % step))
        os.utime(ckpts / f"checkpoint-{step}" / "model.safetensors", ns=(written_ns, written_ns))
    write(ckpts / "checkpoint-30", hf_full(30, seed=b"10"))
    options = replace(FAST, retention=RetentionPolicy(keep_last=1))
    flush(RefusesOnce(store._root), ckpts, attempt=1, options=options)
    assert "checkpoint-30" in listed(store)
    check_whole(store)
