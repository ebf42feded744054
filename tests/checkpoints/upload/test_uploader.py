"""The uploader in this process, one flush or one loop at a time, with faults put in."""

import os
import shutil
import time
from dataclasses import replace
from hashlib import sha256

import pytest

from prefect_bt.checkpoints.committed import verify_committed
from prefect_bt.checkpoints.committed.commit_index import CommitIndex
from prefect_bt.checkpoints.formats.decision import STILL_WRITING, Evidence
from prefect_bt.checkpoints.upload import transfer
from prefect_bt.checkpoints.upload.uploader import UploadOptions
from prefect_bt.errors import StoreError
from prefect_bt.ledger.records import RetentionPolicy
from prefect_bt.object_store.disk import DiskStore
from tests.checkpoints import folders
from tests.checkpoints.folders import FAST, JOB, PROJECT, flush
from tests.checkpoints.running import Running, listed, wait_for


def test_a_flush_commits_all_complete_checkpoints(store, ckpts):
    folders.write(ckpts / "checkpoint-10", folders.hf_full(10))
    folders.write(ckpts / "v0/checkpoint-5", folders.hf_lora(5))
    folders.write(ckpts, {"train.log": b"x"})
    (ckpts / "empty/inner").mkdir(parents=True)
    reports = []
    status = flush(store, ckpts, reports=reports, group_size=2)
    assert status.flushed and not status.error and not status.uncommitted
    assert set(status.committed) == {"checkpoint-10", "v0/checkpoint-5", "."}
    assert status.bytes_done == status.bytes_total == sum(c.size for c in listed(store).values())
    assert reports[-1] == status and status.lag is not None and status.rate > 0
    full, lora = listed(store)["checkpoint-10"], listed(store)["v0/checkpoint-5"]
    assert (full.type, full.base_model, full.step) == ("full", "org/base", 10)
    config = {"peft_type": "LORA", "r": 16, "base_model_name_or_path": "org/base"}
    assert (lora.type, lora.lora_adapter_config) == ("lora", config)
    written = folders.contents(ckpts / "checkpoint-10").items()
    committed = {file.path: file.sha256 for file in full.files()}
    assert committed == {f"checkpoint-10/{path}": digest for path, digest in written}
    file = next(lora.files())
    assert file.logical_path == f"training_projects/{PROJECT}/jobs/{JOB}/rank-0/{file.path}"
    assert full.manifests[0].group_size == 2
    assert verify_committed.verify(store, PROJECT, JOB) == []


def test_nothing_at_all(store, tmp_path):
    assert flush(store, tmp_path / "never made").flushed
    assert listed(store) == {}


def test_incomplete_checkpoints_are_named(store, ckpts):
    folders.write(ckpts / "checkpoint-10", folders.hf_full(10))
    for path in (ckpts / "checkpoint-10").iterdir():
        folders.touch_back(path, 60)  # the oldest, also where a file system's clock is coarse
    half = folders.hf_full(20)
    half["model.safetensors"] = half["model.safetensors"][:50]
    folders.write(ckpts / "checkpoint-20", half)
    incomplete = folders.hf_full(30)
    del incomplete["trainer_state.json"]
    folders.write(ckpts / "checkpoint-30", incomplete)
    folders.write(ckpts / "tmp-checkpoint-40", folders.hf_full(40))
    status = flush(store, ckpts)
    assert set(listed(store)) == {"checkpoint-10"}
    assert not status.error
    found = [line.split(":")[0] for line in status.uncommitted]
    assert found == ["checkpoint-20", "checkpoint-30", "tmp-checkpoint-40"]
    assert "trainer_state.json is missing" in status.uncommitted[1]


def test_an_incomplete_checkpoint_is_reported_until_it_is_complete(store, ckpts):
    complete = folders.hf_full(20)
    late = {name: complete.pop(name) for name in ("optimizer.pt", "trainer_state.json")}
    del complete["training_args.bin"]
    with Running(store, ckpts) as running:
        running.commits("checkpoint-10", folders.hf_full(10))
        folders.write(ckpts / "checkpoint-20", complete)
        wait_for(lambda: running.reports[-1].waiting)
        assert "optimizer.pt is missing" in running.reports[-1].waiting[0]
        running.commits("checkpoint-20", late)
        wait_for(lambda: running.reports[-1].waiting == ())


