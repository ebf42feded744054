"""From Python: `push` returns when accepted, `train` when it is over; UI actions take effect."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import textwrap
from typing import Any

import pytest

from prefect_bt.flows.train import train
from tests.in_process import environment_of

from .conftest import Machine, call, until

pytestmark = [pytest.mark.integration]


def python(machine: Machine, source: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(source)],
        env={**machine.environment, **machine.api},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def output(process: subprocess.Popen[str]) -> str:
    out, err = process.communicate(timeout=400)
    assert process.returncode == 0, err
    return out.splitlines()[-1]


def test_push_returns_what_both_readings_expect(machine: Machine) -> None:
    config = machine.folder("echo hi\n")
    job = json.loads(
        output(
            python(
                machine,
                f"""
                import json
                import prefect_bt.compat
                from prefect_bt import push
                from truss_train import loader, public_api
                one = push({str(config)!r}, remote="baseten", substrate="local")
                with loader.import_training_project({str(config)!r}) as project:
                    two = public_api.push(project, source_dir={str(config.parent)!r})
                assert one.pop("job_object") == project.job and "job_object" not in two
                print(json.dumps([one, two]))
                """,
            )
        )
    )
    for document in job:
        assert document["id"] == document["training_job"]["id"]
        assert document["training_project"]["name"] == "e2e"
        assert document["current_status"].startswith("TRAINING_JOB_")
        machine.wait(document["id"], "COMPLETED")


def test_train_runs_where_it_is_called_and_takes_a_json_definition(machine: Machine) -> None:
    config = machine.folder("echo hi\n")
    definition = {
        "name": "from-json",
        "job": {"image": {"base_image": "i"}, "runtime": {"start_commands": ["cat run.sh"]}},
    }
    with environment_of(machine.environment):
        job: Any = train(definition=definition, source_dir=str(config.parent), job_name="named")
    assert (job["name"], job["training_project"]["name"]) == ("named", "from-json")
    assert job["current_status"] == "TRAINING_JOB_COMPLETED"
    assert "echo hi" in machine.logs(job["id"])
    machine.nothing_left(job["id"])


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_stops_the_job(machine: Machine, number: signal.Signals) -> None:
    project = f"interrupted by {number.name}"
    config = machine.folder("echo ready; sleep 600\n", project=project)
    process = python(machine, f"from prefect_bt.flows.train import train; train({str(config)!r})")
    (job_id,) = until(lambda: machine.jobs_of(project), seconds=60, what="the job")
    until(lambda: "ready" in machine.logs(job_id), seconds=60, what="ready")
    process.send_signal(number)
    process.communicate(timeout=900)
    assert process.returncode != 0
    assert machine.wait(job_id, "STOPPED")
    machine.nothing_left(job_id)


def test_cancelling_the_run_in_prefect_stops_the_job(machine: Machine) -> None:
    job_id = machine.push(machine.folder("echo ready; sleep 600\n"))["id"]
    until(lambda: "ready" in machine.logs(job_id), seconds=60, what="ready")
    run_id = machine.ledger.list_runs(job_id)[-1].flow_run_id
    path = f"flow_runs/{run_id}"
    call(machine, "POST", f"{path}/set_state", state={"type": "CANCELLING"})
    machine.wait(job_id, "STOPPED")

    def cancelled() -> bool:
        return call(machine, "GET", path)["state_type"] == "CANCELLED"

    until(cancelled, seconds=20, what="run cancelled")
    machine.nothing_left(job_id)
