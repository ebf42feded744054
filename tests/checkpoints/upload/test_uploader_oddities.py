"""What a checkpoint directory may hold besides tidy checkpoints."""

import os
import time

from prefect_bt.checkpoints.upload import transfer
from prefect_bt.checkpoints.upload.uploader import UploadOptions
from tests.checkpoints import folders
from tests.checkpoints.folders import flush
from tests.checkpoints.running import Running, listed, wait_for


def test_names_that_are_hard(store, ckpts):
    odd = os.fsdecode(b"\xff\xfe.bin")
    folders.write(ckpts / "mod el ü/..x", {"a b%2F#": b"1", odd: b"2"})
    folders.write(ckpts / "more", {"line\nbreak": b"3"})
    (ckpts / odd).mkdir()
    folders.write(ckpts / odd, {"x": b""})
    status = flush(store, ckpts)
    assert set(listed(store)) == {"mod el ü", "more"}
    assert "UTF-8" in status.uncommitted[0]
    assert {file.path for file in listed(store)["mod el ü"].files()} == {
        "mod el ü/..x/a b%2F#",
        f"mod el ü/..x/{odd}",
    }
    assert not status.error


def test_pipes_and_sockets_are_left_alone(store, ckpts):
    folders.write(ckpts / "a", {"x": b"1"})
    os.mkfifo(ckpts / "a/pipe")
    assert not flush(store, ckpts).error
    assert [file.path for file in listed(store)["a"].files()] == ["a/x"]


def test_a_link_to_a_checkpoint_is_one_of_its_own(counting, ckpts):
    folders.write(ckpts / "checkpoint-10", folders.hf_full(10))
    (ckpts / "last").symlink_to("checkpoint-10")
    flush(counting, ckpts)
    stored = listed(counting)
    assert stored["last"].manifests[0].digests == stored["checkpoint-10"].manifests[0].digests
    assert stored["last"].type == "full"
    assert len(counting.sent) == 8


def test_logs_do_not_make_a_version_a_second(store, ckpts):
    options = UploadOptions(settle=0.02, scan=0.01, recommit_interval=3600)
    with Running(store, ckpts, options) as running:
        (ckpts / "train.log").write_bytes(b"")
        wait_for(lambda: running.done("."))
        for number in range(1, 10):
            (ckpts / "train.log").write_bytes(b"x" * number)
            time.sleep(0.1)
    versions = [info for info in store.list("") if "/manifests/" in info.key]
    assert len(versions) == 2
    assert next(listed(store)["."].files()).size == 9


def test_the_status_is_reported_while_a_file_is_read(store, ckpts, monkeypatch):
    folders.write(ckpts / "a", {"x": b"1"})
    original, reports = transfer.read_unchanged, []

    def read_for_long(source, fact):
        told = len(reports)
        wait_for(lambda: len(reports) >= told + 2)
        return original(source, fact)

    monkeypatch.setattr(transfer, "read_unchanged", read_for_long)
    flush(store, ckpts, reports=reports)
    assert "a" in listed(store)
