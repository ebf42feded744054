"""What people find in Prefect of a job: states, tasks, events, the card, a sample of the logs."""

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


def full_bar(machine: Machine, key: str) -> Any:
    """Return the progress bar, once it shows 100 percent."""

    def bar() -> Any:
        found = ask(machine, "artifacts/latest/filter", artifacts={"key": {"any_": [key]}})
        return found[0] if found and found[0]["data"] == 100.0 else None

    return until(bar, seconds=30, what="the bar on the run")


SCRIPT = f"""
seq -f 'line %g of the flood' 1 {LINES}
cd $BT_CHECKPOINT_DIR; mkdir best; head -c 30000000 /dev/zero > best/w
until test -e $WORD/go; do sleep 0.1; done
"""


def test_uploads_and_a_sample_of_the_log_are_shown(machine: Machine, tmp_path: Path) -> None:
    """The store has each line of a flood. Prefect has a sample, and each upload."""
    job_id = machine.push(machine.folder(SCRIPT, env={"WORD": str(tmp_path)}))["id"]

    def committed() -> Any:
        uploads = machine.view(job_id)["uploads"]
        return uploads if uploads and uploads[0]["committed"] else None

    said = until(committed, seconds=60, what="the commit in `view`")[0]
    assert (said["rank"], said["committed"], said["bytes_done"]) == (0, ["best"], 30_000_000)
    assert said["lag"] > 0
    assert said["rate"] > 0
    assert "1 committed, the last one" in said["summary"]
    assert "Upload, rank 0" in machine.run("view", "--job-id", job_id).stdout
    (tmp_path / "go").touch()
    machine.wait(job_id, "COMPLETED")
    assert machine.view(job_id)["uploads"] == []
    # The job is over only when its log is in the store.
    log = next((machine.root / "store").glob(f"**/{job_id}/attempts/0000/logs/rank-0.log"))
    numbers = [line.split()[2] for line in log.read_text().splitlines() if " of the flood" in line]
    assert numbers == [str(number) for number in range(1, LINES + 1)]
    assert machine.logs(job_id).count(" of the flood") == LINES
    check_run(machine, job_id)


def check_run(machine: Machine, job_id: str) -> None:
    """Check the progress bar and the log lines of the Prefect run."""
    assert "1 committed" in full_bar(machine, f"uploads-{job_id}-0")["description"]
    of_run = {"flow_run_id": {"any_": [machine.ledger.runs.list(job_id)[-1].flow_run_id]}}

    def shown() -> list[str]:
        messages = [log["message"] for log in pages(machine, "logs/filter", logs=of_run)]
        wanted = ("are not shown here", "rank 0: committed best")
        return messages if all(any(one in m for m in messages) for one in wanted) else []

    messages = until(shown, seconds=30, what="the lines about the commit and what is not shown")
    assert sum(" of the flood" in message for message in messages) < LINES / 5
