import json

import pytest

from prefect_bt.checkpoints.committed import catalog, verify_committed
from prefect_bt.checkpoints.committed.catalog import find_newest, list_checkpoints
from prefect_bt.checkpoints.manifest import (
    FORMAT,
    Manifest,
    ManifestEntry,
    dump_manifest,
    load_manifest,
    parse_manifest_key,
)
from prefect_bt.errors import CheckpointError
from prefect_bt.object_keys import job_objects_prefix
from tests.checkpoints import folders
from tests.checkpoints.folders import JOB, PROJECT


def commit(store, name, *, rank=0, attempt=1, version=1, at=1.0, written=0, **more):
    key = f"{job_objects_prefix(PROJECT, JOB)}/none"
    entry = ManifestEntry(
        path="x",
        logical=f"rank-{rank}/x",
        key=key,
        size=3,
        sha256="0" * 64,
        mtime_ns=written * 10**9,
    )
    values = {"type": "full", "step": None, "group_size": 2} | more
    manifest = Manifest(
        format=FORMAT,
        project_id=PROJECT,
        job_id=JOB,
        rank=rank,
        name=name,
        attempt=attempt,
        version=version,
        committed_at=at,
        size=3,
        entries=(entry,),
        **values,
    )
    store.create(manifest.key, dump_manifest(manifest))
    return manifest


def newest_name(store):
    found = find_newest(store, PROJECT, JOB)
    return found and found.checkpoint_id


def names(store):
    return [one.checkpoint_id for one in list_checkpoints(store, PROJECT, JOB)]


def test_nothing(store):
    assert names(store) == []
    assert find_newest(store, PROJECT, JOB) is None


def test_ranks_become_one_and_the_newest_version_counts(store):
    commit(store, "checkpoint-10", at=1)
    commit(store, "checkpoint-10", at=2, version=2, step=10)
    last = commit(store, "checkpoint-10", at=3, rank=1, attempt=2)
    commit(store, "checkpoint-10", at=9, rank=1, attempt=1, version=7)
    (one,) = list_checkpoints(store, PROJECT, JOB)
    assert (one.size, one.created_at, one.attempt, one.step) == (6, 3, 2, 10)
    assert one.newest_manifest == last.key == one.manifest_keys[1]
    assert [file.rank for file in one.files()] == [0, 1]


def test_order_and_identity(store):
    commit(store, "b", at=1)
    commit(store, "a", at=2)
    before = {one.checkpoint_id: one.id for one in list_checkpoints(store, PROJECT, JOB)}
    commit(store, "b", at=3, version=2)
    commit(store, "c", at=0.5, attempt=2)
    assert names(store) == ["a", "b", "c"]
    after = {one.checkpoint_id: one.id for one in list_checkpoints(store, PROJECT, JOB)}
    assert after.items() >= before.items() and len(set(after.values())) == 3


def test_a_checkpoint_that_is_committed_late_is_not_the_newest(store):
    """The store failed when it was uploaded, and newer ones were committed before it."""
    commit(store, "checkpoint-10", at=900, written=520, step=10)
    commit(store, "checkpoint-5", at=901, written=510, step=5)
    assert names(store) == ["checkpoint-5", "checkpoint-10"]
    assert newest_name(store) == "checkpoint-10"
    commit(store, "checkpoint-5", at=910, written=505, step=5, attempt=2)
    assert newest_name(store) == "checkpoint-5"


def test_newest_is_a_model_that_all_ranks_have(store):
    commit(store, "checkpoint-10", at=1, step=10)
    commit(store, "checkpoint-10", at=1, step=10, rank=1)
    commit(store, "checkpoint-20", at=2, step=20)
    commit(store, "runs", at=3, type="")
    assert newest_name(store) == "checkpoint-10"
    commit(store, "checkpoint-20", at=4, step=20, rank=1)
    assert newest_name(store) == "checkpoint-20"


