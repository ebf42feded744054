"""`prefect-bt view` of many jobs: the newest ones, how many there are, and what a fault costs."""

import pytest

from prefect_bt.ledger.states import JobState
from tests.cli.conftest import Cli, Shop, Within


def ids(text: str) -> list[str]:
    return [line.split()[0] for line in text.splitlines()[2:]]


@pytest.mark.slow
def test_only_the_newest_are_shown(within: Within, shop: Shop, ended: tuple[JobState, ...]) -> None:
    jobs = [shop.job("tiny", *ended).id for _ in range(52)]
    other = shop.job("other", *ended).id
    for _ in range(2):
        done = within("view", "--project", "tiny")
        assert (done.code, ids(done.out)) == (0, jobs[2:])
        assert done.err == "Showing the newest 50 of 52 jobs. More: --limit N, or --all.\n"
    assert ids(within("view", "--project", "tiny", "--limit", "3").out) == jobs[-3:]
    done = within("view", "--project", "tiny", "--all")
    assert (ids(done.out), done.err) == (jobs, "")
    assert ids(within("view", "--all").out) == [*jobs, other]
    found = within("view", "--project", "tiny", "--limit", "2", "-o", "json")
    assert [job["id"] for job in found.json["training_jobs"]] == jobs[-2:]
    assert found.json["total_jobs"] == 52
    assert found.err == ""
    assert within("view", "--project", "tiny", "--limit", "0").code == 2
    error = within("view", "--project", "tiny", "--limit", "2", "--all").refusal(2)
    assert "--all and --limit exclude each other." in error


def test_retried_jobs_are_active(within: Within, shop: Shop, running: tuple[JobState, ...]) -> None:
    job = shop.job("tiny", *running, JobState.FAILED)
    for _ in range(2):
        assert "No queued or active training jobs." in within("view").out
    shop.ledger.append_event(job.id, JobState.CREATED)
    found = within("view", "-o", "json").json
    assert [one["id"] for one in found["active_jobs"]] == [job.id]
    assert found["training_projects"][0]["latest_job"]["current_status"] == JobState.CREATED


@pytest.mark.parametrize("output", ["cli-table", "json"])
def test_a_damaged_index_changes_nothing(
    cli: Cli, within: Within, shop: Shop, ended: tuple[JobState, ...], output: str
) -> None:
    for _ in range(2):
        shop.job("tiny", *ended)
    command = ("view", "--project", "tiny", "-o", output)
    first = within(*command)
    [path, _] = (cli.folder / "store" / "index" / "ended").rglob("*.json")
    path.write_bytes(b"garbage " * 1000)
    damaged, after = within(*command), within(*command)
    assert damaged == after == first
