"""A drill tells a job that goes on from its checkpoint from one that begins anew."""

from __future__ import annotations

import json

import pytest

from .conftest import Machine

pytestmark = [pytest.mark.integration, pytest.mark.xdist_group("e2e")]

STEPS = """
set -e
test "$RESUMES" = no || found=$(ls $BT_CHECKPOINT_DIR | sed 's/checkpoint-//' | sort -n | tail -1)
for i in $(seq $((${found:-0} + 1)) 60); do
  mkdir -p $BT_CHECKPOINT_DIR/checkpoint-$i
  echo "[$i]" > $BT_CHECKPOINT_DIR/checkpoint-$i/state.json
  sleep 0.5
done
"""


def test_a_job_that_goes_on(machine: Machine) -> None:
    config = machine.folder(STEPS, nodes=2, env={"RESUMES": "yes"})
    done = machine.run("drill", str(config), "--step", "2", "-o", "json")
    result = json.loads(done.stdout)
    assert result["resumed"] is True
    assert result["rank"] == 1
    assert result["step_after"] > result["step_before"] >= 2
    assert 0 < result["seconds_to_attempt"] < result["seconds_to_step"]
    job = machine.view(result["job_id"])
    assert job["drill"] == result
    assert job["current_status"] == "TRAINING_JOB_STOPPED"
    machine.nothing_left(result["job_id"])


def test_a_job_that_begins_anew(machine: Machine) -> None:
    config = machine.folder(STEPS, env={"RESUMES": "no"})
    done = machine.run("drill", str(config), "--step", "3", "-o", "json", check=False)
    result = json.loads(done.stdout)
    assert done.returncode == 1
    assert result["resumed"] is False
    assert "began again with step 1" in result["why"]
    machine.nothing_left(result["job_id"])


def test_a_job_that_gives_no_occasion(machine: Machine) -> None:
    done = machine.run("drill", str(machine.folder("exit 0\n")), check=False)
    assert done.returncode == 1
    assert "ended before a checkpoint with a step" in done.stderr
    assert "Traceback" not in done.stderr
