"""What one checkpoint, one manifest or one moment could do to all the others."""

import os
import shutil
import threading
import time
from dataclasses import replace

import pytest

from prefect_bt.checkpoints.committed import verify_committed
from prefect_bt.checkpoints.committed.commit_index import iter_manifest_refs
from prefect_bt.checkpoints.layout import FileStat, LocalCheckpoint
from prefect_bt.checkpoints.upload import transfer, uploader
from prefect_bt.checkpoints.upload.retry_queue import RetrySchedule
from prefect_bt.checkpoints.upload.uploader import UploadOptions
from prefect_bt.checkpoints.volume_links import Volumes
from prefect_bt.checkpoints.watch import stability, watcher
from prefect_bt.checkpoints.watch.stability import StabilityTracker
from prefect_bt.checkpoints.watch.watcher import DirectoryWatcher
from prefect_bt.errors import StoreError
from prefect_bt.ledger.records import RetentionPolicy
from tests.checkpoints.watch.test_stability import settled_files

from . import folders
from .folders import FAST, JOB, PROJECT, flush
from .running import Counting, Running, listed, wait_for

SIZE = transfer._SMALL + 1000


class Picky(Counting):
    """Refuses what holds certain bytes, with an error of a certain kind."""

    def __init__(self, root, error, bad=b"bad"):
        super().__init__(root)
        self.error, self.bad, self.tries = error, bad, 0

    def put(self, key, data):
        if "/objects/" in key and data == self.bad:
            self.tries += 1
            raise self.error
        super().put(key, data)


@pytest.mark.parametrize("error", [StoreError("never this one"), RuntimeError("odd")])
def test_one_that_fails_for_ever_delays_nobody(tmp_path, ckpts, error):
    store = Picky(tmp_path / "store", error)
    folders.write(ckpts / "a-bad", {"x": b"bad"})
    options = UploadOptions(settle=0.05, scan=60, stall_timeout=0.1)
    with Running(store, ckpts, options) as running:
        wait_for(lambda: store.tries)
        running.commits("good", {"x": b"good"})
        assert "a-bad" not in listed(store)
        assert running.reports[-1].trouble
        shutil.rmtree(ckpts / "a-bad")
    assert not running.status.error


@pytest.mark.parametrize("meanwhile", ["another", "the same"])
def test_changes_during_an_upload_are_seen_at_once(counting, ckpts, meanwhile):
    sending, go_on, put = threading.Event(), threading.Event(), counting.put

    def slow(key, data):
        if data == b"first":
            sending.set()
            go_on.wait(200)
        put(key, data)

    counting.put = slow
    folders.write(ckpts / "one", {"x": b"first"})
    name = "two" if meanwhile == "another" else "one"
    with Running(counting, ckpts) as running:
        assert sending.wait(200)
        folders.write(ckpts / name, {"y": b"second"})
        time.sleep(0.2)
        go_on.set()
        wait_for(lambda: name in listed(counting) and f"{name}/y" in _paths(listed(counting)[name]))
        wait_for(lambda: running.done(name))


def test_what_comes_due_during_a_long_look_is_not_passed_over(store, ckpts, monkeypatch):
    decide = StabilityTracker.decide

    def slow(self, name, *, now, examine):
        taken = decide(self, name, now=now, examine=examine)
        time.sleep(0.4)
        return taken

    monkeypatch.setattr(StabilityTracker, "decide", slow)
    # What was passed over would not come: nothing else is due before the test gives up.
    monkeypatch.setattr(stability, "SIGN_QUIET", 3600.0)
    monkeypatch.setattr(stability, "GAP_QUIET", 3600.0)
    monkeypatch.setattr(uploader, "_MAX_WAIT", 3600.0)
    monkeypatch.setattr(watcher, "_FULL_SCAN_INTERVAL", 3600.0)
    with Running(store, ckpts, UploadOptions(settle=0.3, scan=0.02)) as running:
        running.commits("one", {"x": b"1"})


def _paths(checkpoint):
    return {file.path for file in checkpoint.files()}


def test_a_store_that_is_down_is_not_asked_for_each_of_many(counting, ckpts):
    asked = []

    def down(key, data):
        asked.append(key)
        raise StoreError("The bucket answers 503")

    counting.put = down
    for number in range(40):
        folders.write(ckpts / f"checkpoint-{number}", {"x": b"%d" % number})
    options = UploadOptions(settle=0.05, scan=0.02, stall_timeout=0.01)
    status = flush(counting, ckpts, options=options)
    assert len(status.uncommitted) == 40
    assert len(asked) < 20


