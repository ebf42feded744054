"""The store's copy of a source: whole or not there, sent once, safe beside kills and deletions."""

import os
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from prefect_bt.errors import ObjectNotFound, StoreError, WeightsError
from prefect_bt.object_store import open_store
from prefect_bt.object_store.disk import DiskStore
from prefect_bt.weights.manifest import dump_manifest
from prefect_bt.weights.store_copy.copies import StoreMirror, blob_key, manifest_key, sharing_prefix
from tests.filesystem.small_disk import small_disk
from tests.object_store.small import PART as PIECE
from tests.weights.store_copy.publishing import digest, read_all, stored

pytestmark = pytest.mark.usefixtures("small_pieces")


def test_a_published_copy_is_read_elsewhere(store, blobs):
    files = {
        "config.json": b"{}",
        "empty": b"",
        "same": b"{}",
        "sub/model ü.safetensors": os.urandom(2 * PIECE + 5),
    }
    manifest, mirror, told = blobs.manifest(files), StoreMirror(store), []
    whole = 2 * PIECE + 7
    assert mirror.find_manifest(manifest.name) is None
    assert mirror.list_names() == []
    assert mirror.publish(manifest, blobs, on_bytes=told.append) == whole
    assert sum(told) == whole
    assert mirror.find_manifest(manifest.name) == manifest
    assert mirror.list_names() == [manifest.name]
    assert read_all(mirror, manifest) == files
    assert len(stored(store)) == 3


def test_publishing_again_sends_nothing(store, blobs):
    manifest, mirror, told = blobs.manifest({"a": b"12", "b": b"345"}), StoreMirror(store), []
    mirror.publish(manifest, blobs)
    for path in blobs.folder.iterdir():
        path.unlink()
    assert mirror.publish(replace(manifest, revision="r2"), blobs, on_bytes=told.append) == 0
    assert sum(told) == 5
    assert mirror.list_names() == ["k1-r1", "k1-r2"]


def test_ranges(store, blobs):
    data = os.urandom(PIECE + 100)
    manifest, mirror = blobs.manifest({"a": data}), StoreMirror(store)
    mirror.publish(manifest, blobs)
    sha256 = manifest.entries[0].sha256
    pieces = list(mirror.read(sha256, start=50, length=PIECE + 10))
    assert b"".join(pieces) == data[50 : PIECE + 60]
    assert max(map(len, pieces)) <= PIECE
    assert b"".join(mirror.read(sha256, start=PIECE, length=PIECE)) == data[PIECE:]
    assert list(mirror.read(sha256, start=3, length=0)) == []
    with pytest.raises(ObjectNotFound):
        list(mirror.read("0" * 64, start=0, length=1))


def test_no_manifest_before_every_blob(store, blobs):
    manifest, mirror = blobs.manifest({"a": b"12", "b": b"345", "c": b"6"}), StoreMirror(store)
    lost = blobs(digest(b"345"))
    lost.rename(lost.with_name("aside"))
    with pytest.raises(FileNotFoundError):
        mirror.publish(manifest, blobs)
    assert mirror.list_names() == []
    lost.with_name("aside").rename(lost)
    before = stored(store)
    missing = sum(entry.size for entry in manifest.entries if entry.sha256 not in before)
    assert mirror.publish(manifest, blobs) == missing
    assert mirror.find_manifest(manifest.name) == manifest


def test_a_failure_sets_nobody_elses_stop(blobs):
    manifest, stop = blobs.manifest({"a": b"12"}), threading.Event()
    blobs(digest(b"12")).unlink()
    with pytest.raises(FileNotFoundError):
        StoreMirror(open_store("memory://")).publish(manifest, blobs, stop=stop)
    assert not stop.is_set()


def test_a_file_that_is_not_what_it_was_is_not_stored(store, blobs):
    manifest, mirror = blobs.manifest({"a": b"12345"}), StoreMirror(store)
    path = blobs(manifest.entries[0].sha256)
    path.unlink()
    path.write_bytes(b"123")
    with pytest.raises(StoreError, match="has 3 bytes, not 5"):
        mirror.publish(manifest, blobs)
    assert list(store.list("")) == []