def save_at_once(running: Running, step: int) -> None:
    """Save a checkpoint in one step: a pause between two files would be reported as a wait."""
    aside = running.directory.with_name("aside")
    folders.write(aside, folders.hf_full(step))
    aside.rename(running.directory / f"checkpoint-{step}")
    wait_for(lambda: running.done(f"checkpoint-{step}"))


@pytest.mark.parametrize("deleted", ["optimizer.pt", "trainer_state.json"])
def test_a_committed_checkpoint_of_which_files_are_deleted_is_waited_for_no_more(
    store, ckpts, deleted
):
    with Running(store, ckpts) as running:
        save_at_once(running, 10)
        (ckpts / "checkpoint-10" / deleted).unlink()
        save_at_once(running, 20)
        assert not any(report.waiting for report in running.reports)
    assert running.status.uncommitted == ()
    assert f"checkpoint-10/{deleted}" in {
        file.path for file in listed(store)["checkpoint-10"].files()
    }


def test_the_loop_waits_until_settled(store, ckpts):
    options = UploadOptions(settle=0.4, scan=0.02)
    with Running(store, ckpts, options) as running:
        target = ckpts / "best"
        target.mkdir()
        last, longest = time.monotonic(), 0.0
        end = last + 1.0
        with (target / "weights.dat").open("wb") as stream:
            while time.monotonic() < end:
                before = time.monotonic()
                stream.write(b"x" * 100)
                stream.flush()
                longest, last = max(longest, time.monotonic() - last), before
                time.sleep(0.05)
        seen = listed(store)
        longest = max(longest, time.monotonic() - last)
        # A machine that stood still between two writes made a pause that is long enough.
        assert longest >= options.settle or seen == {}
        wait_for(lambda: running.done("best"))
    assert running.status.flushed
    assert listed(store)["best"].size == (target / "weights.dat").stat().st_size


def test_unchanged_content_is_sent_once_in_a_job(counting, ckpts):
    folders.write(ckpts / "checkpoint-10", folders.hf_full(10))
    folders.write(ckpts / "checkpoint-20", folders.hf_full(20))
    flush(counting, ckpts)
    # Only the step differs between the two.
    assert len(counting.sent) == len(set(folders.contents(ckpts).values())) == 9
    folders.write(ckpts / "merged", folders.hf_full(20))
    for attempt, rank in ((1, 0), (2, 0), (2, 1)):
        flush(counting, ckpts, attempt=attempt, rank=rank, group_size=2)
    assert len(counting.sent) == 9
    # Nothing new to say in attempt 2: the first attempt's manifests stand.
    assert {m.attempt for m in listed(counting)["checkpoint-10"].manifests if m.rank == 0} == {1}


def test_an_object_that_lost_bytes_is_sent_again(counting, ckpts):
    flush(counting, ckpts, {"a/x": b"12345"})
    key = next(listed(counting)["a"].files()).key
    DiskStore.put(counting, key, b"12")
    flush(counting, ckpts, {"b/x": b"12345"}, attempt=2)
    assert counting.sent == [sha256(b"12345").hexdigest()] * 2
    assert [fault.problem for fault in verify_committed.verify(counting, PROJECT, JOB)] == [
        "has 2 bytes, not 5"
    ]


def test_nothing_unchanged_is_read_twice(store, ckpts, monkeypatch):
    reads = []
    original = transfer.read_unchanged
    monkeypatch.setattr(
        transfer,
        "read_unchanged",
        lambda source, fact: reads.append(source.name) or original(source, fact),
    )
    folders.write(ckpts / "best", {"a": b"1", "b": b"2"})
    with Running(store, ckpts) as running:
        wait_for(lambda: running.done("best"))
        time.sleep(0.2)
        assert sorted(reads) == ["a", "b"]
        # In one step: a file that is written in place is empty first, and may be read so.
        (ckpts.parent / "b").write_bytes(b"3")
        (ckpts.parent / "b").rename(ckpts / "best/b")
        wait_for(lambda: len(reads) == 3)
    assert reads[2:] == ["b"]
    assert [m.version for m in listed(store)["best"].manifests] == [2]


def test_overwritten_after_the_commit_is_a_new_version(store, ckpts):
    folders.write(ckpts / "best", folders.hf_full(10))
    flush(store, ckpts)
    folders.write(ckpts / "best", folders.hf_full(20, seed=b"v"))
    flush(store, ckpts)
    folders.write(ckpts / "best", folders.hf_full(30, seed=b"u"))
    flush(store, ckpts, attempt=2)
    assert listed(store)["best"].step == 30
    keys = [info.key.rpartition("/")[2] for info in store.list("") if "/manifests/" in info.key]
    assert keys == ["0001-0001.json", "0001-0002.json", "0002-0001.json"]


