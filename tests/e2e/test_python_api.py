"""From Python: `push` returns when accepted, `train` when it is over; UI actions take effect."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import textwrap
import time

import pytest

from .conftest import Machine, until

pytestmark = [pytest.mark.integration]


def python(machine: Machine, source: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(source)],
        env={**machine.environment, "PREFECT_API_URL": machine.api_url},
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
                from prefect_bt import push
                from prefect_bt.definitions import load_training_project
                project = load_training_project({str(config)!r})
                one = push({str(config)!r}, remote="baseten")
                two = push(project, source_dir={str(config.parent)!r}, substrate="local")
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


def test_train_runs_where_it_is_called(machine: Machine) -> None:
    config = machine.folder("echo hi\n")
    source = f"""
    import json
    from prefect_bt.flows.train import train
    print(json.dumps(train({str(config)!r})))
    """
    job = json.loads(output(python(machine, source)))
    assert job["current_status"] == "TRAINING_JOB_COMPLETED"
    machine.nothing_left(job["id"])


def test_train_from_a_json_definition(machine: Machine) -> None:
    config = machine.folder("echo hi\n")
    definition = {
        "name": "from-json",
        "job": {"image": {"base_image": "i"}, "runtime": {"start_commands": ["cat run.sh"]}},
    }
    source = f"""
    import json
    from prefect_bt.flows.train import train
    job = train(definition={definition!r}, source_dir={str(config.parent)!r}, job_name="named")
    print(json.dumps(job))
    """
    job = json.loads(output(python(machine, source)))
    assert (job["name"], job["training_project"]["name"]) == ("named", "from-json")
    assert "echo hi" in machine.logs(job["id"])


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_stops_the_job(machine: Machine, number: signal.Signals) -> None:
    before = {job.id for job in machine.ledger.jobs()}
    config = machine.folder("echo ready; sleep 600\n")
    process = python(machine, f"from prefect_bt.flows.train import train; train({str(config)!r})")
    job_id = running_job(machine, before)
    process.send_signal(number)
    process.communicate(timeout=200)
    assert process.returncode != 0
    assert machine.wait(job_id, "STOPPED")
    machine.nothing_left(job_id)


def test_cancelling_the_run_in_prefect_stops_the_job(machine: Machine) -> None:
    job_id = machine.push(machine.folder("echo ready; sleep 600\n"))["id"]
    until(lambda: "ready" in machine.logs(job_id), seconds=60, what="ready")
    run_id = machine.ledger.runs_of_job(job_id)[-1].flow_run_id
    output(
        python(
            machine,
            f"""
            from uuid import UUID
            from prefect.client.orchestration import get_client
            from prefect.states import Cancelling
            with get_client(sync_client=True) as client:
                client.set_flow_run_state(UUID({run_id!r}), Cancelling())
            print("asked")
            """,
        )
    )
    machine.wait(job_id, "STOPPED")
    until(lambda: run_state(machine, run_id) == "CANCELLED", seconds=20, what="run cancelled")
    machine.nothing_left(job_id)


def run_state(machine: Machine, run_id: str) -> str:
    return output(
        python(
            machine,
            f"""
            from uuid import UUID
            from prefect.client.orchestration import get_client
            with get_client(sync_client=True) as client:
                print(client.read_flow_run(UUID({run_id!r})).state.type.value)
            """,
        )
    )


def running_job(machine: Machine, before: set[str]) -> str:
    def ready() -> str:
        for job in machine.ledger.jobs():
            if job.id not in before and "ready" in machine.logs(job.id):
                return job.id
        return ""

    time.sleep(0.5)
    return until(ready, seconds=60, what="a new job that is ready")
