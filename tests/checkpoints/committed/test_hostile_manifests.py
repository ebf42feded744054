"""Forged manifests and withdrawals: nothing of another job is read or deleted."""

import json
import stat

import pytest

from prefect_bt.checkpoints.committed.catalog import list_checkpoints
from prefect_bt.checkpoints.committed.download import download_files
from prefect_bt.checkpoints.committed.tombstones import iter_tombstones
from prefect_bt.checkpoints.committed.verify_committed import verify
from prefect_bt.checkpoints.manifest import load_manifest
from prefect_bt.checkpoints.retention.prune import delete_unreferenced, prune_job, prune_rank
from prefect_bt.errors import CheckpointError
from prefect_bt.object_keys import job_prefix, tombstones_prefix
from tests.checkpoints import folders
from tests.checkpoints.folders import JOB, PROJECT, flush, origin
from tests.checkpoints.shelf import commit

OTHER = "training_projects/proj002/jobs/job0002/objects/0001/rank-0/00/secret"


def forge(store, change):
    """Change the manifest of `a`; return its key."""
    (one,) = list_checkpoints(store, PROJECT, JOB)
    key = one.manifest_keys[0]
    data = json.loads(store.get(key))
    change(data)
    store.put(key, json.dumps(data).encode())
    return key


def of_entry(**values):
    return lambda data: data["entries"][0].update(values)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (of_entry(key=OTHER), "not belong to its job"),
        (of_entry(key="index/projects/x"), "not belong to its job"),
        (
            of_entry(key=f"training_projects/{PROJECT}/jobs/{JOB}/objects/../job.json"),
            "not belong to its job",
        ),
        (of_entry(key=f"training_projects/{PROJECT}/jobs/{JOB}/job.json"), "not belong to its job"),
        *(
            (of_entry(path=path), "outside its checkpoint")
            for path in ("../x", "/etc/x", "a/../../x", "", "a//b", "x\0y")
        ),
        (of_entry(sha256="../../../../etc/x"), "no valid SHA-256"),
        (of_entry(sha256=7), "not a checkpoint manifest"),
        (of_entry(size=-1), "an invalid size, mode or time"),
        (of_entry(size="1"), "an invalid size, mode or time"),
        (of_entry(mode=1.5), "an invalid size, mode or time"),
        (lambda data: data.update(size="q"), "an invalid size or number of ranks"),
        (lambda data: data.update(size=-5), "an invalid size or number of ranks"),
        (lambda data: data.update(group_size=2.5), "an invalid size or number of ranks"),
        (lambda data: data.update(step="10"), "a step that is not a number"),
        (lambda data: data.update(base_model=["x"]), "a base model or note that is not text"),
        (lambda data: data.update(note=3), "a base model or note that is not text"),
        (of_entry(mtime_ns=10**30), "an invalid size, mode or time"),
        (lambda data: data.update(job_id="job0002"), "manifest of another checkpoint"),
        (lambda data: data.update(name="../../x"), "outside its checkpoint"),
        (lambda data: data.update(rank=3), "manifest of another checkpoint"),
        (lambda data: data.update(committed_at=1e300), "an invalid commit time"),
    ],
)
def test_a_forged_manifest_is_damaged(store, ckpts, change, said):
    flush(store, ckpts, {"a/x": b"1"})
    store.put(OTHER, b"of another job")
    key = forge(store, change)
    with pytest.raises(CheckpointError, match=said):
        load_manifest(store.get(key), key=key)
    with pytest.raises(CheckpointError, match=said):
        list_checkpoints(store, PROJECT, JOB)
    pruned = prune_job(store, PROJECT, JOB, ["a"], is_running=False)
    assert OTHER not in pruned.deleted_keys
    delete_unreferenced(store, PROJECT, JOB)
    assert store.get(OTHER) == b"of another job"


def test_bits_that_lend_rights_are_not_given(store, ckpts, tmp_path):
    folders.write(ckpts, {"a/x": b"1"})
    (ckpts / "a/x").chmod(0o4755)
    flush(store, ckpts)
    forge(store, of_entry(mode=0o6755))
    (one,) = list_checkpoints(store, PROJECT, JOB)
    download_files(store, {"x": one.manifests[0].entries[0]}, root=tmp_path / "out")
    assert stat.S_IMODE((tmp_path / "out/x").stat().st_mode) == 0o755