def test_of_many_that_fail_the_last_is_tried_too(tmp_path, ckpts):
    store = Picky(tmp_path / "store", StoreError("not these"))
    for number in range(8):
        folders.write(ckpts / f"checkpoint-{number}", {"x": b"bad", "y": b"%d" % number})
        folders.touch_back(ckpts / f"checkpoint-{number}/x", 0)
    status = flush(store, ckpts, {"last/x": b"good"})
    assert set(listed(store)) == {"last"}
    assert len(status.uncommitted) == 8


def test_pauses_are_of_each_name_alone():
    retries = RetrySchedule(1.0)
    error = StoreError("no")
    for now, pause in ((0, 1), (1, 2), (3, 4), (7, 8)):
        retries.record_failure("a", error, now=now)
        assert not retries.is_due("a", now=now + pause - 0.1)
        assert retries.is_due("a", now=now + pause)
        assert retries.is_due("b", now=now)
    for _ in range(9):
        retries.record_failure("a", error, now=100)
    assert retries.seconds_until_due(now=100) == 30
    retries.reset_delays()
    assert retries.is_due("a", now=100)
    retries.record_success("a")
    assert retries.seconds_until_due(now=100) == float("inf")


def test_a_damaged_manifest_costs_its_own_checkpoint_only(store, ckpts):
    flush(store, ckpts, {"a/x": b"1"})
    (ref,) = iter_manifest_refs(store, PROJECT, JOB)
    store.put(ref.key, b"{ cut")
    folders.write(ckpts / "b", {"x": b"2"})
    for attempt in (1, 2):
        assert not flush(store, ckpts, attempt=attempt).error
        assert {ref.name for ref in iter_manifest_refs(store, PROJECT, JOB)} == {"a", "b"}
    of_a = [ref for ref in iter_manifest_refs(store, PROJECT, JOB) if ref.name == "a"]
    assert max(of_a, key=lambda one: one.sort_key).key != ref.key


def test_a_name_that_comes_back_with_other_bytes_of_the_same_size_and_time(store, ckpts):
    with Running(store, ckpts) as running:
        running.commits("best", {"x": b"11"})
        seen = (ckpts / "best/x").stat()
        (ckpts / "best").rename(ckpts.parent / "away")
        time.sleep(0.5)
        new = ckpts.parent / "new"
        folders.write(new, {"x": b"22"})
        os.utime(new / "x", ns=(seen.st_atime_ns, seen.st_mtime_ns))
        new.rename(ckpts / "best")
    assert listed(store)["best"].manifests[0].digests == folders.contents(ckpts / "best")


def test_a_state_beside_a_growing_log_is_not_kept_waiting(store, ckpts):
    """A root with ckpt.pt, written anew, and a log that never rests."""
    over = threading.Event()

    def log():
        with (ckpts / "train.log").open("ab", buffering=0) as stream:
            while not over.wait(0.05):
                stream.write(b"step\n")

    (ckpts / "ckpt.pt").write_bytes(folders.torch_zip(b"1"))
    writer = threading.Thread(target=log)
    writer.start()
    try:
        options = UploadOptions(settle=0.3, scan=0.02, recommit_interval=600)
        with Running(store, ckpts, options) as running:
            wait_for(lambda: running.done("."))
            for state in (b"2", b"3"):
                before = len(versions(store))
                (ckpts / "ckpt.pt").write_bytes(folders.torch_zip(state))
                wait_for(lambda before=before: len(versions(store)) > before)
            over.set()
            writer.join()
            assert len(versions(store)) < 8
    finally:
        over.set()
        writer.join()


def versions(store):
    return [info for info in store.list("") if "/manifests/" in info.key]


@pytest.mark.parametrize("grows", [0, 1])
def test_saved_every_half_minute_under_one_name_is_taken_nevertheless(grows):
    stability, found, taken = StabilityTracker(1.5), {}, []
    for now in range(600):
        if now % 20 == 0:
            fact = FileStat(9 + grows * now, now)
            found = {".": LocalCheckpoint(".", {"config.json": FileStat(1, 1), "ckpt.pt": fact})}
        stability.observe(found, now=now)
        if settled_files(stability, ".", now=now) is not None:
            taken.append(now)
    assert max(taken) > 450


