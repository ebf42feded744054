"""Another attempt by hand: same job, same Prefect run, the next BT_RETRY_COUNT, its checkpoints."""

from __future__ import annotations

import json

import pytest

from .conftest import Machine

pytestmark = [pytest.mark.integration, pytest.mark.xdist_group("e2e")]

SCRIPT = """
echo attempt $BT_RETRY_COUNT finds $(ls $BT_CHECKPOINT_DIR)
mkdir -p $BT_CHECKPOINT_DIR/checkpoint-$BT_RETRY_COUNT
echo "{}" > $BT_CHECKPOINT_DIR/checkpoint-$BT_RETRY_COUNT/a.json
test $BT_RETRY_COUNT = 2
"""


def test_a_failed_job_is_retried_until_it_completes(machine: Machine) -> None:
    code, job = machine.push_wait(machine.folder(SCRIPT))
    assert code == 1
    for code in (1, 0):
        done = machine.run("retry", "--job-id", job["id"], "--wait", "-o", "json", check=False)
        assert done.returncode == code, done.stderr
    assert json.loads(done.stdout)["id"] == job["id"]
    seen = machine.view(job["id"])
    assert [a["status"] for a in seen["attempts"]] == ["failed", "failed", "completed"]
    assert len(machine.ledger.runs_of_job(job["id"])) == 1, "one Prefect run"
    logs = machine.logs(job["id"])
    assert "attempt 1 finds checkpoint-0" in logs
    assert "attempt 2 finds checkpoint-0 checkpoint-1" in logs
    machine.nothing_left(job["id"])


def test_a_completed_job_is_not_retried(machine: Machine) -> None:
    _, job = machine.push_wait(machine.folder("true\n"))
    done = machine.run("retry", "--job-id", job["id"], check=False)
    assert done.returncode == 1
    assert f"recreate --job-id {job['id']}" in done.stderr
    assert len(machine.view(job["id"])["attempts"]) == 1
