"""Many processes, hosts, keys and revisions: fetched once, kept once, and never a wrong byte."""

from __future__ import annotations

import json
import os
from math import inf
from pathlib import Path

import pytest

from prefect_bt.errors import WeightsError
from prefect_bt.host.job_lock import lock_job
from prefect_bt.host.state_folder import JobFolder
from prefect_bt.object_store import open_store
from prefect_bt.planning.plan import WeightsPlan
from prefect_bt.text.progress import Phase, Progress
from prefect_bt.weights import NodeCache, mirror_source
from prefect_bt.weights.store_copy.copies import StoreMirror

from .conftest import Place, mirror, tree
from .hub_server import Hub

LARGE = os.urandom((6 << 20) + 1000)
FILES = {"config.json": b"{}", "model.safetensors": LARGE, "sub/a.txt": b"a" * 5000}


def make(folder: Path, files: dict[str, bytes]) -> str:
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return f"file://{folder}"


def plan(source: str, key: str = "k1", **patterns: tuple[str, ...]) -> WeightsPlan:
    return WeightsPlan(source, "/w", key, **patterns)


def disk(root: Path) -> int:
    """Bytes below it, each file once however many names it has."""
    seen = {(fact := path.stat()).st_ino: fact.st_size for path in root.rglob("*")}
    folders = {path.stat().st_ino for path in root.rglob("*") if path.is_dir()}
    return sum(size for inode, size in seen.items() if inode not in folders)


# -- single flight ----------------------------------------------------------------------------


@pytest.mark.slow
def test_three_processes_one_fetch(hub: Hub, place: Place) -> None:
    fetch_once(hub, place, 3)


@pytest.mark.soak
def test_ten_processes_one_fetch(hub: Hub, place: Place) -> None:
    fetch_once(hub, place, 10)


def fetch_once(hub: Hub, place: Place, processes: int) -> None:
    hub.repos["o/r"].commit(FILES)
    hub.bad.seconds_a_chunk = 0.002
    store = str(place.state_dir / "store")
    running = [place.start("hf://o/r", store=store) for _ in range(processes)]
    done = [place.finish(process) for process in running]
    assert len({one["folder"] for one in done}) == 1
    assert tree(Path(done[0]["folder"])) == FILES
    size = sum(map(len, FILES.values()))
    assert hub.settled_sent() == size
    assert sum(one["fetched_bytes"] for one in done) == size


@pytest.mark.slow
def test_two_hosts_one_fetch(hub: Hub, place: Place, tmp_path: Path) -> None:
    hub.repos["o/r"].commit(FILES)
    hub.bad.seconds_a_chunk = 0.002
    store = str(tmp_path / "store")
    running = [
        place.start("hf://o/r", store=store, state_dir=str(tmp_path / f"host-{n}")) for n in "ab"
    ]
    done = [place.finish(process) for process in running]
    assert all(tree(Path(one["folder"])) == FILES for one in done)
    assert len({one["folder"] for one in done}) == 2
    assert hub.settled_sent() == sum(map(len, FILES.values()))
    assert [one["fetched_bytes"] > 0 for one in done].count(True) == 1


@pytest.mark.slow
def test_keys_that_share_files_share_the_fetch(hub: Hub, place: Place) -> None:
    hub.repos["o/r"].commit(FILES)
    hub.bad.seconds_a_chunk = 0.002
    both = [
        place.start("hf://o/r", key="k1"),
        place.start("hf://o/r", key="k2", allow=["*.safetensors"]),
    ]
    done = [place.finish(process) for process in both]
    assert tree(Path(done[0]["folder"])) == FILES
    assert tree(Path(done[1]["folder"])) == {"model.safetensors": LARGE}
    assert sum(one["fetched_bytes"] for one in done) < 2 * len(LARGE)
    assert disk(place.state_dir / "weights" / "blobs") == sum(map(len, FILES.values()))


# -- kept once --------------------------------------------------------------------------------


@pytest.mark.slow
def test_two_revisions_that_share_most_cost_the_difference(hub: Hub, place: Place) -> None:
    parts = {f"model-{n}.safetensors": os.urandom(1_200_000) for n in range(10)}
    hub.repos["o/r"].commit(parts)
    first = place.mirror("hf://o/r")
    before, sent = disk(place.state_dir / "weights"), hub.settled_sent()
    moved = {**parts, "model-3.safetensors": os.urandom(1_200_000)}
    hub.repos["o/r"].commit(moved)
    second = place.mirror("hf://o/r")
    assert tree(first) == parts
    assert tree(second) == moved
    assert hub.settled_sent() - sent == 1_200_000, "only what is new was fetched"
    assert disk(place.state_dir / "weights") <= 1.11 * before


