"""An uploader's word through the store, and how it reads."""

import threading
import time

import pytest

from prefect_bt import codec
from prefect_bt.checkpoints.upload import upload_status
from prefect_bt.checkpoints.upload.progress_text import format_upload, format_uploads
from prefect_bt.checkpoints.upload.upload_status import (
    RankUpload,
    StatusPublisher,
    UploadStatusReader,
    find_uncommitted_reason,
    format_uncommitted,
    plan_repeat,
)
from prefect_bt.errors import StoreError
from prefect_bt.ledger.records import UploadRepeat, UploadStatus
from prefect_bt.object_store.disk import DiskStore
from prefect_bt.planning.plan import CheckpointPlan
from prefect_bt.text.quantities import format_elapsed, format_size
from tests.checkpoints import folders
from tests.checkpoints.folders import JOB, PROJECT
from tests.checkpoints.running import wait_for


def looked(store, attempt=1):
    return UploadStatusReader(store, PROJECT, JOB, attempt).read()


def test_the_last_word_arrives(store, monkeypatch):
    monkeypatch.setattr(upload_status, "_CLOSE_TIMEOUT", 300.0)
    for rank in (1, 0):
        announcer = StatusPublisher(store, folders.origin(rank=rank))
        for done in range(100):
            announcer.publish(UploadStatus(updated_at=1, bytes_done=done, bytes_total=99))
        announcer.close()
    assert [(one.rank, one.status.bytes_done) for one in looked(store)] == [(0, 99), (1, 99)]


def test_not_every_word_is_sent_but_commits_and_faults_are_at_once(tmp_path):
    class Slow(DiskStore):
        puts = 0

        def put(self, key, data):
            super().put(key, data)
            Slow.puts += 1

    store = Slow(tmp_path)
    announcer = StatusPublisher(store, folders.origin(), interval=3600)
    announcer.publish(UploadStatus(updated_at=1))
    wait_for(lambda: Slow.puts == 1)
    for done in range(50):
        announcer.publish(UploadStatus(updated_at=1, bytes_done=done))
    announcer.publish(UploadStatus(updated_at=1, committed=("a",)))
    wait_for(lambda: looked(store)[0].status.committed == ("a",))
    announcer.publish(UploadStatus(updated_at=1, committed=("a",), trouble="503"))
    wait_for(lambda: looked(store)[0].status.trouble == "503")
    announcer.close()
    assert Slow.puts <= 4


def test_a_store_that_hangs_stops_nobody(tmp_path):
    go = threading.Event()

    class Hanging(DiskStore):
        def put(self, key, data):
            go.wait()  # an announcer that waits for the store never comes to go.set()
            raise StoreError("timed out", url=self.url)

    announcer = StatusPublisher(Hanging(tmp_path), folders.origin())
    for done in range(1000):
        announcer.publish(UploadStatus(updated_at=1, bytes_done=done))
    go.set()
    announcer.close()


def test_garbage_beside_it_is_passed_over(store):
    StatusPublisher(store, folders.origin()).close()
    prefix = f"training_projects/{PROJECT}/jobs/{JOB}/attempts/0001/uploads"
    store.put(f"{prefix}/rank-7.json", b"{not json")
    store.put(f"{prefix}/else.txt", b"")
    store.put(f"{prefix}/rank-3.json", codec.dumps(UploadStatus(updated_at=1)).encode())
    assert [one.rank for one in looked(store)] == [3]


def test_only_what_was_replaced_is_read_again(tmp_path, monkeypatch):
    store = DiskStore(tmp_path)
    gets = []
    original = store.get
    monkeypatch.setattr(store, "get", lambda key: gets.append(key) or original(key))
    uploads = UploadStatusReader(store, PROJECT, JOB, 1)
    prefix = f"training_projects/{PROJECT}/jobs/{JOB}/attempts/0001/uploads"
    store.put(f"{prefix}/rank-0.json", codec.dumps(UploadStatus(updated_at=1)).encode())
    wait_for(lambda: uploads.read() and time.time() - uploads.read()[0].updated_at > 2.1)
    gets.clear()
    assert len(uploads.read()) == 1
    assert gets == []
    store.put(f"{prefix}/rank-0.json", codec.dumps(UploadStatus(updated_at=2)).encode())
    assert uploads.read()[0].status.updated_at == 2


def rank(**status):
    return RankUpload(2, 0.0, UploadStatus(updated_at=0, **status))


@pytest.mark.parametrize(
    ("upload", "words"),
    [
        (rank(), "nothing to upload yet"),
        (
            rank(current="c-1", bytes_done=1_200_000_000, bytes_total=4_000_000_000, rate=3.1e8),
            "c-1: 1.2 GB of 4.0 GB (30 %), 310.0 MB/s, 9 s left",
        ),
        (rank(current="c-1", bytes_total=10), "c-1: 0 B of 10 B (0 %)"),
        (
            rank(committed=("a", "b"), lag=1.94),
            "2 committed, the last one 1.9 s after its last write",
        ),
        (rank(trouble="503"), "upload failed, tried again: 503"),
        (
            rank(error="503", repeat=UploadRepeat(30.0, 2, 4)),
            "upload failed, is repeated in 30 s (2 of 4): 503",
        ),
        (rank(waiting=("c: no index",)), "not committed: c: no index"),
    ],
)
def test_in_words(upload, words):
    assert format_upload(upload) == words
    assert format_uploads([upload]) == f"rank 2: {words}"


def test_sizes_and_times():
    sizes = [format_size(n) for n in (0, 999, 1000, 25_100_000, 4e9, 5e12)]
    assert sizes == ["0 B", "999 B", "1.0 KB", "25.1 MB", "4.0 GB", "5.0 TB"]
    times = [format_elapsed(n) for n in (0.4, 59, 200, 7500)]
    assert times == ["0 s", "59 s", "3 min 20 s", "2 h 5 min"]


def test_reasons_are_found_by_name():
    stored = format_uncommitted({"b": "x: y", "a": "it is still being written"})
    assert stored == ("a: it is still being written", "b: x: y")
    assert find_uncommitted_reason(stored, "b") == "x: y"
    assert find_uncommitted_reason(stored, "it is still being written") is None


@pytest.mark.parametrize(
    ("error", "store_failed", "failed_tries", "repeat"),
    [
        ("", False, 0, None),
        ("503", True, 0, UploadRepeat(5.0, 2, 4)),
        ("503", True, 2, UploadRepeat(120.0, 4, 4)),
        ("503", True, 3, None),
        ("KeyError", False, 0, UploadRepeat(5.0, 2, 2)),
        ("KeyError", False, 1, None),
    ],
)
def test_only_a_failure_of_the_store_is_repeated_more_than_once(
    error, store_failed, failed_tries, repeat
):
    status = UploadStatus(updated_at=1, error=error, store_failed=store_failed)
    delays = CheckpointPlan("/mnt/ckpts").repeat_delays
    assert plan_repeat(status, failed_tries=failed_tries, delays=delays) == repeat
    assert plan_repeat(status, failed_tries=failed_tries, delays=()) is None
