"""`checkpoints verify`: a byte changed behind its back is named, and the exit code is 1."""

from pathlib import Path

import pytest

from prefect_bt.checkpoints.committed import catalog
from prefect_bt.ledger.records import JobRecord
from tests.cli.conftest import Cli, Shop
from tests.cli.kept import commit


@pytest.fixture
def job(shop: Shop, ended, tmp_path: Path) -> JobRecord:
    record = shop.job("tiny", *ended)
    commit(shop, record, tmp_path / "ckpts", (10, 20))
    return record


def _file(shop: Shop, job: JobRecord, name: str, path: str):
    found = catalog.list_checkpoints(shop.ledger.store, job.project_id, job.id)
    checkpoint = next(one for one in found if one.checkpoint_id == name)
    file = next(file for file in checkpoint.files() if file.path == f"{name}/{path}")
    return checkpoint, file, Path(shop.url) / file.key


def test_all_is_well(cli: Cli, job):
    done = cli("checkpoints", "verify", "--job-id", job.id)
    assert (done.code, done.err) == (0, "")
    assert done.out == f"Job {job.id}: 2 checkpoints, 3 objects, 15.62 KiB: all intact.\n"
    found = cli("checkpoints", "verify", "--job-id", job.id, "-o", "json").json
    totals = {"checkpoints": 2, "objects": 3, "bytes": 16000}
    assert found == {"job_id": job.id, **totals, "faults": [], "incomplete": []}


def test_one_flipped_byte(cli: Cli, shop: Shop, job):
    checkpoint, file, object_ = _file(shop, job, "checkpoint-20", "weights.dat")
    data = bytearray(object_.read_bytes())
    data[777] ^= 1
    object_.write_bytes(data)
    done = cli("checkpoints", "verify", "--job-id", job.id)
    assert done.code == 1
    assert done.err == (
        f"error: {file.key} has different content than expected: "
        "checkpoint-20/weights.dat (checkpoint 'checkpoint-20', rank 0)\n"
    )
    done = cli("checkpoints", "verify", "--job-id", job.id, "-o", "json")
    assert done.code == 1
    assert done.json["faults"] == [
        {
            "manifest": checkpoint.newest_manifest,
            "checkpoint": "checkpoint-20",
            "rank": 0,
            "path": "weights.dat",
            "key": file.key,
            "what": "has different content than expected",
        }
    ]
    assert cli("checkpoints", "verify", "--checkpoint-name", "checkpoint-10").code == 0


def test_a_truncated_a_missing_and_a_shared_one(cli: Cli, shop: Shop, job):
    _, short, object_ = _file(shop, job, "checkpoint-10", "weights.dat")
    object_.write_bytes(object_.read_bytes()[:-1])
    _, gone, object_ = _file(shop, job, "checkpoint-10", "shared.dat")
    object_.unlink()
    done = cli("checkpoints", "verify", "--job-id", job.id, "-o", "json")
    assert done.code == 1
    found = {(f["checkpoint"], f["path"], f["key"], f["what"]) for f in done.json["faults"]}
    missing = ("shared.dat", gone.key, "is missing")
    assert found == {
        ("checkpoint-10", "weights.dat", short.key, "has 3999 bytes, not 4000"),
        ("checkpoint-10", *missing),
        ("checkpoint-20", *missing),
    }


def test_a_manifest_that_does_not_parse(cli: Cli, shop: Shop, job):
    checkpoint, _, _ = _file(shop, job, "checkpoint-10", "weights.dat")
    (Path(shop.url) / checkpoint.newest_manifest).write_bytes(b"{")
    done = cli("checkpoints", "verify", "--job-id", job.id)
    assert done.code == 1
    assert f"{checkpoint.newest_manifest} is not a checkpoint manifest." in done.err
    assert "checkpoint 'checkpoint-10', rank 0" in done.err


def test_an_unknown_name_lists_the_known(cli: Cli, job):
    error = cli("checkpoints", "verify", "--job-id", job.id, "--checkpoint-name", "nope").refusal()
    assert f"Job {job.id} has: checkpoint-10, checkpoint-20." in error


def test_nothing_committed(cli: Cli, shop: Shop, ended):
    job = shop.job("tiny", *ended)
    done = cli("checkpoints", "verify", "--job-id", job.id)
    assert (done.code, done.err) == (0, f"No checkpoints found for training job {job.id}.\n")


def test_one_by_id(cli: Cli, job):
    first = cli("checkpoints", "list", "--job-id", job.id, "-o", "json").json["checkpoints"][0]
    done = cli("checkpoints", "verify", "--job-id", job.id, "--checkpoint-name", first["id"])
    assert done.code == 0
    assert done.out.startswith(f"Job {job.id}: 1 checkpoint, ")