def test_written_anew_is_a_new_version_and_written_on_is_the_same():
    def at(now, size, version, *, more=()):
        files = {"ckpt": FileStat(size, version), "static": FileStat(1, 1)}
        files |= {path: FileStat(1, now) for path in more}
        tracker.observe({".": LocalCheckpoint(".", files)}, now=now)
        return settled_files(tracker, ".", now=now) is not None

    tracker = StabilityTracker(2)
    assert not at(0, 9, 1) and at(2, 9, 1)
    assert not at(10, 9, 2) and at(12, 9, 2)  # anew
    assert not at(20, 9, 3) and at(22, 9, 3)
    assert not at(24, 12, 4)  # it grew: taken too early, at a pause of 4 seconds
    assert not at(29, 12, 4) and at(30, 12, 4)
    assert not at(40, 9, 5) and not at(45, 9, 5) and at(46, 9, 5)
    assert not at(54, 9, 5, more=["later"])  # so was this one, at a pause of 14 seconds
    assert not at(74, 9, 5, more=["later"])
    assert at(75, 9, 5, more=["later"]) is False


def test_many_new_files_are_no_reason_to_be_late(ckpts):
    directory = DirectoryWatcher(Volumes(ckpts))
    directory.refresh()
    (ckpts / "a").mkdir()
    for number in range(2000):
        (ckpts / "a" / f"{number}").touch()
    directory.refresh()
    (ckpts / "b").touch()
    assert directory._not_before - time.monotonic() <= watcher._COALESCE
    while not directory.wait_for_change(30):
        pass
    directory.close()


def test_looking_costs_a_small_share_in_the_long_run(ckpts):
    directory = DirectoryWatcher(Volumes(ckpts))
    before = time.monotonic()
    for _ in range(10):
        directory.throttle(watcher._CPU_BURST)
    pause = directory._not_before - before
    directory.close()
    assert pause >= watcher._MAX_PAUSE


@pytest.mark.parametrize("how", ["deleted", "moved away"])
def test_a_directory_that_is_replaced(store, ckpts, how):
    options = UploadOptions(settle=0.05, scan=0.1)
    with Running(store, ckpts, options) as running:
        running.commits("a", {"x": b"1"})
        if how == "deleted":
            shutil.rmtree(ckpts)
        else:
            ckpts.rename(ckpts.with_name("away"))
        running.commits("b", {"x": b"2"})
        running.commits("c", {"x": b"3"})


# -- where bytes lie ----------------------------------------------------------------------------


def test_a_receipt_that_was_left_behind_speaks_for_no_other_bytes(counting, ckpts):
    """Two large files alike in every sample, one of them let go, and an uploader anew."""
    one = bytearray(os.urandom(SIZE))
    other = bytearray(one)
    other[SIZE // transfer._SAMPLES // 2 + transfer._SAMPLE] ^= 1
    folders.write(ckpts / "step-1", {"x": bytes(one)})
    keep = replace(FAST, retention=RetentionPolicy(keep_last=1))
    flush(counting, ckpts, options=keep)
    flush(counting, ckpts, {"step-2/x": b"small"}, options=keep)
    assert set(listed(counting)) == {"step-2"}
    shutil.rmtree(ckpts / "step-1")
    flush(counting, ckpts, {"step-3/x": bytes(other)}, options=keep)
    flush(counting, ckpts, {"step-4/x": bytes(one)})
    assert verify_committed.verify(counting, PROJECT, JOB) == []
    for name in ("step-3", "step-4"):
        assert listed(counting)[name].manifests[0].digests == folders.contents(ckpts / name)


def test_a_receipt_that_cannot_be_left_is_no_reason_to_send_all_again(counting, ckpts):
    put = counting.put

    def no_receipts(key, data):
        if "/objects/" in key and not data:
            raise StoreError("not now")
        put(key, data)

    counting.put = no_receipts
    assert not flush(counting, ckpts, {"a/x": os.urandom(SIZE)}).error
    assert len(counting.sent) == 1
    assert verify_committed.verify(counting, PROJECT, JOB) == []


def test_the_same_small_bytes_are_sent_by_one_thread_alone(counting, ckpts):
    """A store takes back an object that arrived damaged, also under another thread's feet."""
    put = counting.put

    def slow(key, data):
        time.sleep(0.05)
        put(key, data)

    counting.put = slow
    folders.write(ckpts / "a", {f"{number}": b"same" for number in range(100)})
    assert not flush(counting, ckpts, options=FAST).error
    assert len(counting.sent) == 1
    assert len(listed(counting)["a"].manifests[0].entries) == 100