def test_same_size_and_time_but_other_bytes_is_seen_by_a_running_uploader(store, ckpts):
    folders.write(ckpts / "best", {"a": b"1"})
    with Running(store, ckpts) as running:
        wait_for(lambda: running.done("best"))
        seen = (ckpts / "best/a").stat()
        (ckpts / "best/a").write_bytes(b"2")
        os.utime(ckpts / "best/a", ns=(seen.st_atime_ns, seen.st_mtime_ns))
    assert store.get(next(listed(store)["best"].files()).key) == b"2"


def test_a_touched_file_is_no_new_version(store, ckpts):
    flush(store, ckpts, {"best/a": b"1"})
    os.utime(ckpts / "best/a", (1, 1))
    flush(store, ckpts)
    assert listed(store)["best"].manifests[0].version == 1


def test_rotation_keeps_the_commit_complete(store, ckpts):
    folders.write(ckpts / "checkpoint-10", folders.hf_full(10))
    whole = folders.contents(ckpts / "checkpoint-10")
    with Running(store, ckpts) as running:
        wait_for(lambda: running.done("checkpoint-10"))
        for path in sorted((ckpts / "checkpoint-10").iterdir()):
            path.unlink()
            time.sleep(0.1)  # longer than settling
    assert not running.status.uncommitted
    stored = listed(store)["checkpoint-10"]
    assert stored.manifests[0].version == 1
    assert stored.manifests[0].digests == whole


def test_two_attempts_same_name(store, ckpts, tmp_path):
    """A stale uploader of attempt 1 finishes after attempt 2 has begun (ray #41700)."""
    other = tmp_path / "other"
    folders.write(ckpts / "checkpoint-10", folders.hf_full(10, seed=b"1"))
    folders.write(other / "checkpoint-10", folders.hf_full(10, seed=b"2"))
    flush(store, other, attempt=2)
    flush(store, ckpts, attempt=1)
    newest = listed(store)["checkpoint-10"]
    assert newest.attempt == 2
    assert newest.manifests[0].digests == folders.contents(other / "checkpoint-10")
    assert verify_committed.verify(store, PROJECT, JOB) == []


def test_two_uploaders_of_one_attempt_do_not_overwrite(store, ckpts):
    folders.write(ckpts / "best", {"a": b"1"})
    late = CommitIndex(store, folders.origin())
    flush(store, ckpts)
    first = listed(store)["best"].manifests[0]
    assert late.commit(first) == first
    again = late.commit(first)
    assert again.version == 2


def test_a_file_that_changes_while_it_is_sent(store, ckpts, monkeypatch):
    folders.write(ckpts / "best", {"a": b"1" * 100, "b": b"1"})
    original, rounds = transfer.read_unchanged, []

    def read(source, fact):
        digest = original(source, fact)
        if source.name == "a" and len(rounds) < 3:
            rounds.append(1)
            source.path.write_bytes(b"%d" % len(rounds) * 100)
        return digest

    monkeypatch.setattr(transfer, "read_unchanged", read)
    status = flush(store, ckpts)
    assert not status.error and not status.uncommitted
    assert listed(store)["best"].manifests[0].digests == folders.contents(ckpts / "best")
    assert verify_committed.verify(store, PROJECT, JOB) == []


def test_a_file_that_vanishes_while_it_is_sent(store, ckpts, monkeypatch):
    folders.write(ckpts / "checkpoint-10", folders.hf_full(10))
    folders.write(ckpts / "checkpoint-20", folders.hf_full(20))
    original = transfer.read_unchanged

    def read(source, fact):
        shutil.rmtree(ckpts / "checkpoint-10", ignore_errors=True)
        return original(source, fact)

    monkeypatch.setattr(transfer, "read_unchanged", read)
    status = flush(store, ckpts)
    assert not status.error and not status.uncommitted
    assert set(listed(store)) == {"checkpoint-20"}


def test_a_file_that_never_stops_changing_is_named(store, ckpts, monkeypatch):
    folders.write(ckpts / "best", {"a": b"1"})
    original, count = transfer.read_unchanged, []

    def read(source, fact):
        count.append(1)
        source.path.write_bytes(b"x" * len(count))
        return original(source, fact)

    monkeypatch.setattr(transfer, "read_unchanged", read)
    monkeypatch.setattr("prefect_bt.checkpoints.upload.uploader._MAX_FLUSH_ROUNDS", 3)
    status = flush(store, ckpts)
    assert status.uncommitted == ("best: it is still being written",)
    assert listed(store) == {}
    assert len(count) == 3, "one for each round"


