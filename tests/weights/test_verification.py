"""`weights verify`: one changed byte is found, goes out of use, and is fetched again alone."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from prefect_bt.host.job_lock import JobLock
from prefect_bt.weights import MirrorResult
from prefect_bt.weights.store_copy.copies import StoreMirror, blob_key
from prefect_bt.weights.verification import (
    ExpectedBlobs,
    ExpectedFiles,
    Verification,
    delete_copies,
    repair,
)
from tests.weights.conftest import tree
from tests.weights.kept import LARGE, Shelf


@pytest.fixture
def shelf(tmp_path: Path) -> Shelf:
    return Shelf(tmp_path)


@pytest.fixture
def source(shelf: Shelf) -> str:
    return shelf.folder("model", large_bin=LARGE, small_txt=100, config_json=b"{}")


def check(shelf: Shelf, *, loose: bool = True) -> Verification:
    return ExpectedFiles(shelf.cache, shelf.cache.list_trees(), include_unreferenced=loose).verify()


def spoil(path: Path, *, at: int = 0) -> None:
    """One bit, behind everybody's back."""
    path.chmod(0o644)
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)
        file.seek(at)
        file.write(bytes([byte[0] ^ 1]))
    path.chmod(0o444)


def blob_of(shelf: Shelf, done: MirrorResult, path: str) -> str:
    found = shelf.cache.find_tree(done.name)
    assert found
    return next(entry.sha256 for entry in found.read_manifest().entries if entry.path == path)


def test_all_is_well_and_a_shared_content_is_read_once(shelf: Shelf, source: str) -> None:
    shelf.mirror(source)
    shelf.mirror(source, allow_patterns=["*.bin"])
    report = check(shelf)
    assert (report.trees, report.files, report.blobs, report.size) == (2, 4, 3, LARGE + 102)
    assert (report.failures, report.unlinked) == ([], 0)


@pytest.mark.slow
@pytest.mark.parametrize("at", [0, LARGE - 1])
def test_one_bit(shelf: Shelf, source: str, at: int) -> None:
    done = shelf.mirror(source)
    other = shelf.mirror(source, allow_patterns=["*.txt"])
    spoil(done.folder / "large.bin", at=at)
    report = check(shelf)
    [fault] = report.failures
    assert (fault.tree, fault.path) == (done.name, "large.bin")
    assert fault.location == str(done.folder / "large.bin")
    assert "different content than expected" in fault.message
    assert report.corrupt_blobs == {blob_of(shelf, done, "large.bin")}

    # The store lies on the same disk: its file is the same one, and is replaced by the mirror.
    assert repair(shelf.cache, report) == {done.name: ()}
    assert [kept.name for kept in shelf.cache.list_trees()] == [other.name]
    assert check(shelf).failures == []
    again = shelf.mirror(source)
    assert tree(again.folder) == tree(shelf.root / "model")
    assert again.fetched_bytes == LARGE
    assert check(shelf).failures == ExpectedBlobs(shelf.store).verify().failures == []
    assert len(StoreMirror(shelf.store).list_names()) == 2


def test_missing_cut_and_added_files(shelf: Shelf, source: str) -> None:
    done = shelf.mirror(source)
    done.folder.joinpath("small.txt").unlink()
    done.folder.joinpath("stray.txt").write_text("not ours")
    large = done.folder / "large.bin"
    large.chmod(0o644)
    with large.open("r+b") as file:
        file.truncate(LARGE - 1)
    found = {(fault.path, fault.problem) for fault in check(shelf).failures}
    assert found == {
        ("small.txt", "is missing"),
        ("stray.txt", "is not in the manifest"),
        ("large.bin", f"has {LARGE - 1} bytes, not {LARGE}"),
    }
    repair(shelf.cache, check(shelf))
    again = shelf.mirror(source)
    assert tree(again.folder) == tree(shelf.root / "model")
    # The small one was still there as a blob, and most of the large one in the store.
    assert 0 < again.fetched_bytes < LARGE


def test_a_manifest_that_cannot_be_read(shelf: Shelf, source: str) -> None:
    done = shelf.mirror(source)
    (done.folder.parent / "manifest.json").write_bytes(b"{")
    report = check(shelf)
    assert report.corrupt_trees == [done.name]
    repair(shelf.cache, report)
    assert tree(shelf.mirror(source).folder) == tree(shelf.root / "model")


