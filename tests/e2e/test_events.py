"""The events of a job on a real server, and what their labels tell automations."""

import signal
from pathlib import Path
from typing import Any

import pytest

from .conftest import Machine, call, until

pytestmark = [pytest.mark.integration]


def events(machine: Machine, job_id: str, last: str) -> list[dict[str, Any]]:
    """Return the job's events, oldest first, once one called `last` is among them."""

    def seen() -> list[dict[str, Any]]:
        wanted = {"resource": {"id": [f"prefect-bt.job.{job_id}"]}, "order": "ASC"}
        found = call(machine, "POST", "events/filter", filter=wanted)["events"]
        return found if any(event["event"] == f"prefect-bt.{last}" for event in found) else []

    return until(seen, seconds=30, what=f"{last} of {job_id}")


def labels(found: list[dict[str, Any]], name: str) -> list[dict[str, str]]:
    """Return our labels of each event called `name`, without their prefix."""
    return [
        {
            label.removeprefix("prefect-bt."): value
            for label, value in event["resource"].items()
            if label.startswith("prefect-bt.")
        }
        for event in found
        if event["event"] == f"prefect-bt.{name}"
    ]


def test_crashed_flow_is_recovered(machine: Machine, tmp_path: Path) -> None:
    """The flow dies: its task runs crash and the job is recovered, an event of its own. The
    training dies: the retry policy goes on."""
    script = """
    mkdir -p $BT_CHECKPOINT_DIR/checkpoint-$BT_RETRY_COUNT
    echo 1 > $BT_CHECKPOINT_DIR/checkpoint-$BT_RETRY_COUNT/a
    test $BT_RETRY_COUNT = 1 || until test -e $WORD/killed; do sleep 0.1; done
    test $BT_RETRY_COUNT = 1 || kill -9 $$
    """
    job_id = machine.push(machine.folder(script, env={"WORD": str(tmp_path)}))["id"]
    machine.wait(job_id, "RUNNING")
    until(lambda: machine.checkpoints(job_id), seconds=60, what="a commit")
    assert not labels(events(machine, job_id, "checkpoint.committed"), "job.recovered")

    def shown_while_it_runs() -> bool:
        wanted = {"key": {"any_": [f"job-{job_id}"]}}
        (card,) = call(machine, "POST", "artifacts/latest/filter", artifacts=wanted)
        return "| checkpoint-0 |" in card["data"]

    until(shown_while_it_runs, seconds=30, what="the commit on the card")
    for flow in machine.processes(job_id, "prefect_bt.supervisor.run_flow"):
        flow.send_signal(signal.SIGKILL)
    (recovered,) = labels(events(machine, job_id, "job.recovered"), "job.recovered")
    assert recovered["attempt"] == "0"
    run_id = machine.ledger.runs.list(job_id)[-1].flow_run_id

    def crashed() -> bool:
        """Return whether all that ran in the dead process runs again in the new one."""
        filters = {"flow_runs": {"id": {"any_": [run_id]}}}
        tasks = call(machine, "POST", "task_runs/filter", **filters)
        wanted = ["attempt 0", "attempt 0 · rank 0", "training"]
        return all(
            wanted == sorted(t["name"].partition("-")[0] for t in tasks if t["state_type"] == kind)
            for kind in ("CRASHED", "RUNNING")
        )

    until(crashed, seconds=30, what="crashed task runs, and others that run")
    (tmp_path / "killed").touch()
    machine.wait(job_id, "COMPLETED")
    found = events(machine, job_id, "job.completed")
    (created,) = labels(found, "job.created")
    assert (created.get("retry"), created.get("failure-class")) == ("policy", "infrastructure")
    committed = labels(found, "checkpoint.committed")
    assert [(one["attempt"], one["step"]) for one in committed] == [("0", "0"), ("1", "1")]
