"""Sums of hours and money over the documents of jobs."""

from typing import Any

import pytest

from prefect_bt.cli.jobs.costs import costs_document
from prefect_bt.text.quantities import format_iso

NOW = 1_700_000_000.0
HOUR = 3600.0
DAY_AGO = NOW - 24 * HOUR
PRICES = {"H100": 2.5, "CPU": 0.1}


def job(
    *attempts: tuple[float, float | None],
    gpus: int = 0,
    nodes: int = 1,
    gpu_type: str = "H100",
    status: str = "TRAINING_JOB_COMPLETED",
    planned: bool = True,
    **facts: Any,
) -> dict[str, Any]:
    """A job's document; attempts as hours before now."""
    kind = gpu_type if gpus else ""
    return {
        "attempts": [
            {"started_at": format_iso(NOW - begin * HOUR)}
            | ({} if end is None else {"ended_at": format_iso(NOW - end * HOUR)})
            for begin, end in attempts
        ],
        "current_status": status,
        "updated_at": format_iso(NOW - HOUR),
        "node_count": nodes,
        "training_project": {"name": "tiny", "team_name": None},
        "resources": {"cpus": 8, "gpus": gpus, "gpu_type": kind} if planned else None,
        "instance_type": {"gpu_count": gpus, "gpu_type": kind or None, "millicpu_limit": 8000},
        **facts,
    }


def total(*jobs: dict[str, Any], since: float = DAY_AGO, prices: dict[str, float] = PRICES):
    return costs_document(jobs, by="project", since=since, now=NOW, prices=prices)["total"]


@pytest.mark.parametrize(
    ("document", "node_hours", "gpu_hours", "cpu_hours", "cost"),
    [
        (job((5, 3), gpus=8, nodes=2), 4, {"H100": 32}, 0, 80),
        (job((5, 3), (3, 2), nodes=2), 6, {}, 48, 4.8),
        (job((5, 3), gpus=8, planned=False), 2, {"H100": 16}, 0, 40),
        (job((30, 20), gpus=1), 4, {"H100": 4}, 0, 10),
        (job((3, None), gpus=1, status="TRAINING_JOB_RUNNING"), 3, {"H100": 3}, 0, 7.5),
        (job((3, None), gpus=1, status="TRAINING_JOB_FAILED"), 2, {"H100": 2}, 0, 5),
    ],
    ids=["gang", "without GPUs", "not planned", "partly before", "running", "no end recorded"],
)
def test_attempt_counts_from_start_to_end(document, node_hours, gpu_hours, cpu_hours, cost):
    found = total(document)
    assert found["node_hours"] == node_hours
    assert (found["gpu_hours"], found["cpu_hours"]) == (gpu_hours, cpu_hours)
    assert found["cost"] == pytest.approx(cost)
    assert found["jobs"] == 1


def test_jobs_outside_the_window_and_jobs_that_never_began_are_not_counted():
    found = total(job((50, 30)), job(), job((-1, -2)))
    assert (found["jobs"], found["node_hours"]) == (0, 0)


def test_without_prices_there_is_no_cost_and_a_type_without_a_price_is_listed():
    jobs = [job((2, 1), gpus=1), job((2, 1), gpus=1, gpu_type="A100")]
    free = costs_document(jobs, by="team", since=DAY_AGO, now=NOW, prices={})
    assert "cost" not in free["total"] and free["unpriced"] == []
    priced = costs_document(jobs, by="team", since=DAY_AGO, now=NOW, prices=PRICES)
    assert priced["unpriced"] == ["A100"]
    assert priced["total"]["cost"] == 2.5


@pytest.mark.parametrize(
    ("by", "names"),
    [("project", ["tiny", "wide"]), ("team", ["default", "vision"]), ("user", ["ann", "unknown"])],
)
def test_groups(by, names: list[str]):
    wide = {"name": "wide", "team_name": "vision"}
    jobs = [job((2, 1), user={"email": "ann"}), job((2, 1), training_project=wide)]
    document = costs_document(jobs, by=by, since=DAY_AGO, now=NOW, prices={})
    assert [group["name"] for group in document["groups"]] == names


def test_kept_fraction_is_that_of_the_jobs_whose_goodput_is_known():
    known = job((2, 1), goodput={"wall_clock": 100.0, "seconds": {"training": 40.0}})
    other = job((2, 1), goodput={"wall_clock": 300.0, "seconds": {"training": 260.0}})
    assert total(known, other, job((2, 1)))["kept_fraction"] == 0.75
    assert total(job((2, 1)))["kept_fraction"] is None
