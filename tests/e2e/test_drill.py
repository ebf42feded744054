"""A drill shows whether a job resumes from its checkpoint."""

import json
import signal
import subprocess

import pytest

from .conftest import Machine

pytestmark = [pytest.mark.integration]

STEPS = """
set -e
test "$RESUMES" = no || found=$(ls $BT_CHECKPOINT_DIR | sed 's/checkpoint-//' | sort -n | tail -1)
for i in $(seq $((${found:-0} + 1)) 3000); do
  mkdir -p $BT_CHECKPOINT_DIR/checkpoint-$i
  echo "[$i]" > $BT_CHECKPOINT_DIR/checkpoint-$i/state.json
  sleep 0.5
done
"""


def test_a_job_that_resumes(machine: Machine) -> None:
    config = machine.folder(STEPS, nodes=2, env={"RESUMES": "yes"})
    done = machine.run("drill", str(config), "--step", "2", "-o", "json")
    result = json.loads(done.stdout)
    assert result["resumed"] is True
    assert result["rank"] == 1
    assert result["step_after"] > result["step_before"] >= 2
    assert 0 < result["seconds_to_attempt"] < result["seconds_to_step"]
    job = machine.view(result["job_id"])
    assert job["current_status"] == "TRAINING_JOB_STOPPED"
    machine.nothing_left(result["job_id"])


@pytest.mark.soak
def test_a_job_that_starts_again(machine: Machine) -> None:
    config = machine.folder(STEPS, env={"RESUMES": "no"})
    done = machine.run("drill", str(config), "--step", "3", "-o", "json", check=False)
    result = json.loads(done.stdout)
    assert done.returncode == 1
    assert result["resumed"] is False
    assert "started again with step 1" in result["why"]
    machine.nothing_left(result["job_id"])


@pytest.mark.extended
def test_a_job_that_gives_no_occasion(machine: Machine) -> None:
    done = machine.run("drill", str(machine.folder("exit 0\n")), check=False)
    assert done.returncode == 1
    assert "ended before a checkpoint with a step" in done.stderr
    assert "See: prefect-bt logs --job-id" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_job_without_checkpoints_is_not_begun(machine: Machine) -> None:
    before = [job.id for job in machine.ledger.list_jobs()]
    config = machine.folder("sleep 600\n", checkpointing=False)
    done = machine.run("drill", str(config), check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert "checkpointing_config is not enabled. Give the runtime" in done.stderr
    assert [job.id for job in machine.ledger.list_jobs()] == before


@pytest.mark.extended
def test_ctrl_c_stops_the_job_and_does_not_wait(machine: Machine) -> None:
    """The job leaves only when the command is gone."""
    stays = """
trap 'told=yes' TERM
until test "$told" = yes && test -e $BT_CHECKPOINT_DIR/leave; do sleep 0.1; done
"""
    drill = subprocess.Popen(
        machine.command("drill", str(machine.folder(stays))),
        env={**machine.environment, "PREFECT_BT_GRACE": "120"},
        stderr=subprocess.PIPE,
        text=True,
    )
    assert drill.stderr
    job_id = drill.stderr.readline().split()[1]
    machine.wait(job_id, "RUNNING")
    drill.send_signal(signal.SIGINT)
    _, said = drill.communicate(timeout=200)
    assert drill.returncode == 130
    assert f"Job {job_id} is being stopped: its ranks receive SIGTERM" in said
    assert machine.ledger.controls.find_stop_request(job_id)
    assert not machine.ledger.get_state(job_id).terminal
    (machine.state_dir / "jobs" / job_id / "rank-0" / "checkpoints" / "leave").touch()
    machine.wait(job_id, "STOPPED")
    machine.nothing_left(job_id)
