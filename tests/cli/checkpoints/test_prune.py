"""`checkpoints prune`: what goes, what stays and why; and nothing is half gone after a kill."""

import time
from pathlib import Path

import pytest

from prefect_bt.checkpoints.committed import catalog
from prefect_bt.checkpoints.committed.verify_committed import verify
from prefect_bt.checkpoints.retention import holds
from prefect_bt.ledger.records import JobRecord
from prefect_bt.object_store import open_store
from prefect_bt.planning.plan import LoadedCheckpoint
from tests.cli.conftest import Cli, Shop
from tests.cli.kept import commit
from tests.conftest import Soak

PRUNE = ("checkpoints", "prune", "--yes")


@pytest.fixture
def job(shop: Shop, ended, tmp_path: Path) -> JobRecord:
    record = shop.job("tiny", *ended)
    commit(shop, record, tmp_path / "ckpts", (10, 20, 30, 40))
    return record


def listed(shop: Shop, job: JobRecord) -> list[str]:
    found = catalog.list_checkpoints(open_store(shop.url), job.project_id, job.id)
    return sorted(one.checkpoint_id for one in found)


def hold(shop: Shop, job: JobRecord, name: str, holder: str, **more: str):
    found = catalog.list_checkpoints(shop.ledger.store, job.project_id, job.id)
    one = next(one for one in found if one.checkpoint_id == name)
    wanted = LoadedCheckpoint(job.project_id, job.id, name, tuple(one.manifest_keys.values()))
    assert holds.acquire_holds(shop.ledger, [wanted], holder=holder, **more)[1] == ()


def test_a_policy(cli: Cli, shop: Shop, job):
    arguments = (*PRUNE, "--job-id", job.id, "--keep-last", "1")
    dry = cli(*arguments, "--keep-every", "20", "--dry-run")
    assert dry.code == 0
    lines = [line.split() for line in dry.out.splitlines()]
    assert ["checkpoint-10", "11.72", "KiB", "delete"] in lines
    assert "keep: its step is a multiple of 20" in dry.out
    assert listed(shop, job) == ["checkpoint-10", "checkpoint-20", "checkpoint-30", "checkpoint-40"]
    done = cli(*arguments, "--keep-every", "20", "-o", "json")
    assert done.code == 0
    assert [one["checkpoint_id"] for one in done.json["jobs"][0]["deleted"]] == [
        "checkpoint-10",
        "checkpoint-30",
    ]
    assert done.json["freed_bytes"] == 8000
    assert listed(shop, job) == ["checkpoint-20", "checkpoint-40"]
    assert cli("checkpoints", "verify", "--job-id", job.id).code == 0
    again = cli(*arguments, "--keep-every", "20")
    assert again.out.endswith("There is nothing to delete.\n")


def test_by_name_in_a_project(cli: Cli, shop: Shop, job):
    done = cli(*PRUNE, "--project", "tiny", "--checkpoint-name", "checkpoint-40")
    assert done.code == 0
    assert listed(shop, job) == ["checkpoint-10", "checkpoint-20", "checkpoint-30"]
    assert f"Job {job.id}: 1 checkpoint deleted. Freed 3.91 KiB." in done.out


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (
            ["--keep-last", "1"],
            2,
            "checkpoints prune needs a job or a project. Give --job-id or --project.",
        ),
        (["--project", "tiny", "--keep-last", "0"], 2, "Must be >= 1"),
        (["--project", "tiny", "--checkpoint-name", "nope"], 1, "has: checkpoint-10, "),
    ],
)
def test_asked_in_a_wrong_way(cli: Cli, shop: Shop, job, arguments, code, words):
    done = cli(*PRUNE, *arguments)
    assert done.code == code
    assert words in done.err
    assert len(listed(shop, job)) == 4


def test_a_running_job_keeps_what_it_would_go_on_from(cli: Cli, shop: Shop, running, tmp_path):
    job = shop.job("tiny", *running)
    commit(shop, job, tmp_path / "ckpts", (10, 20))
    before = {info.key for info in shop.ledger.store.list("") if "/objects/" in info.key}
    names = ("--checkpoint-name", "checkpoint-10", "--checkpoint-name", "checkpoint-20")
    [done] = cli(*PRUNE, "--job-id", job.id, *names, "-o", "json").json["jobs"]
    assert done["running"]
    assert done["kept"] == [
        {"checkpoint_id": "checkpoint-20", "why": "the running job would resume from it"}
    ]
    assert listed(shop, job) == ["checkpoint-20"]
    assert {i.key for i in shop.ledger.store.list("") if "/objects/" in i.key} == before


def test_by_id(cli: Cli, shop: Shop, job):
    known = cli("checkpoints", "list", "--job-id", job.id, "-o", "json").json["checkpoints"]
    ids = {one["checkpoint_id"]: one["id"] for one in known}
    name = ids["checkpoint-20"]
    assert cli(*PRUNE, "--job-id", job.id, "--checkpoint-name", name).code == 0
    assert "checkpoint-20" not in listed(shop, job)
    assert len(listed(shop, job)) == len(ids) - 1


def test_what_others_need_stays(cli: Cli, shop: Shop, job, running):
    holder = shop.job("other", *running)
    hold(shop, job, "checkpoint-10", holder.id)
    hold(shop, job, "checkpoint-20", "chat", kind=holds.DEPLOYMENT)
    found = cli(*PRUNE, "--job-id", job.id, "--keep-last", "1", "-o", "json").json
    why = {one["checkpoint_id"]: one["why"] for one in found["jobs"][0]["kept"]}
    assert why["checkpoint-10"] == f"needed by job {holder.id}"
    assert why["checkpoint-20"] == "needed by deployment chat"
    assert listed(shop, job) == ["checkpoint-10", "checkpoint-20", "checkpoint-40"]


@pytest.mark.soak
def test_killed_it_leaves_whole_checkpoints(cli: Cli, shop: Shop, job, soak: Soak):
    """tests/checkpoints/retention/test_prune.py places the kills."""
    store = open_store(shop.url)
    for _ in range(4 * soak.length):
        process = cli.start(*PRUNE, "--job-id", job.id, "--keep-last", "1", "-y")
        time.sleep(soak.random.uniform(0.3, 0.9))
        process.kill()
        process.communicate()
        assert verify(store, job.project_id, job.id) == []
        assert "checkpoint-40" in listed(shop, job)
    assert cli(*PRUNE, "--job-id", job.id, "--keep-last", "1").code == 0
    assert listed(shop, job) == ["checkpoint-40"]
    left = [i.key for i in store.list("") if "/objects/" in i.key or "/withdrawn/" in i.key]
    assert len(left) == 2
