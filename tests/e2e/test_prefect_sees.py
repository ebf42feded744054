"""What people find in Prefect of a job: states, tasks, events, the card, a sample of the logs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from .conftest import Machine, call, until

pytestmark = [pytest.mark.integration]

LINES = 5000


def ask(machine: Machine, path: str, **body: Any) -> Any:
    return call(machine, "POST", path, **body)


def pages(machine: Machine, path: str, **body: Any) -> list[Any]:
    found: list[Any] = []
    while page := ask(machine, path, **body, limit=200, offset=len(found)):
        found += page
    return found


def test_a_flood_of_lines_is_whole_in_the_store_and_a_sample_in_prefect(machine: Machine) -> None:
    job_id = machine.push(machine.folder(f"seq -f 'line %g of the flood' 1 {LINES}\n"))["id"]
    machine.wait(job_id, "COMPLETED")
    # It is over only when its log is in the store.
    log = next((machine.root / "store").glob(f"**/{job_id}/attempts/0000/logs/rank-0.log"))
    numbers = [line.split()[2] for line in log.read_text().splitlines() if " of the flood" in line]
    assert numbers == [str(number) for number in range(1, LINES + 1)]
    assert machine.logs(job_id).count(" of the flood") == LINES
    run_id = machine.ledger.runs.list(job_id)[-1].flow_run_id
    of_run = {"logs": {"flow_run_id": {"any_": [run_id]}}}

    def shown() -> list[str]:
        messages = [log["message"] for log in pages(machine, "logs/filter", **of_run)]
        return messages if any("are not shown here" in m for m in messages) else []

    messages = until(shown, seconds=30, what="the sentence about what is not shown")
    assert sum(" of the flood" in message for message in messages) < LINES / 5


def test_the_run_shows_the_job(machine: Machine) -> None:
    script = "mkdir -p $BT_CHECKPOINT_DIR/c; echo 1 > $BT_CHECKPOINT_DIR/c/a; exit 3"
    code, job = machine.finish(machine.folder(script, nodes=2))
    assert code == 1
    run_id = job["flow_run_id"]

    def ended() -> Any:
        run = ask(machine, "flow_runs/filter", flow_runs={"id": {"any_": [run_id]}})[0]
        return run if run["state_type"] != "RUNNING" else None

    run = until(ended, seconds=20, what="the run to end, a moment after its job")
    assert job["id"] in run["name"]
    assert run["state_type"] == "FAILED"
    assert "failed first" in run["state"]["message"]

    def names() -> list[str]:
        tasks = ask(machine, "task_runs/filter", flow_runs={"id": {"any_": [run_id]}})
        return sorted(task["name"] for task in tasks)

    nodes = ["attempt 0 · rank 0", "attempt 0 · rank 1"]
    others = ["accept-job", "training", "attempt 0 · provision", "attempt 0 · upload checkpoints"]

    def complete() -> bool:
        return all(any(name.startswith(one) for name in names()) for one in nodes + others)

    # Prefect makes them of events, which may come after the run's end.
    until(complete, seconds=30, what=lambda: f"{nodes + others}, but {names()}")
    assert [name for name in names() if "rank" in name] == nodes

    card = ask(
        machine, "artifacts/latest/filter", artifacts={"key": {"any_": [f"job-{job['id']}"]}}
    )
    assert "## Attempts" in card[0]["data"]
    assert "## Definition" in card[0]["data"]
    assert "| c |" in card[0]["data"]

    def events() -> list[str]:
        mine = {"resource": {"id": [f"prefect-bt.job.{job['id']}"]}, "order": "ASC"}
        seen = [e["event"] for e in ask(machine, "events/filter", filter=mine)["events"]]
        return seen if "prefect-bt.job.failed" in seen else []

    seen = until(events, seconds=30, what="the job's events")
    assert {"prefect-bt.job.deploying", "prefect-bt.job.running", "prefect-bt.job.failed"} <= set(
        seen
    )


def test_uploads_are_seen_on_the_run_and_in_view(machine: Machine, tmp_path: Path) -> None:
    script = """
    cd $BT_CHECKPOINT_DIR; mkdir best; head -c 30000000 /dev/zero > best/w
    until test -e $WORD/go; do sleep 0.1; done
    """
    job_id = machine.push(machine.folder(script, env={"WORD": str(tmp_path)}))["id"]

    def committed() -> Any:
        uploads = machine.view(job_id)["uploads"]
        return uploads if uploads and uploads[0]["committed"] else None

    said = until(committed, seconds=60, what="the commit in `view`")[0]
    assert (said["rank"], said["committed"], said["bytes_done"]) == (0, ["best"], 30_000_000)
    assert said["lag"] > 0
    assert said["rate"] > 0
    assert "1 committed, the last one" in said["summary"]
    shown = machine.run("view", "--job-id", job_id).stdout
    assert "Upload, rank 0" in shown
    (tmp_path / "go").touch()
    machine.wait(job_id, "COMPLETED")
    assert machine.view(job_id)["uploads"] == []

    def bar() -> Any:
        wanted = {"key": {"any_": [f"uploads-{job_id}-0"]}}
        found = ask(machine, "artifacts/latest/filter", artifacts=wanted)
        return found[0] if found and found[0]["data"] == 100.0 else None

    assert "1 committed" in until(bar, seconds=30, what="the bar on the run")["description"]
    run_id = machine.ledger.runs.list(job_id)[-1].flow_run_id

    def line() -> bool:
        found = pages(machine, "logs/filter", logs={"flow_run_id": {"any_": [run_id]}})
        return any("rank 0: committed best" in log["message"] for log in found)

    until(line, seconds=30, what="the line of the commit")
