"""Deleting checkpoints: whole ones or none, whatever is killed, and never one that is needed."""

import os
import shutil
import signal
import threading
import time

import pytest

from prefect_bt.checkpoints.retention import holds
from prefect_bt.checkpoints.retention.prune import (
    Inventory,
    delete_unreferenced,
    prune_job,
    prune_rank,
)
from prefect_bt.errors import StoreError
from prefect_bt.ledger.ledger import Ledger
from prefect_bt.ledger.states import JobState
from prefect_bt.object_keys import attempt_prefix
from prefect_bt.object_store.disk import DiskStore
from tests.checkpoints.folders import JOB, PROJECT, flush, origin
from tests.checkpoints.shelf import (
    Interrupted,
    Killed,
    Slow,
    check_whole,
    commit,
    commit_ranks,
    kill,
    listed,
    loaded,
    make_job,
    names,
    rest,
)

RUNNING = (JobState.DEPLOYING, JobState.RUNNING)


@pytest.fixture
def five(store, ckpts):
    commit(store, ckpts, (10, 20, 30, 40, 50))
    return store


def test_what_only_they_name_goes_with_them(five):
    shared = Inventory(five, PROJECT, JOB).exclusive_objects(names(10, 20, 30, 40, 50))
    done = prune_job(five, PROJECT, JOB, names(10, 20), is_running=False)
    assert done.pruned == names(10, 20)
    assert set(listed(five)) == {*names(30, 40, 50)}
    assert set(done.deleted_keys) <= set(shared)
    # Model, optimizer, scheduler, rng and trainer state of each.
    assert len(done.deleted_keys) == 2 * 5
    assert done.freed_bytes == sum(shared[key] for key in done.deleted_keys)
    check_whole(five)
    assert rest(five) == set()


def test_a_large_files_receipt_stays_and_goes_with_it(store, ckpts):
    for step in (20, 30):
        folder = ckpts / f"checkpoint-{step}"
        folder.mkdir(parents=True)
        (folder / "large.dat").write_bytes(bytes([step]) * (9 << 20))
    flush(store, ckpts)
    before = Inventory(store, PROJECT, JOB)
    assert sum(key.endswith(".bytes") for key in before.objects) == 2
    assert before.unreferenced_objects() == {}
    prune_job(store, PROJECT, JOB, names(20), is_running=False)
    after = Inventory(store, PROJECT, JOB)
    assert len(before.objects) - len(after.objects) == 2
    assert after.unreferenced_objects() == {}


def test_all_versions_and_attempts_go(store, ckpts):
    commit(store, ckpts, (10, 20))
    commit(store, ckpts, (10,), seed=b"again")
    commit(store, ckpts, (10,), seed=b"later", attempt=2)
    assert len(Inventory(store, PROJECT, JOB).get_refs("checkpoint-10")) == 3
    prune_job(store, PROJECT, JOB, names(10), is_running=False)
    assert set(listed(store)) == {*names(20)}
    assert rest(store) == set()


def test_every_rank_goes(store, tmp_path):
    commit_ranks(store, tmp_path, (10, 20))
    done = prune_job(store, PROJECT, JOB, names(10), is_running=False)
    assert done.pruned == names(10)
    assert set(listed(store)) == {*names(20)}
    check_whole(store)
    assert rest(store) == set()


def test_again_it_does_nothing(five):
    prune_job(five, PROJECT, JOB, names(10), is_running=False)
    done = prune_job(five, PROJECT, JOB, names(10), is_running=False)
    assert (done.pruned, done.deleted_keys, done.freed_bytes) == ((), (), 0)


def test_of_a_running_job_no_object_goes_and_the_newest_stays(five):
    before = set(Inventory(five, PROJECT, JOB).objects)
    done = prune_job(five, PROJECT, JOB, names(10, 50), is_running=True)
    assert (done.pruned, done.protected, done.deleted_keys) == (names(10), names(50), ())
    assert set(listed(five)) == {*names(20, 30, 40, 50)}
    assert set(Inventory(five, PROJECT, JOB).objects) == before
    # The uploader of that rank may take them, at its next prune.
    done = prune_rank(five, origin(attempt=1), names(20))
    assert done.pruned == names(20)
    assert len(done.deleted_keys) == 10
    check_whole(five)
    assert rest(five) == set()


def test_a_rank_leaves_the_others_alone(store, tmp_path):
    commit_ranks(store, tmp_path, (10, 20))
    done = prune_rank(store, origin(rank=0, group_size=2), names(10))
    assert done.deleted_keys
    assert all("/rank-0/" in key for key in done.deleted_keys)
    assert 0 not in {ref.rank for ref in Inventory(store, PROJECT, JOB).get_refs("checkpoint-10")}
    check_whole(store)
    prune_rank(store, origin(rank=1, group_size=2), names(10))
    assert set(listed(store)) == {*names(20)}
    check_whole(store)
    # What rank 1 named of rank 0 until now, rank 0 deletes at its next prune.
    prune_rank(store, origin(rank=0, group_size=2), ())
    assert rest(store) == set()