def test_a_tree_of_a_living_job_stays(shelf: Shelf, source: str) -> None:
    claim = JobLock(shelf.state_dir)
    claim.acquire("abc1234")
    try:
        done = shelf.mirror(source, holder="abc1234")
        spoil(done.folder / "small.txt")
        assert repair(shelf.cache, check(shelf)) == {done.name: ("abc1234",)}
        assert shelf.cache.find_tree(done.name)
    finally:
        claim.release()
    assert repair(shelf.cache, check(shelf)) == {done.name: ()}


def test_a_file_that_shares_no_bytes_with_its_blob_is_right(shelf: Shelf, source: str) -> None:
    done = shelf.mirror(source)
    blob = shelf.cache.blob_path(blob_of(shelf, done, "small.txt"))
    data = blob.read_bytes()
    blob.unlink()
    blob.write_bytes(data)
    report = check(shelf)
    assert (report.failures, report.unlinked, report.blobs) == ([], 1, 4)
    spoil(blob)
    report = check(shelf)
    assert report.corrupt_blobs == {blob.name}
    repair(shelf.cache, report)
    assert not blob.exists()
    assert tree(done.folder) == tree(shelf.root / "model")


def test_a_content_that_no_tree_names(shelf: Shelf, source: str) -> None:
    done = shelf.mirror(source)
    blob = shelf.cache.blob_path(blob_of(shelf, done, "small.txt"))
    held = blob.read_bytes()
    shelf.cache.evict(done.name)
    blob.parent.mkdir(parents=True, exist_ok=True)
    blob.write_bytes(held[:-1] + b"x")
    assert check(shelf, loose=False).failures == []
    report = check(shelf)
    assert [(fault.location, fault.tree) for fault in report.failures] == [(str(blob), "")]
    repair(shelf.cache, report)
    assert not blob.exists()


# -- the store's copies ---------------------------------------------------------------------


def test_the_stores_copy(shelf: Shelf, source: str) -> None:
    done = shelf.mirror(source)
    assert ExpectedBlobs(shelf.store).verify().failures == []
    digest = blob_of(shelf, done, "large.bin")
    key = blob_key(digest)
    data = shelf.store.get(key)
    shelf.store.delete(key)
    report = ExpectedBlobs(shelf.store).verify()
    assert [(fault.location, fault.problem) for fault in report.failures] == [(key, "is missing")]
    shelf.store.put(key, data[:-1] + bytes([data[-1] ^ 1]))
    promises = ExpectedBlobs(shelf.store, [source])
    assert promises.size == LARGE + 102
    report = promises.verify()
    assert report.corrupt_trees == [done.name]
    assert report.corrupt_blobs == {digest}

    delete_copies(shelf.store, shelf.cache, report)
    assert StoreMirror(shelf.store).list_names() == []
    shelf.mirror(source)
    assert ExpectedBlobs(shelf.store).verify().failures == []
    assert StoreMirror(shelf.store).list_names() == [done.name]


def test_a_blob_that_the_store_cannot_read_is_not_deleted(shelf: Shelf, source: str) -> None:
    done = shelf.mirror(source)
    key = blob_key(blob_of(shelf, done, "large.bin"))
    blob = shelf.root / "store" / key
    blob.unlink()
    os.mkfifo(blob)
    report = ExpectedBlobs(shelf.store).verify()
    [failure] = report.failures
    assert (failure.location, failure.problem.partition(":")[0]) == (key, "cannot be read")
    assert (report.corrupt_trees, report.corrupt_blobs) == ([], set())
    delete_copies(shelf.store, shelf.cache, report)
    assert StoreMirror(shelf.store).list_names() == [done.name]
    assert blob.is_fifo()


def test_names_that_are_not_meant_are_not_read(shelf: Shelf, source: str) -> None:
    shelf.mirror(source)
    other = shelf.mirror(shelf.folder("other", a_txt=10))
    promises = ExpectedBlobs(shelf.store, [other.name])
    assert (promises.size, promises.verify().trees) == (10, 1)


def test_a_manifest_in_the_store_that_is_none(shelf: Shelf, source: str) -> None:
    done = shelf.mirror(source)
    key = f"weights/manifests/{done.name}.json"
    shelf.store.put(key, b"{")
    promises = ExpectedBlobs(shelf.store)
    report = promises.verify()
    assert [(fault.location, fault.problem) for fault in report.failures] == [
        (key, "is not a manifest")
    ]
    delete_copies(shelf.store, shelf.cache, report)
    assert StoreMirror(shelf.store).list_names() == []
