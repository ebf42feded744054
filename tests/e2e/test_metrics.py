"""Metrics of real jobs: a hang that is retried, and the advice that names it."""

import json

import pytest

from .conftest import Machine

pytestmark = [pytest.mark.integration]

HANGS_ONCE = """
n=0
while [ $n -lt 40 ]; do
  n=$((n + 1)); echo "step $n/40 loss 0.$n"
  [ $n = 12 ] && [ $BT_RETRY_COUNT = 0 ] && sleep 1000
  sleep 0.2
done
"""


@pytest.mark.extended
def test_a_hang_is_stopped_and_retried(machine: Machine) -> None:
    """It takes 45 s: a hang is named after 30 s at the earliest."""
    config = machine.folder(HANGS_ONCE)
    code, job = machine.push_wait(config, "--stop-on-hang")
    assert (code, job["current_status"]) == (0, "TRAINING_JOB_COMPLETED"), job["error_message"]
    first, second = machine.view(job["id"])["attempts"]
    assert (first["cause"], first["failure"]) == ("hung", "infrastructure")
    assert first["message"].startswith("The training hangs: no step since step 12 for ")
    assert second["status"] == "completed"
    goodput = json.loads(machine.run("view", "--job-id", job["id"], "-o", "json").stdout)["goodput"]
    assert goodput["lost_steps"] == 12, "without a checkpoint, all are done again"
