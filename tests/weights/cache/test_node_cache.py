"""The machine's folders: what goes, what stays, and what a crash leaves behind."""

from __future__ import annotations

import hashlib
import os
import time
from pathlib import Path

import pytest

from prefect_bt.planning.plan import WeightsPlan
from prefect_bt.weights import NodeCache, mirror_source
from prefect_bt.weights.cache.digest_index import DigestIndex
from prefect_bt.weights.cache.eviction import EvictionCandidate, choose_evictions
from prefect_bt.weights.cache.partial_file import GRANULE_BYTES, PartialFile
from prefect_bt.weights.cache.staged_tree import StagingTree
from prefect_bt.weights.manifest import FileEntry
from prefect_bt.weights.sources.file_listing import ListedFile, Listing

OLD = 3600.0


@pytest.fixture
def cache(tmp_path: Path) -> NodeCache:
    return NodeCache(tmp_path / "state" / "weights")


def fill(cache: NodeCache, tmp_path: Path, key: str, **files: bytes) -> str:
    folder = tmp_path / f"source-{key}"
    folder.mkdir()
    for name, data in files.items():
        (folder / name).write_bytes(data)
    return mirror_source(WeightsPlan(f"file://{folder}", "/w", key), cache=cache).name


def make_old(path: Path) -> None:
    for one in [path, *path.rglob("*")]:
        os.utime(one, (1, 1))


def test_evicting_takes_what_only_it_had(cache: NodeCache, tmp_path: Path) -> None:
    first = fill(cache, tmp_path, "k1", a=b"a" * 1000, shared=b"s" * 500)
    second = fill(cache, tmp_path, "k2", b=b"b" * 100, shared=b"s" * 500)
    assert cache.evict(first) == 1000
    tree = cache.find_tree(second)
    assert tree is not None
    assert (tree.files_folder / "shared").read_bytes() == b"s" * 500
    assert cache.evict(second) == 600
    assert cache.evict(second) == 0
    assert [*cache.root.glob("blobs/*/*"), *cache.root.glob("trash/*")] == []


def test_sweeping_leaves_young_used_and_open_files(cache: NodeCache, tmp_path: Path) -> None:
    name = fill(cache, tmp_path, "k1", a=b"a" * 1000)
    loose = cache.blob_path("f" * 64)
    loose.parent.mkdir(parents=True)
    loose.write_bytes(b"x" * 10)
    worked_on = cache.partial_path("worked-on")
    part = PartialFile(worked_on, 100)
    forgotten = PartialFile(cache.partial_path("forgotten"), 100)
    forgotten.close()
    (cache.staging_path("dead") / "files").mkdir(parents=True)
    assert cache.sweep(older_than=OLD) == 0, "all of it is young"
    for path in (worked_on, cache.partial_path("forgotten"), cache.staging_path("dead")):
        make_old(path)
    cache.sweep(older_than=OLD)
    assert worked_on.exists()
    assert not cache.partial_path("forgotten").exists()
    assert not cache.staging_path("dead").exists()
    time.sleep(0.02)
    assert cache.sweep(older_than=0.01) == 10
    assert not loose.exists()
    tree = cache.find_tree(name)
    assert tree is not None
    assert (tree.files_folder / "a").exists()
    part.close()


@pytest.mark.parametrize("broken", ["summary.json", "manifest.json", "used"])
def test_a_tree_that_somebody_broke_is_no_tree_or_is_made_anew(
    cache: NodeCache, tmp_path: Path, broken: str
) -> None:
    name = fill(cache, tmp_path, "k1", a=b"a" * 1000)
    (cache.tree_path(name) / broken).write_bytes(b"garbage")
    plan = WeightsPlan(f"file://{tmp_path}/source-k1", "/w", "k1")
    done = mirror_source(plan, cache=cache)
    assert (done.folder / "a").read_bytes() == b"a" * 1000
    assert cache.find_tree(name) is not None


def test_an_index_skips_what_a_crash_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "index"
    DigestIndex(path).add({"tag:1": "d" * 64})
    with path.open("ab") as writer:
        writer.write(b'{"id": "tag:2", "sha')
    DigestIndex(path).add({"tag:3": "e" * 64})
    again = DigestIndex(path)
    assert [again.get(key) for key in ("tag:1", "tag:2", "tag:3")] == ["d" * 64, "", "e" * 64]


def test_missing_bytes_count_the_same_large_file_and_what_has_arrived_once(
    cache: NodeCache,
) -> None:
    same = [ListedFile(path, 3 * GRANULE_BYTES, "a" * 64) for path in ("a.bin", "b.bin")]
    files = (*same, ListedFile("small", 100, "c" * 64), ListedFile("unknown"))
    staging = StagingTree(cache, "hf://o/r", "k1", Listing("r" * 40, files))
    assert staging.missing_bytes(files) == 3 * GRANULE_BYTES + 100
    part = PartialFile(staging.partial_folder(same[0]), 3 * GRANULE_BYTES)
    part.write(0, bytes(GRANULE_BYTES))
    assert staging.missing_bytes(files) == 2 * GRANULE_BYTES + 100
    part.close()


def test_a_partial_file_that_a_kill_left_beside_the_complete_one_is_deleted(
    cache: NodeCache,
) -> None:
    size = 2 * GRANULE_BYTES
    digest = hashlib.sha256(bytes(size)).hexdigest()
    file = ListedFile("a.bin", size, digest)
    listing = Listing("r" * 40, (file,))
    staging = StagingTree(cache, "hf://o/r", "k1", listing)
    part = PartialFile(staging.partial_folder(file), size)
    part.write(0, bytes(size))
    entry = FileEntry(file.path, size, digest)
    staging.add(part.finalize().replace, entry, is_synced=True)
    part.close()  # in place of `remove`
    staging.close()
    assert part.folder.exists()
    assert StagingTree(cache, "hf://o/r", "k1", listing).has(file)
    assert not part.folder.exists()


def test_which_trees_go() -> None:
    big, small, shared = ("b", 100), ("s", 10), ("h", 50)
    trees = [
        EvictionCandidate("old", 1.0, frozenset({big, shared}), protected=True),
        EvictionCandidate("middle", 2.0, frozenset({shared})),
        EvictionCandidate("new", 3.0, frozenset({small})),
    ]
    assert choose_evictions(trees, excess=0) == []
    assert choose_evictions(trees, excess=1) == ["middle", "new"], "shared bytes are not free"
    assert choose_evictions(trees, excess=10_000) == ["middle", "new"]