def test_a_fault_in_the_words_of_a_change_is_no_change(store, ckpts, monkeypatch):
    folders.write(ckpts / "best", {"a": b"1"})
    looks = []

    def examine(self, checkpoint, earlier):
        looks.append(checkpoint.name)
        return Evidence(fault=STILL_WRITING)

    monkeypatch.setattr("prefect_bt.checkpoints.upload.commit.Inspector.examine", examine)
    assert flush(store, ckpts).uncommitted == ("best: it is still being written",)
    assert looks == ["best"], "the flush decides by the result, not by its text"


def test_a_store_that_fails_for_a_while(counting, ckpts):
    counting.broken = StoreError("The bucket answers 503", url="s3://b")
    folders.write(ckpts / "checkpoint-10", folders.hf_full(10))
    with Running(counting, ckpts) as running:
        time.sleep(0.3)
        assert not running.done("checkpoint-10")
        counting.broken = None
        wait_for(lambda: running.done("checkpoint-10"))
    assert not running.status.error


def test_a_store_that_stays_broken_is_an_error_that_names_all(counting, ckpts):
    counting.broken = StoreError("The bucket answers 503", url="s3://b", next_step="Wait.")
    folders.write(ckpts / "checkpoint-10", {"model.bin": b"x"})
    began = time.monotonic()
    status = flush(counting, ckpts, rank=3)
    assert time.monotonic() - began > 0.4
    for part in ("Rank 3", "checkpoint-10", "model.bin", "The bucket answers 503", "Wait."):
        assert part in status.error
    assert status.flushed and status.uncommitted[0].startswith("checkpoint-10: ")
    assert (ckpts / "checkpoint-10/model.bin").exists()


def test_a_store_that_cannot_even_be_listed(ckpts, tmp_path):
    class Dead(DiskStore):
        def list(self, prefix):
            raise StoreError("No route to host", url=self.url)

    folders.write(ckpts / "a", {"x": b""})
    assert "No route to host" in flush(Dead(tmp_path / "store"), ckpts).error


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read anything")
def test_a_file_that_may_not_be_read(store, ckpts):
    folders.write(ckpts / "a", {"x": b"1"})
    (ckpts / "a/x").chmod(0)
    assert "a/x" in flush(store, ckpts).error


def test_retention_lets_go_while_the_job_runs(store, ckpts):
    options = replace(FAST, retention=RetentionPolicy(keep_last=2, keep_every=30))
    with Running(store, ckpts, options) as running:
        for step in (10, 20, 30, 40, 50):
            running.commits(f"checkpoint-{step}", folders.hf_full(step, seed=b"%d" % step))
    assert set(listed(store)) == {"checkpoint-30", "checkpoint-40", "checkpoint-50"}
    assert set(running.status.pruned) == {"checkpoint-10", "checkpoint-20"}
    named = {file.key for one in listed(store).values() for file in one.files()}
    assert {info.key for info in store.list("") if "/objects/" in info.key} == named
    assert verify_committed.verify(store, PROJECT, JOB) == []
    # The folders still lie there: another uploader does not begin again.
    flush(store, ckpts, options=options)
    assert set(listed(store)) == {"checkpoint-30", "checkpoint-40", "checkpoint-50"}


def test_what_was_let_go_is_sent_again_when_it_is_needed_again(store, ckpts):
    options = replace(FAST, retention=RetentionPolicy(keep_last=1))
    with Running(store, ckpts, options) as running:
        for step in (10, 20):
            running.commits(f"checkpoint-{step}", {"w": b"%d" % step})
        running.commits("best", {"w": b"10"})
    assert set(listed(store)) == {"checkpoint-20", "best"}
    assert verify_committed.verify(store, PROJECT, JOB) == []


def test_a_commit_follows_a_proven_end_in_a_moment_and_else_the_settle_time(store, ckpts):
    with Running(store, ckpts, UploadOptions()) as running:
        for step in (10, 20):
            running.commits(f"checkpoint-{step}", folders.hf_full(step))
    manifests = listed(store)["checkpoint-20"].manifests
    assert manifests[0].digests == folders.contents(ckpts / "checkpoint-20")