def test_the_same_content_twice_is_kept_once(tmp_path: Path) -> None:
    twice = {"a.bin": LARGE, "b/c.bin": LARGE, "d.txt": b"x", "e.txt": b"x", "f": b"", "g": b""}
    folder = mirror(plan(make(tmp_path / "source", twice)), tmp_path / "state")
    assert tree(folder) == twice
    assert (folder / "a.bin").stat().st_ino == (folder / "b/c.bin").stat().st_ino
    assert disk(tmp_path / "state" / "weights" / "blobs") == len(LARGE) + 1


def test_shared_files_are_read_only(tmp_path: Path) -> None:
    folder = mirror(plan(make(tmp_path / "source", FILES)), tmp_path / "state")
    assert {path.stat().st_mode & 0o777 for path in folder.rglob("*") if path.is_file()} == {0o444}


# -- what is here -----------------------------------------------------------------------------


@pytest.mark.slow
def test_a_job_goes_on_with_what_it_began_with(hub: Hub, place: Place, tmp_path: Path) -> None:
    old = hub.repos["o/r"].commit(FILES)
    store = str(tmp_path / "store")
    first = place.finish(place.start("hf://o/r", store=store))
    hub.repos["o/r"].commit({"config.json": b"moved"})
    again = place.finish(place.start("hf://o/r", store=store, revision=old))
    assert again["folder"] == first["folder"]
    elsewhere = {"store": store, "state_dir": str(tmp_path / "other")}
    del hub.repos["o/r"].commits[old]
    from_store = place.finish(place.start("hf://o/r", revision=old, **elsewhere))
    assert tree(Path(from_store["folder"])) == FILES
    assert from_store["fetched_bytes"] == 0
    third = place.start("hf://o/r", revision=old, state_dir=str(tmp_path / "third"))
    assert "has no such revision" in place.finish(third)["error"]


def test_what_a_job_began_with_and_nobody_has_any_more(tmp_path: Path) -> None:
    source = make(tmp_path / "source", FILES)
    old = mirror_source(plan(source), cache=NodeCache(tmp_path / "a" / "weights")).revision
    make(tmp_path / "source", {"config.json": b"changed"})
    with pytest.raises(WeightsError, match="now has revision"):
        mirror(plan(source), tmp_path / "b", revision=old)


@pytest.mark.slow
@pytest.mark.parametrize(
    "pinned", [False, pytest.param(True, marks=pytest.mark.soak)], ids=["branch", "commit"]
)
def test_a_store_that_lost_a_blob_is_made_good_by_its_source(
    hub: Hub, place: Place, tmp_path: Path, pinned: bool
) -> None:
    commit = hub.repos["o/r"].commit(FILES)
    source = f"hf://o/r@{commit}" if pinned else "hf://o/r"
    store = open_store(str(tmp_path / "store"))
    first = place.finish(place.start(source, store=str(tmp_path / "store")))
    [manifest] = [
        StoreMirror(store).find_manifest(name) for name in StoreMirror(store).list_names()
    ]
    assert manifest is not None
    for entry in manifest.entries:
        if entry.path != "sub/a.txt":
            StoreMirror(store).delete_blob(entry.sha256)
    other = place.finish(
        place.start(source, store=str(tmp_path / "store"), state_dir=str(tmp_path / "b"))
    )
    assert tree(Path(other["folder"])) == tree(Path(first["folder"])) == FILES
    assert len([*store.list("weights/blobs")]) == len(FILES), "and the store has them again"


@pytest.mark.slow
def test_a_store_that_cannot_be_used_costs_a_note_only(hub: Hub, place: Place) -> None:
    hub.repos["o/r"].commit(FILES)
    blocked = place.state_dir.parent / "a file"
    blocked.write_text("in the way")
    done = place.finish(place.start("hf://o/r", store=str(blocked / "store")))
    assert tree(Path(done["folder"])) == FILES
    assert any("the store's copy cannot be used" in note for note in done["notes"])


# -- leases, room, budget ---------------------------------------------------------------------


def sources(tmp_path: Path, count: int) -> list[str]:
    return [
        make(tmp_path / f"source-{n}", {"data.bin": os.urandom(1_000_000)}) for n in range(count)
    ]


def test_the_least_recently_used_goes_to_keep_the_budget(tmp_path: Path) -> None:
    cache = NodeCache(tmp_path / "state" / "weights", budget=2_500_000)
    named = [
        mirror_source(plan(source, f"k{n}"), cache=cache).name
        for n, source in enumerate(sources(tmp_path, 2))
    ]
    os.utime(cache.tree_path(named[0]) / "used", (1, 1))
    os.utime(cache.tree_path(named[1]) / "used", (2, 2))
    assert mirror_source(plan(f"file://{tmp_path}/source-0", "k0"), cache=cache).cache_hit
    third = make(tmp_path / "source-9", {"data.bin": os.urandom(1_000_000)})
    last = mirror_source(plan(third, "k9"), cache=cache).name
    assert [tree.name for tree in cache.list_trees()] == [named[0], last]
    assert cache.usage() <= 2_500_000
    assert len([*cache.root.glob("blobs/*/*")]) == 2