def test_other_bytes_of_the_same_size_are_refused_where_they_are_read(blobs):
    store = open_store("memory://")
    manifest, mirror, told = blobs.manifest({"a": b"12345"}), StoreMirror(store), []
    path = blobs(manifest.entries[0].sha256)
    path.unlink()
    path.write_bytes(b"12346")
    with pytest.raises(StoreError, match="not the ones announced"):
        mirror.publish(manifest, blobs, on_bytes=told.append)
    assert list(store.list("")) == []
    assert sum(told) == 0


GARBAGE = [
    b"",
    b"{",
    b"\xff",
    b"[]",
    b"null",
    b'{"format": 99}',
    b'{"format": 1, "source": "s", "key": "k1", "revision": "r1", "created_at": 0}',
    b'{"format": 1, "source": "s", "key": "k1", "revision": "r1", "created_at": 0, "entries": [1]}',
]


@pytest.mark.parametrize("garbage", GARBAGE)
def test_a_manifest_that_nobody_can_read_is_replaced(garbage, blobs):
    store = open_store("memory://")
    manifest, mirror = blobs.manifest({"a": b"1"}), StoreMirror(store)
    store.put(manifest_key(manifest.name), garbage)
    assert mirror.find_manifest(manifest.name) is None
    mirror.publish(manifest, blobs)
    assert mirror.find_manifest(manifest.name) == manifest


@pytest.mark.parametrize("path", ["../x", "/x", "a/../x", "", "a//b", "./a", "a\0b"])
def test_a_manifest_that_leads_out_of_the_mount_counts_as_none(path, blobs):
    store, manifest = open_store("memory://"), blobs.manifest({"a": b"1"})
    entries = (replace(manifest.entries[0], path=path),)
    store.put(manifest_key(manifest.name), dump_manifest(replace(manifest, entries=entries)))
    assert StoreMirror(store).find_manifest(manifest.name) is None


def test_a_manifest_under_anothers_name_or_with_odd_digests_counts_as_none(blobs):
    store, manifest = open_store("memory://"), blobs.manifest({"a": b"1"})
    store.put(manifest_key("k1-r2"), dump_manifest(manifest))
    entries = (replace(manifest.entries[0], sha256="../../x"),)
    store.put(manifest_key("k1-r1"), dump_manifest(replace(manifest, entries=entries)))
    mirror = StoreMirror(store)
    assert (mirror.find_manifest("k1-r1"), mirror.find_manifest("k1-r2")) == (None, None)


def test_a_manifest_that_is_there_stays(store, blobs):
    manifest, mirror = blobs.manifest({"a": b"1"}), StoreMirror(store)
    mirror.publish(manifest, blobs)
    mirror.publish(replace(manifest, created_at=99.0), blobs)
    assert mirror.find_manifest(manifest.name) == manifest


def test_blobs_that_were_damaged_are_sent_anew(store, blobs):
    manifest, mirror = blobs.manifest({"a": b"12345", "b": b"678"}), StoreMirror(store)
    mirror.publish(manifest, blobs)
    store.put(blob_key(digest(b"12345")), b"1")
    assert mirror.publish(manifest, blobs) == 5
    store.put(blob_key(digest(b"12345")), b"12346")
    mirror.delete_blob(digest(b"12345"))
    assert mirror.publish(manifest, blobs) == 5
    assert read_all(mirror, manifest) == {"a": b"12345", "b": b"678"}


def test_a_stop_request(blobs):
    store, stop = open_store("memory://"), threading.Event()
    manifest = blobs.manifest({"a": b"1" * 100, "b": b"2" * (PIECE + 1)})
    mirror = StoreMirror(store)
    stop.set()
    with pytest.raises(WeightsError, match=r"hf://o/r.*stopped"):
        mirror.publish(manifest, blobs, stop=stop)
    assert list(store.list("")) == []
    stop.clear()
    with pytest.raises(WeightsError, match=r"hf://o/r.*stopped"):
        mirror.publish(manifest, blobs, stop=stop, on_bytes=lambda _: stop.set())
    assert mirror.list_names() == []
    mirror.publish(manifest, blobs)
    assert mirror.find_manifest(manifest.name) == manifest


# -- deleting -------------------------------------------------------------------------------------


