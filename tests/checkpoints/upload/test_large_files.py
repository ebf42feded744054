"""Files that travel in parts: read once, named by a sample, told apart by all of their bytes."""

import os

import pytest

from prefect_bt.checkpoints.committed import verify_committed
from prefect_bt.checkpoints.upload import transfer
from prefect_bt.errors import StoreError
from prefect_bt.object_store import open_store
from tests.checkpoints import folders
from tests.checkpoints.folders import JOB, PROJECT, flush
from tests.checkpoints.running import Counting, listed

SIZE = transfer._SMALL + 1000


def large(counting):
    """How often a large file was sent."""
    return len([name for name in counting.sent if name.endswith(".bytes")])


def test_the_same_bytes_are_sent_once_whatever_they_are_called(counting, ckpts):
    data = os.urandom(SIZE)
    flush(counting, ckpts, {"a/x": data})
    flush(counting, ckpts, {"b/y": data})
    flush(counting, ckpts, attempt=2)
    flush(counting, ckpts, attempt=2, rank=1, group_size=2)
    assert large(counting) == 1
    keys = {file.key for one in listed(counting).values() for file in one.files()}
    assert len(keys) == 1
    assert listed(counting)["a"].manifests[0].digests == folders.contents(ckpts / "a")
    assert verify_committed.verify(counting, PROJECT, JOB) == []


def test_alike_in_every_sample_but_not_the_same(counting, ckpts):
    data = bytearray(os.urandom(SIZE))
    folders.write(ckpts / "a", {"x": bytes(data)})
    gap = SIZE // transfer._SAMPLES
    data[gap // 2 + transfer._SAMPLE] ^= 1
    flush(counting, ckpts, {"b/x": bytes(data), "b/y": bytes(data)})
    assert large(counting) in {2, 3}  # x and y may set out at the same moment
    assert verify_committed.verify(counting, PROJECT, JOB) == []
    stored = listed(counting)
    assert stored["a"].manifests[0].digests == folders.contents(ckpts / "a")
    assert stored["b"].manifests[0].digests == folders.contents(ckpts / "b")


def test_sent_before_the_kill_is_not_sent_again(counting, ckpts):
    folders.write(ckpts / "a", {"x": os.urandom(SIZE), "model.safetensors": b"cut"})
    assert flush(counting, ckpts).uncommitted
    folders.write(ckpts / "a", {"model.safetensors": folders.safetensors()})
    before = large(counting)
    create, counting.create = counting.create, _refuse
    assert flush(counting, ckpts).error
    counting.create = create
    flush(counting, ckpts)
    assert (before, large(counting)) == (0, 1)
    assert verify_committed.verify(counting, PROJECT, JOB) == []


def _refuse(key, data):
    raise StoreError("no manifest today")


def test_an_object_without_its_receipt_is_never_written_over(counting, ckpts):
    """Killed right after the last part: nobody knows what lies there."""
    flush(counting, ckpts, {"a/x": os.urandom(SIZE)})
    key = next(listed(counting)["a"].files()).key
    for info in list(counting.list("")):
        if ("/objects/" in info.key and info.key != key) or "/manifests/" in info.key:
            counting.delete(info.key)
    flush(counting, ckpts)
    assert next(listed(counting)["a"].files()).key == key.replace(".bytes", "-2.bytes")
    assert large(counting) == 2
    assert verify_committed.verify(counting, PROJECT, JOB) == []


def test_a_file_that_changes_on_its_way(counting, ckpts):
    """It is sent again, and nothing is left of what was sent before."""
    folders.write(ckpts / "a", {"x": os.urandom(SIZE)})
    upload, rounds = counting.upload_verified, []

    def changing(key, source, **more):
        sent = upload(key, source, **more)
        if not rounds:
            with source.open("r+b") as stream:  # in no sample
                stream.seek(SIZE // transfer._SAMPLES // 2 + transfer._SAMPLE)
                stream.write(os.urandom(8))
        elif len(rounds) == 1:
            source.write_bytes(os.urandom(SIZE))
        rounds.append(key)
        return sent

    counting.upload_verified = changing
    status = flush(counting, ckpts)
    assert not status.error and not status.uncommitted
    assert listed(counting)["a"].manifests[0].digests == folders.contents(ckpts / "a")
    objects = [info.key for info in counting.list("") if info.key.endswith(".bytes")]
    assert objects == [next(listed(counting)["a"].files()).key]
    assert (rounds[2:], rounds[0] in objects) == (objects, False)
    assert verify_committed.verify(counting, PROJECT, JOB) == []


@pytest.mark.parametrize("kind", ["folder", "bucket in parts of its own"])
def test_a_file_that_grows_while_it_is_sent(tmp_path, ckpts, kind):
    """A file of holes grows faster than it is sent, and takes nothing of the job's disk."""
    folders.write(ckpts / "a", {"x": os.urandom(SIZE)})
    store = Counting(tmp_path / "store") if kind == "folder" else open_store("memory://")
    upload, sent = store.upload_verified, []

    def growing(key, source, *, on_bytes, **more):
        sent.append(0)

        def grow(size):
            sent[-1] += size
            if len(sent) == 1:
                os.truncate(ckpts / "a/x", SIZE + (1 << 30))
            on_bytes(size)

        try:
            return upload(key, source, on_bytes=grow, **more)
        finally:
            if len(sent) == 1:
                os.truncate(ckpts / "a/x", SIZE)

    store.upload_verified = growing
    assert not flush(store, ckpts).uncommitted
    assert sent[0] < 100 << 20
    assert sent[-1] == SIZE
    assert verify_committed.verify(store, PROJECT, JOB) == []


def test_progress_within_a_file(counting, ckpts):
    folders.write(ckpts / "a", {"x": os.urandom(5 * SIZE)})
    reports = []
    status = flush(counting, ckpts, reports=reports)
    assert status.bytes_done == status.bytes_total == 5 * SIZE
    assert status.rate > 0
