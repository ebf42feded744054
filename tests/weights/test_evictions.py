"""Evictions from the node's cache beside mirrors that fill it."""

from __future__ import annotations

import hashlib
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from prefect_bt.object_store import open_store
from prefect_bt.planning.plan import WeightsPlan
from prefect_bt.weights import NodeCache, mirror_source
from prefect_bt.weights.cache import eviction
from prefect_bt.weights.cache.node_cache import CachedTree
from prefect_bt.weights.store_copy.copies import StoreMirror
from tests.conftest import Soak

from .arranged import URL, Arranged, mirrored
from .conftest import tree


def test_evictions_beside_fills_of_the_same_contents(source_here: Arranged, tmp_path: Path) -> None:
    evict_beside_fills(source_here, tmp_path, fills=5)


@pytest.mark.soak
def test_many_evictions_beside_fills(source_here: Arranged, tmp_path: Path, soak: Soak) -> None:
    evict_beside_fills(source_here, tmp_path, fills=100 * soak.length)


def evict_beside_fills(source_here: Arranged, tmp_path: Path, *, fills: int) -> None:
    """Two mirror so often and one evicts meanwhile: every tree that is there is right."""
    source_here.files = {"large.bin": os.urandom(2 << 20)} | {f"{n}": bytes([n]) for n in range(20)}
    cache, over, faults = NodeCache(tmp_path / "weights"), threading.Event(), list[BaseException]()

    def again(do: Any, times: int | None) -> None:
        try:
            while not over.is_set() and times != 0:
                do()
                times = times and times - 1
        except BaseException as error:
            faults.append(error)
            over.set()

    def evict() -> None:
        for found in cache.list_trees():
            eviction.evict(cache, None, found.name)
        cache.usage()
        cache.sweep(older_than=3600)

    def look(key: str) -> None:
        done = mirrored(tmp_path, key=key)
        for path, data in source_here.files.items():
            try:
                assert (done.folder / path).read_bytes() == data
            except FileNotFoundError:
                return  # evicted: nobody leased it

    hands = [(lambda: look("k1"), fills), (lambda: look("k2"), fills), (evict, None)]
    threads = [threading.Thread(target=again, args=hand) for hand in hands]
    for thread in threads:
        thread.start()
    for thread in threads[:2]:
        thread.join()
    over.set()
    threads[2].join()
    assert faults == []
    kept = mirrored(tmp_path, key="k1")
    assert tree(kept.folder) == source_here.files
    for path in source_here.files:
        digest = hashlib.sha256((kept.folder / path).read_bytes()).hexdigest()
        assert cache.blob_path(digest).samefile(kept.folder / path)
    assert cache.evict("k2" + kept.name[2:]) + cache.evict(kept.name) > 2 << 20
    assert [*cache.root.glob("blobs/*/*")] == []


def test_a_content_that_was_evicted_and_fetched_again_before_publishing_is_kept_once(
    source_here: Arranged, tmp_path: Path
) -> None:
    source_here.files = {"large.bin": os.urandom(2 << 20), "small": b"x"}
    blobs = list[Path]()

    class Beside(NodeCache):
        """In the moment before the tree is there, others evict its contents and bring them back."""

        def publish(self, staged: Path, name: str, *, holder: str = "") -> CachedTree:
            for data in source_here.files.values():
                blob = self.blob_path(hashlib.sha256(data).hexdigest())
                blob.unlink()
                blob.write_bytes(data)
                blobs.append(blob)
            return super().publish(staged, name, holder=holder)

    done = mirror_source(WeightsPlan(URL, "/w", "k1"), cache=Beside(tmp_path / "weights"))
    assert tree(done.folder) == source_here.files
    for blob, path in zip(blobs, source_here.files, strict=True):
        assert blob.samefile(done.folder / path), path
    assert {path.name for path in done.folder.parent.iterdir()} >= {"files", "manifest.json"}
    assert not (done.folder.parent / "link").exists()


def test_what_a_killed_eviction_left_is_not_kept_for_ever(
    source_here: Arranged, tmp_path: Path
) -> None:
    cache = NodeCache(tmp_path / "weights", budget=1000)
    mirror_source(WeightsPlan(URL, "/w", "k1"), cache=cache)
    loose = cache.blob_path("f" * 64)
    loose.parent.mkdir(parents=True, exist_ok=True)
    loose.write_bytes(b"x" * 100_000)
    left = cache.root / "trash" / "a-tree" / "files"
    left.mkdir(parents=True)
    (left / "data").write_bytes(b"x" * 1000)
    eviction.enforce_budget(cache, None)
    assert not (cache.root / "trash" / "a-tree").exists()
    assert loose.exists(), "somebody may be about to use it"


def test_a_copy_that_went_with_its_tree_is_not_believed_to_be_there(
    source_here: Arranged, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(str(tmp_path / "store"))
    name = mirrored(tmp_path, store=store).name
    cache = NodeCache(tmp_path / "weights")
    monkeypatch.setattr(NodeCache, "evict", lambda *_: 0)  # a job took a lease in this moment
    assert eviction.evict(cache, StoreMirror(store), name) == 0
    assert StoreMirror(store).list_names() == []
    assert mirrored(tmp_path, store=store).cache_hit
    assert StoreMirror(store).list_names() == [name]