def test_an_object_that_another_rank_names_stays(store, tmp_path):
    commit(store, tmp_path / "0", (10, 20), rank=0, group_size=2)
    theirs = {file.key for file in listed(store)["checkpoint-10"].files()}
    manifests = Inventory(store, PROJECT, JOB).manifests
    ref, manifest = next((r, m) for r, m in manifests.items() if r.name == "checkpoint-10")
    store.put(
        ref.key.replace("rank-0", "rank-1"), store.get(ref.key).replace(b'"rank": 0', b'"rank": 1')
    )
    assert manifest is not None
    prune_rank(store, origin(rank=0, group_size=2), names(10))
    assert theirs <= {info.key for info in store.list("")}
    check_whole(store)


def test_a_rank_keeps_what_a_retry_would_go_on_from(five):
    done = prune_rank(five, origin(), names(40, 50))
    assert (done.pruned, done.protected) == (names(40), names(50))


def test_an_earlier_attempts_uploader_touches_nothing(five):
    five.create(f"{attempt_prefix(PROJECT, JOB, 2)}/attempt.json", b"{}")
    assert prune_rank(five, origin(attempt=1), names(10)).pruned == ()
    assert "checkpoint-10" in listed(five)
    assert prune_rank(five, origin(attempt=2), names(10)).pruned == names(10)


def test_names_that_are_not_there_change_nothing(five):
    before = {info.key for info in five.list("")}
    prune_job(five, PROJECT, JOB, ["nothing"], is_running=False)
    prune_rank(five, origin(), ["nothing"])
    assert {info.key for info in five.list("")} == before


def test_while_a_manifest_cannot_be_read_no_object_goes(five):
    broken = listed(five)["checkpoint-30"].newest_manifest
    five.put(broken, b"{")
    done = prune_job(five, PROJECT, JOB, names(10), is_running=False)
    assert (done.pruned, done.deleted_keys, done.unreadable_manifests) == (names(10), (), (broken,))
    done = prune_job(five, PROJECT, JOB, names(30), is_running=False)
    assert (done.pruned, done.unreadable_manifests) == (names(30), ())
    assert set(listed(five)) == {*names(20, 40, 50)}
    assert rest(five) == set()


def test_a_sweep_takes_what_no_manifest_names(five, tmp_path):
    commit(five, tmp_path / "other", (60,), attempt=2)
    five.delete(listed(five)["checkpoint-60"].newest_manifest)
    orphans = rest(five)
    assert len(orphans) == 5
    assert set(delete_unreferenced(five, PROJECT, JOB).deleted_keys) == orphans
    check_whole(five)
    assert rest(five) == set()


def test_a_store_that_fails_half_way_is_gone_on_with(five):
    class Failing(DiskStore):
        left = 4

        def delete(self, key):
            self.left -= 1
            if self.left < 0:
                raise StoreError("The disk is gone.", url=self.url, key=key)
            super().delete(key)

    failing = Failing(five._root)
    while True:
        failing.left = 4
        try:
            prune_job(failing, PROJECT, JOB, names(10, 20, 30), is_running=False)
        except StoreError:
            check_whole(five)
        else:
            break
    assert set(listed(five)) == {*names(40, 50)}
    assert rest(five) == set()


class KilledAt(DiskStore):
    """Kills its process at its `last` change of the store, before or after it is made."""

    def __init__(self, root, last, *, after):
        super().__init__(root)
        self._left, self._after, self._lock = last, after, threading.Lock()

    def _change(self, make):
        with self._lock:
            self._left -= 1
            if self._left == 0 and not self._after:
                os.kill(os.getpid(), signal.SIGKILL)
            make()
            if self._left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    def create(self, key, data):
        self._change(lambda: DiskStore.create(self, key, data))

    def put(self, key, data):
        self._change(lambda: DiskStore.put(self, key, data))

    def delete(self, key):
        self._change(lambda: DiskStore.delete(self, key))


@pytest.mark.slow
@pytest.mark.parametrize("last", [1, 2, 4, 9])
def test_a_kill_at_a_change_of_the_store_keeps_listed_checkpoints_complete(five, tmp_path, last):
    """The announcement, a manifest, an object: before and after."""
    for after in (False, True):
        store = _copy(five, tmp_path / str(after))
        child = _prune_in_a_process(KilledAt(store._root, last, after=after))
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL
        _check_after_a_kill(store)


@pytest.mark.soak
def test_a_kill_at_any_moment_keeps_listed_checkpoints_complete(five, tmp_path, soak):
    """SIGKILL at random points of a prune of three, each on a fresh copy of the store."""

    def prune(store):
        return _prune_in_a_process(Slow(store._root, seed=3, most=0.001))

    began = time.monotonic()
    _, status = os.waitpid(prune(_copy(five, tmp_path / "timed")), 0)
    assert os.waitstatus_to_exitcode(status) == 0
    whole = time.monotonic() - began
    for number in range(30 * soak.length):
        store = _copy(five, tmp_path / str(number))
        child = prune(store)
        time.sleep(soak.random.uniform(0, whole))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        _check_after_a_kill(store)