@pytest.mark.parametrize(
    ("commits", "missing"),
    [
        # (step, attempt, ranks, group size); the missing ranks of the last step
        ([(10, 0, {0, 1}, 2), (20, 0, {0}, 2)], (1,)),
        ([(10, 0, {0, 1, 2, 3}, 4), (20, 0, {0, 2}, 4)], (1, 3)),
        ([(10, 0, {0}, 2), (20, 0, {0}, 2)], ()),
        # A rank that writes parts was late for several steps.
        ([(10, 0, {0, 1}, 2), (20, 0, {0}, 2), (30, 0, {0}, 2)], (1,)),
        ([(10, 0, {0, 1}, 2), (20, 0, {0}, 2), (30, 0, {0, 1}, 2), (40, 0, {0}, 2)], (1,)),
        # A later attempt has fewer ranks.
        ([(10, 0, {0, 1, 2, 3}, 4), (20, 1, {0, 1}, 2)], ()),
        ([(10, 0, {0, 1, 2, 3}, 4), (20, 1, {0}, 2)], (1,)),
        ([(10, 0, {0, 1}, 2), (20, 1, {0}, 1)], ()),
        # A later attempt with as many ranks, of which fewer write: delayed by one step.
        ([(10, 0, {0, 1}, 2), (20, 1, {0}, 2)], (1,)),
        ([(10, 0, {0, 1}, 2), (20, 1, {0}, 2), (30, 1, {0}, 2)], ()),
    ],
)
def test_a_rank_is_missing_if_its_part_was_to_be_expected(store, commits, missing):
    for number, (step, attempt, ranks, size) in enumerate(commits):
        for rank in ranks:
            facts = {"rank": rank, "attempt": attempt, "group_size": size, "step": step}
            commit(store, f"checkpoint-{step}", at=number, **facts)
    last = list_checkpoints(store, PROJECT, JOB)[-1]
    assert (last.step, last.missing_ranks) == (commits[-1][0], missing)


def test_logs_alone_are_still_something(store):
    commit(store, "runs", type="")
    assert newest_name(store) == "runs"


def test_the_record_has_the_fields_of_the_api(store):
    commit(store, "x", lora_adapter_config={"r": 8}, type="lora", base_model="org/base")
    commit(store, "runs", type="", at=2)
    lora, runs = [catalog.checkpoint_document(one) for one in list_checkpoints(store, PROJECT, JOB)]
    assert json.loads(json.dumps(lora)) == lora
    assert lora["created_at"] == "1970-01-01T00:00:01+00:00"
    assert (lora["checkpoint_id"], lora["checkpoint_type"]) == ("x", "lora")
    assert lora["sync_status"] == "COMPLETE"
    assert runs["checkpoint_type"] is None and runs["base_model"] is None


def test_foreign_objects_beside_manifests_are_passed_over(store):
    manifest = commit(store, "x")
    store.put(manifest.key + ".bak", b"")
    store.put(manifest.key.replace("0001-0001", "tmp"), b"")
    assert names(store) == ["x"]


def test_keys_round_trip(store):
    manifest = commit(store, "v0-1/checkpoint ü#%", rank=12, attempt=10_000, version=3)
    ref = parse_manifest_key(manifest.key, project_id=PROJECT, job_id=JOB)
    assert ref is not None
    assert (ref.rank, ref.name, ref.sort_key) == (12, manifest.name, (10_000, 3))
    assert load_manifest(store.get(manifest.key), key=manifest.key) == manifest


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"{}", b'{"format": 1}', b"\xff"])
def test_an_invalid_manifest_is_refused(data):
    with pytest.raises(CheckpointError):
        load_manifest(data, key="k")


def test_a_newer_format_is_refused(store):
    manifest = commit(store, "x")
    data = json.loads(store.get(manifest.key)) | {"format": 99}
    with pytest.raises(CheckpointError, match="Upgrade"):
        load_manifest(json.dumps(data).encode(), key="k")


def test_verify_finds_every_kind_of_damage(store, tmp_path):
    folders.write(tmp_path / "c/a", {"x": b"111", "y": b"222", "z": b"333"})
    folders.flush(store, tmp_path / "c")
    keys = {file.path: file.key for file in list_checkpoints(store, PROJECT, JOB)[0].files()}
    assert verify_committed.verify(store, PROJECT, JOB) == []
    store.put(keys["a/x"], b"1x1")
    store.delete(keys["a/y"])
    store.put(keys["a/z"], b"33")
    faults = verify_committed.verify(store, PROJECT, JOB)
    assert {(fault.path, fault.problem) for fault in faults} == {
        ("x", "has different content than expected"),
        ("y", "is missing"),
        ("z", "has 2 bytes, not 3"),
    }