def test_objects_of_other_ranks_and_attempts_are_its_jobs(store, ckpts, tmp_path):
    flush(store, ckpts, {"a/x": b"same"}, group_size=2)
    other = tmp_path / "other"
    folders.write(other, {"b/x": b"same"})
    flush(store, other, rank=1, attempt=2, group_size=2)
    keys = {f.key for one in list_checkpoints(store, PROJECT, JOB) for f in one.files()}
    assert len(keys) == 1


def test_names_of_other_jobs_in_a_withdrawal_are_passed_over(store):
    own = f"{job_prefix(PROJECT, JOB)}/objects"
    names = [OTHER, f"{own}/../job.json", f"{own}//x", f"{own}/./x", f"{own}/x"]
    forged = {"name": "gone", "at": 1.0, "manifests": names, "objects": dict.fromkeys(names, 1)}
    store.put(f"{tombstones_prefix(PROJECT, JOB)}/forged.json", json.dumps(forged).encode())
    ((_, found),) = iter_tombstones(store, PROJECT, JOB)
    assert (found.manifests, list(found.objects)) == ((), [f"{own}/x"])


@pytest.mark.parametrize(
    "data",
    [b"", b"{", b"[]", b"null", b'{"name": "a"}', b"\xff", b"[" * 200_000]
    + [
        json.dumps({"name": "a", "at": 1.0, "manifests": m, "objects": o}).encode()
        for m, o in ((5, {}), ([5], {}), ([], []), (["x"], {"x": []}))
    ],
    ids=range(11),
)
def test_a_damaged_withdrawal_stops_nothing(store, ckpts, data):
    commit(store, ckpts, (10, 20))
    store.put(f"{tombstones_prefix(PROJECT, JOB)}/damaged.json", data)
    prune_rank(store, origin(), ["checkpoint-10"])
    assert [one.checkpoint_id for one in list_checkpoints(store, PROJECT, JOB)] == ["checkpoint-20"]


@pytest.mark.timeout(60)
def test_a_manifest_of_endless_bytes_is_verified_at_once(store, ckpts):
    flush(store, ckpts, {"a/x": b"1"})
    forge(store, of_entry(size=2**62))
    (damage,) = verify(store, PROJECT, JOB)
    assert "x" in str(damage)


@pytest.mark.parametrize("step", ["9" * 40, "1e400"])
def test_a_step_that_is_no_number_of_a_machine_is_no_step(store, ckpts, step):
    folders.write(
        ckpts, {"a/x": b"1", "a/trainer_state.json": b'{"global_step": %s}' % step.encode()}
    )
    folders.write(ckpts, {f"checkpoint-{'9' * 40}/x": b"1"})
    flush(store, ckpts)
    assert {one.step for one in list_checkpoints(store, PROJECT, JOB)} == {None}


@pytest.mark.parametrize("by_rank", [True, False])
def test_a_forged_withdrawal_deletes_nothing_of_another_job(store, ckpts, by_rank):
    record = f"{job_prefix(PROJECT, JOB)}/job.json"
    store.put(record, b"{}")
    commit(store, ckpts, (10, 20))
    store.put(OTHER, b"of another job")
    forged = {
        "name": "gone",
        "at": 1.0,
        "manifests": [OTHER, f"{tombstones_prefix(PROJECT, JOB)}/../../job.json"],
        "objects": {OTHER: 1, record: 1},
    }
    store.put(f"{tombstones_prefix(PROJECT, JOB)}/forged.json", json.dumps(forged).encode())
    if by_rank:
        prune_rank(store, origin(), ["checkpoint-10"])
    else:
        prune_job(store, PROJECT, JOB, ["checkpoint-10"], is_running=False)
    assert store.get(OTHER) == b"of another job"
    assert store.get(record) == b"{}"
    assert [one.checkpoint_id for one in list_checkpoints(store, PROJECT, JOB)] == ["checkpoint-20"]