def _check_after_a_kill(store):
    check_whole(store)
    assert {*names(40, 50)} <= set(listed(store))
    prune_job(store, PROJECT, JOB, names(10, 20, 30), is_running=False)
    assert set(listed(store)) == {*names(40, 50)}
    check_whole(store)
    assert rest(store) == set()
    shutil.rmtree(store._root)


def _copy(store, folder):
    shutil.copytree(store._root, folder)
    return DiskStore(folder)


def _prune_in_a_process(store) -> int:
    child = os.fork()
    if child == 0:
        try:
            prune_job(store, PROJECT, JOB, names(10, 20, 30), is_running=False)
            os._exit(0)
        finally:
            os._exit(1)
    return child


# -- beside a restore ------------------------------------------------------------------------


def test_what_a_running_job_restores_stays(five):
    ledger = Ledger(five)
    holder = make_job(ledger, *RUNNING)
    taken, gone = holds.acquire_holds(ledger, loaded(five, "checkpoint-20"), holder=holder)
    assert gone == ()
    done = prune_job(five, PROJECT, JOB, names(10, 20), is_running=False)
    assert done.pruned == names(10)
    assert [hold.label for hold in done.held["checkpoint-20"]] == [f"job {holder}"]
    assert "checkpoint-20" in listed(five)
    check_whole(five)
    done = prune_rank(five, origin(), names(20))
    assert (done.pruned, set(done.held)) == ((), {"checkpoint-20"})
    holds.release_holds(five, taken)
    assert prune_rank(five, origin(), names(20)).pruned == names(20)
    assert rest(five) == set()


def test_a_hold_that_comes_after_the_announcement_is_refused(five):
    ledger, wanted = Ledger(five), loaded(five, "checkpoint-20")
    holder = make_job(ledger, *RUNNING)
    refused = []

    def hold():
        refused.append(holds.acquire_holds(ledger, wanted, holder=holder))

    store = Interrupted(five._root, "/withdrawn/", hold)
    done = prune_job(store, PROJECT, JOB, names(20), is_running=False)
    assert refused == [((), (wanted[0],))]
    assert done.pruned == names(20)
    assert holds.list_active_holds(ledger, PROJECT, JOB) == []


def test_a_prune_that_comes_between_a_hold_and_its_check_lets_one_of_them_win(five):
    wanted = loaded(five, "checkpoint-20")
    done = []

    def prune():
        done.append(prune_job(five, PROJECT, JOB, names(20), is_running=False))

    ledger = Ledger(Interrupted(five._root, "/holds/", prune))
    _, gone = holds.acquire_holds(ledger, wanted, holder=make_job(ledger, *RUNNING))
    assert gone == ()
    assert (done[0].pruned, set(done[0].held)) == ((), {"checkpoint-20"})
    assert "checkpoint-20" in listed(five)


def test_a_prune_killed_before_it_looked_takes_nothing_that_is_held(five):
    """It had announced; the holder had been promised the checkpoint before that."""
    ledger = Ledger(five)
    holds.acquire_holds(ledger, loaded(five, "checkpoint-20"), holder=make_job(ledger, *RUNNING))

    with pytest.raises(Killed):
        store = Interrupted(five._root, "/withdrawn/", kill)
        prune_job(store, PROJECT, JOB, names(20), is_running=False)
    done = prune_job(five, PROJECT, JOB, names(10), is_running=False)
    assert set(done.held) == {"checkpoint-20"}
    for key in loaded(five, "checkpoint-20")[0].manifests:
        assert five.get(key)
    check_whole(five)


@pytest.mark.soak
def test_the_winner_of_a_race_has_complete_checkpoints(store, ckpts, tmp_path, soak):
    """Races of a prune, a second prune and a holder, with pauses at every word.

    The tests above place the word of one between two words of the other.
    """
    commit(store, ckpts, (10, 20))
    ledger = Ledger(store)
    holder = make_job(ledger, *RUNNING)
    for number in range(60 * soak.length):
        copy = _copy(store, tmp_path / str(number))
        wanted = loaded(copy, "checkpoint-10")
        results = {}

        def prune(who, copy=copy, number=number, results=results):
            slow = Slow(copy._root, seed=number * 3 + who, most=0.002)
            results[who] = prune_job(slow, PROJECT, JOB, names(10), is_running=False)

        def hold(copy=copy, number=number, results=results, wanted=wanted):
            time.sleep(soak.random.uniform(0, 0.015))
            slow = Ledger(Slow(copy._root, seed=number * 3 + 2, most=0.002))
            for _ in range(3):
                results["hold"] = holds.acquire_holds(slow, wanted, holder=holder)
                if not results["hold"][1]:
                    return

        threads = [threading.Thread(target=prune, args=(who,)) for who in (0, 1)]
        for thread in (*threads, holding := threading.Thread(target=hold)):
            thread.start()
        for thread in (*threads, holding):
            thread.join(120)
        assert set(results) == {0, 1, "hold"}
        check_whole(copy)
        if not results["hold"][1]:
            assert "checkpoint-10" in listed(copy), number
            for key in wanted[0].manifests:
                assert copy.get(key)
        shutil.rmtree(copy._root)