def test_deleting_keeps_what_others_name(store, blobs):
    one = blobs.manifest({"a": b"shared", "b": b"only one", "c": b"only one"})
    two = blobs.manifest({"a": b"shared", "b": b"only two"}, revision="r2")
    mirror = StoreMirror(store)
    mirror.publish(one, blobs)
    mirror.publish(two, blobs)
    store.put(f"{sharing_prefix(one.name)}/3", b"")
    assert mirror.delete(one.name) == len(b"only one")
    assert mirror.list_names() == [two.name]
    assert read_all(mirror, two) == {"a": b"shared", "b": b"only two"}
    with pytest.raises(ObjectNotFound):
        list(mirror.read(digest(b"only one"), start=0, length=1))
    assert mirror.delete(one.name) == 0
    assert mirror.delete(two.name) == len(b"shared") + len(b"only two")
    assert list(store.list("")) == []


def test_a_blob_that_is_deleted_while_another_copy_is_published_is_sent_again(store, blobs):
    """The other blobs of that copy may take minutes to send."""
    old = blobs.manifest({"a": b"shared", "b": b"only old"})
    new = blobs.manifest({"a": b"shared", "b": b"only new"}, revision="r2")

    class Publisher(StoreMirror):
        def _create_manifest(self, manifest):
            StoreMirror(store).delete(old.name)
            super()._create_manifest(manifest)

    StoreMirror(store).publish(old, blobs)
    assert Publisher(store).publish(new, blobs) == len(b"only new") + len(b"shared")
    assert read_all(StoreMirror(store), new) == {"a": b"shared", "b": b"only new"}


def test_sweeping_takes_what_nobody_names(store, blobs):
    manifest, mirror = blobs.manifest({"a": b"named"}), StoreMirror(store)
    mirror.publish(manifest, blobs)
    store.put(blob_key(digest(b"left")), b"left")
    assert mirror.delete_unreferenced() == 4
    assert stored(store) == {digest(b"named")}
    assert mirror.delete_unreferenced() == 0


def test_the_last_use_is_by_the_stores_clock(store, blobs):
    one, mirror = blobs.manifest({"a": b"a"}), StoreMirror(store)
    mirror.publish(one, blobs)
    (info,) = store.list("weights/manifests")
    assert mirror.list_last_uses() == {one.name: info.modified}
    mirror.record_use(one.name)
    mirror.record_use("gone-r1")
    (used,) = (i.modified for i in store.list("weights/used") if one.name in i.key)
    assert mirror.list_last_uses() == {one.name: max(used, info.modified)}
    mirror.delete(one.name)
    assert mirror.list_last_uses() == {}


# -- a folder on this machine ---------------------------------------------------------------------


def test_a_folder_beside_us_costs_no_second_copy(tmp_path, blobs):
    manifest = blobs.manifest({"a": b"12", "b": os.urandom(PIECE + 1)})
    mirror = StoreMirror(open_store(str(tmp_path / "store")))
    assert mirror.find_local_path(manifest.entries[0].sha256) is None
    assert mirror.publish(manifest, blobs) == manifest.bytes
    for entry in manifest.entries:
        lent = mirror.find_local_path(entry.sha256)
        assert lent is not None and lent.samefile(blobs(entry.sha256))


def test_a_folder_on_another_disk_gets_copies(tmp_path, blobs):
    files = {"a": b"12", "b": os.urandom(PIECE + 1)}
    with small_disk(tmp_path / "other", "32m") as folder:
        manifest, mirror = blobs.manifest(files), StoreMirror(DiskStore(folder))
        assert mirror.publish(manifest, blobs) == manifest.bytes
        assert read_all(mirror, manifest) == files
        assert blobs(manifest.entries[0].sha256).stat().st_nlink == 1


def test_a_bucket_lends_nothing():
    assert StoreMirror(open_store("memory://")).find_local_path("0" * 64) is None


def test_names_are_those_of_manifests_alone(tmp_path):
    store = open_store(str(Path(tmp_path) / "store"))
    store.put("weights/manifests/k1-r1.json", b"{}")
    store.put("weights/manifests/notes.txt", b"")
    assert StoreMirror(store).list_names() == ["k1-r1"]
