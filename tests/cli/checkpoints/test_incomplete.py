"""A checkpoint that lacks the part of a rank is marked by every command that shows or reads it."""

import csv
import io

import pytest

from prefect_bt.ledger.records import JobRecord
from prefect_bt.ledger.states import JobState
from tests.cli.conftest import Cli, Shop

MISSING = "rank 1 did not commit a part of it."


@pytest.fixture(params=["ended", "running"])
def is_running(request) -> bool:
    return request.param == "running"


@pytest.fixture
def job(shop: Shop, ended, running, is_running) -> JobRecord:
    states: tuple[JobState, ...] = running if is_running else ended
    record = shop.job("gang", *states)
    if is_running:
        shop.ledger.begin_attempt(record.id)
    for step, ranks in ((10, (0, 1)), (20, (0,))):
        for rank in ranks:
            files = {f"part-{rank}.dat": b"%d of %d" % (step, rank)}
            shop.commit(record, f"checkpoint-{step}", files, rank=rank)
    return record


def test_list(cli: Cli, job, is_running):
    found = cli("checkpoints", "list", "-o", "json").json["checkpoints"]
    status = {one["checkpoint_id"]: (one["sync_status"], one["sync_error"]) for one in found}
    marked = ("SYNCING", None) if is_running else (None, MISSING)
    assert status == {"checkpoint-10": ("COMPLETE", None), "checkpoint-20": marked}
    rows = list(csv.DictReader(io.StringIO(cli("checkpoints", "list", "-o", "csv").out)))
    expected = [("COMPLETE", ""), tuple(value or "" for value in marked)]
    assert [(row["Sync Status"], row["Sync Error"]) for row in rows] == expected
    shown = "SYNCING" if is_running else MISSING
    whole, partial = cli("checkpoints", "list").out.splitlines()[2:4]
    assert whole.endswith(" COMPLETE") and partial.endswith(f" {shown}")


def test_download(cli: Cli, job):
    done = cli("checkpoints", "download", "--target-directory", "here")
    assert done.code == 0
    assert done.err == (
        f"checkpoint-20 is not complete: {MISSING} The parts of the other ranks were downloaded. "
        "The newest complete checkpoint is checkpoint-10.\n"
    )
    assert (cli.folder / "here/rank-0/checkpoint-20/part-0.dat").exists()
    words = ("checkpoints", "download", "--target-directory", "there")
    assert cli(*words, "--checkpoint-name", "checkpoint-10").err == ""


def test_verify(cli: Cli, job, is_running):
    done = cli("checkpoints", "verify")
    assert done.code == (0 if is_running else 1)
    assert ("not complete" in done.out) == (not is_running)
    assert done.err == (
        "" if is_running else f"error: checkpoint 'checkpoint-20' is not complete: {MISSING}\n"
    )
    found = cli("checkpoints", "verify", "-o", "json").json["incomplete"]
    expected = [{"checkpoint": "checkpoint-20", "missing_ranks": [1]}]
    assert found == ([] if is_running else expected)
    assert cli("checkpoints", "verify", "--checkpoint-name", "checkpoint-10").code == 0
