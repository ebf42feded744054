"""Processes that publish: killed, two at once, and answers that are lost."""

import os
import threading
import time

import pytest

from prefect_bt.object_store import open_store
from prefect_bt.weights.store_copy.copies import StoreMirror
from tests.checkpoints.buckets import Bucket, use
from tests.object_store.faulty import FaultyServer, Hang, LoseAnswer
from tests.object_store.small import PART as PIECE
from tests.weights.store_copy.publishing import digest, read_all

pytestmark = pytest.mark.usefixtures("small_pieces")


LAST = 21


@pytest.mark.parametrize(
    "until",
    [pytest.param(1, marks=pytest.mark.soak), 7, pytest.param(LAST, marks=pytest.mark.soak)],
)
def test_a_killed_publisher_leaves_nothing_half_published(url, blobs, until):
    files = {str(n): os.urandom(3000 + n) for n in range(LAST - 1)} | {"big": os.urandom(PIECE)}
    manifest, mirror = blobs.manifest(files), StoreMirror(open_store(url))
    process = blobs.publisher(url, manifest, until=until)
    try:
        assert process.stdout.readline() == "there\n"
        assert mirror.list_names() == []
    finally:
        process.kill()
        process.communicate()
    whole = {info.key.rpartition("/")[2] for info in open_store(url).list("weights/blobs")}
    assert all(
        digest(b"".join(mirror.read(one, start=0, length=2 * PIECE))) == one for one in whole
    )
    # A server may still be storing what the process had sent it.
    missing = sum(entry.size for entry in manifest.entries if entry.sha256 not in whole)
    assert mirror.publish(manifest, blobs) <= missing
    assert read_all(mirror, manifest) == files


def test_killed_while_it_sends_a_large_one(url, blobs):
    files = {"big": os.urandom(5 * PIECE)}
    manifest, mirror = blobs.manifest(files), StoreMirror(open_store(url))
    process = blobs.publisher(url, manifest, until=1)
    assert process.stdout.readline() == "there\n"
    process.kill()
    process.communicate()
    assert mirror.list_names() == []
    mirror.publish(manifest, blobs)
    assert read_all(mirror, manifest) == files


@pytest.mark.slow
def test_two_hosts_publish_at_once(url, blobs):
    files = {str(n): os.urandom(100 + n) for n in range(40)} | {"big": os.urandom(4 * PIECE)}
    manifest = blobs.manifest(files)
    processes = [blobs.publisher(url, manifest) for _ in range(2)]
    for process in processes:
        out, errors = process.communicate(timeout=400)
        assert process.returncode == 0, (out, errors)
    assert read_all(StoreMirror(open_store(url)), manifest) == files


@pytest.mark.integration
def test_small_blobs_travel_many_at_a_time(s3, blobs, monkeypatch):
    manifest = blobs.manifest({str(n): str(n).encode() for n in range(40)})
    with FaultyServer(s3) as server:
        use(monkeypatch, server.url)
        mirror = StoreMirror(open_store(Bucket(s3).url))
        server.on(Hang(), method="PUT", times=None)
        thread = threading.Thread(target=mirror.publish, args=(manifest, blobs), daemon=True)
        thread.start()
        _until(lambda: len(server.sent("PUT")) >= 16)
        assert {one.status for one in server.sent("PUT")} == {0}
        server.clear()
        thread.join(120)
        assert mirror.find_manifest(manifest.name) == manifest


@pytest.mark.integration
@pytest.mark.parametrize("path", ["blobs", "manifests"])
def test_answers_that_are_lost(s3, blobs, monkeypatch, path):
    manifest = blobs.manifest({"a": b"12", "b": b"345"})
    with FaultyServer(s3) as server:
        use(monkeypatch, server.url)
        mirror = StoreMirror(open_store(Bucket(s3).url))
        rule = server.on(LoseAnswer(), method="PUT", path=path)
        mirror.publish(manifest, blobs)
        assert rule.hits == 1
        assert read_all(mirror, mirror.find_manifest(manifest.name)) == {"a": b"12", "b": b"345"}


def _until(true):
    end = time.monotonic() + 200
    while not true():
        assert time.monotonic() < end, "it never came to be"
        time.sleep(0.01)