def test_what_a_living_job_uses_stays_until_it_is_over(tmp_path: Path) -> None:
    state = tmp_path / "state"
    cache = NodeCache(state / "weights", budget=1)
    first, second = sources(tmp_path, 2)

    def leases_of(name: str) -> tuple[str, ...]:
        found = cache.find_tree(name)
        assert found is not None
        return found.leases

    with lock_job(state, "job0001"):
        held = mirror_source(plan(first, "k0"), cache=cache, lease_holder="job0001").name
        mirror_source(plan(second, "k1"), cache=cache)
        assert leases_of(held) == ("job0001",)
        assert cache.evict(held) == 0
        assert held in {tree.name for tree in cache.list_trees()}
    assert leases_of(held) == ()
    third = make(tmp_path / "source-3", {"data.bin": b"x" * 1000})
    mirror_source(plan(third, "k3"), cache=cache)
    assert held not in {tree.name for tree in cache.list_trees()}


def test_a_node_that_outlives_its_flow_keeps_its_lease(tmp_path: Path) -> None:
    import fcntl

    state = tmp_path / "state"
    cache = NodeCache(state / "weights")
    [source] = sources(tmp_path, 1)
    name = mirror_source(plan(source), cache=cache, lease_holder="job0001").name
    lock = JobFolder(state, "job0001").node_folder(0, 0).lock
    lock.parent.mkdir(parents=True)
    with lock.open("w") as node:
        fcntl.flock(node, fcntl.LOCK_EX)
        assert cache.evict(name) == 0
    assert cache.evict(name) == 1_000_000


def test_a_full_disk_makes_room_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import shutil

    cache = NodeCache(tmp_path / "state" / "weights")
    first, second = sources(tmp_path, 2)
    mirror_source(plan(first, "k0"), cache=cache)
    usage, free = shutil.disk_usage(tmp_path), 10_000

    def tell(_: object) -> object:
        kept = len([*cache.root.glob("blobs/*/*")])
        return usage._replace(free=free if kept else 2_000_000)

    monkeypatch.setattr(shutil, "disk_usage", tell)
    mirror_source(plan(second, "k1"), cache=cache)
    assert [tree.summary.source for tree in cache.list_trees()] == [second]


def test_a_store_on_the_same_disk_does_not_keep_what_was_evicted(tmp_path: Path) -> None:
    cache = NodeCache(tmp_path / "state" / "weights", budget=1)
    store = open_store(str(tmp_path / "store"))
    first, second = sources(tmp_path, 2)
    gone = mirror_source(plan(first, "k0"), cache=cache, store=store).name
    assert StoreMirror(store).list_names() == [gone]
    [blob] = [*cache.root.glob("blobs/*/*")]
    assert blob.stat().st_nlink == 3, "one copy: blob, tree, store"
    last = mirror_source(plan(second, "k1"), cache=cache, store=store).name
    assert StoreMirror(store).list_names() == [last]
    assert disk(tmp_path / "store") < 1_100_000


# -- people -----------------------------------------------------------------------------------


def test_progress_counts_every_byte_once(tmp_path: Path) -> None:
    told: list[Progress] = []
    source = make(tmp_path / "source", FILES)
    mirror(plan(source), tmp_path / "state", on_progress=told.append)
    last, size = told[-1], sum(map(len, FILES.values()))
    assert (last.phase, last.percent) == (Phase.DONE, 100.0)
    assert (last.bytes_done, last.bytes_total) == (size, size)
    assert (last.items_done, last.items_total) == (3, 3)
    assert all(one.bytes_done <= size for one in told)
    done = [one.bytes_done for one in told]
    assert done == sorted(done)


@pytest.mark.slow
def test_a_mirror_can_be_stopped_and_goes_on_later(hub: Hub, place: Place) -> None:
    hub.repos["o/r"].commit(FILES)
    hub.bad.hold_at = 5_000_000
    assert "was stopped" in place.refused("hf://o/r", stop_after=4_000_000)
    hub.bad.hold_at = inf
    before = hub.settled_sent()
    assert tree(place.mirror("hf://o/r")) == FILES
    assert hub.settled_sent() - before < sum(map(len, FILES.values())) - 3_000_000


def test_the_document_of_a_tree(tmp_path: Path) -> None:
    cache = NodeCache(tmp_path / "state" / "weights")
    done = mirror_source(plan(make(tmp_path / "source", FILES)), cache=cache)
    found = cache.find_tree(done.name)
    assert found is not None
    assert (found.summary.files, found.summary.bytes) == (3, sum(map(len, FILES.values())))
    written = json.loads((found.path / "manifest.json").read_bytes())
    assert [row[0] for row in written["entries"]] == sorted(FILES)
