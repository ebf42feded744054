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


@pytest.mark.parametrize(
    "number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.extended)]
)
def test_an_interrupt_stops_the_job(machine: Machine, number: signal.Signals) -> None:
    project = f"interrupted by {number.name}"
    config = machine.folder("echo ready; sleep 600\n", project=project)
    process = python(machine, f"from prefect_bt.flows.train import train; train({str(config)!r})")
    (job_id,) = until(lambda: machine.jobs_of(project), seconds=60, what="the job")
    until(lambda: "ready" in machine.logs(job_id), seconds=60, what="ready")
    process.send_signal(number)
    _, err = process.communicate(timeout=900)
    assert process.returncode != 0
    assert machine.wait(job_id, "STOPPED")
    if number is signal.SIGINT:
        assert err.rstrip().endswith("KeyboardInterrupt")
        run = call(machine, "GET", f"flow_runs/{machine.ledger.runs.list(job_id)[-1].flow_run_id}")
        assert run["state_type"] == "CANCELLED"
    machine.nothing_left(job_id)


def test_cancelling_the_run_in_prefect_stops_the_job(machine: Machine) -> None:
    job_id = machine.push(machine.folder("echo ready; sleep 600\n"))["id"]
    until(lambda: "ready" in machine.logs(job_id), seconds=60, what="ready")
    run_id = machine.ledger.runs.list(job_id)[-1].flow_run_id
    path = f"flow_runs/{run_id}"
    call(machine, "POST", f"{path}/set_state", state={"type": "CANCELLING"})
    machine.wait(job_id, "STOPPED")

    def cancelled() -> bool:
        return call(machine, "GET", path)["state_type"] == "CANCELLED"

    until(cancelled, seconds=20, what="run cancelled")
    machine.nothing_left(job_id)


FAILS_ONCE = "exit $((3 - 3 * BT_RETRY_COUNT))\n"


@pytest.mark.parametrize("given", ["with_options(retries=1)", "with_options(name='train')"])
def test_retries_of_the_flow_are_attempts(machine: Machine, given: str) -> None:
    """Retries given to the flow, and the default of all flows in Prefect's settings."""
    config = machine.folder(FAILS_ONCE)
    machine.environment["PREFECT_FLOWS_DEFAULT_RETRIES"] = "0" if "retries" in given else "1"
    try:
        source = f"""
            from prefect_bt.flows.train import train
            job = train.{given}({str(config)!r})
            print(job["current_status"], len(job["attempts"]))
            """
        assert output(python(machine, source)) == "TRAINING_JOB_COMPLETED 2"
    finally:
        del machine.environment["PREFECT_FLOWS_DEFAULT_RETRIES"]


def test_in_an_event_loop(machine: Machine) -> None:
    """Save and load blocks at once, and await flows, as in a notebook."""
    config = machine.folder("echo hi\n")
    source = f"""
        import asyncio
        from prefect_bt import apush
        from prefect_bt.blocks import TrainingCompute
        from prefect_bt.flows.train import atrain, train

        async def cells():
            TrainingCompute(cpu_count=1, memory="64Mi").save("in-a-notebook", overwrite=True)
            compute = TrainingCompute.load("in-a-notebook")
            assert compute.build().cpu_count == 1 and await TrainingCompute.load("in-a-notebook")
            one = await train({str(config)!r}, compute=compute)
            beats = 0
            async def beat():
                nonlocal beats
                while True:
                    beats += 1
                    await asyncio.sleep(0.05)
            beating = asyncio.create_task(beat())
            two, three = await asyncio.gather(*(atrain({str(config)!r}) for _ in range(2)))
            beating.cancel()
            four = await apush({str(config)!r})
            assert beats > 5, "the event loop goes on"
            print(*(job["current_status"] for job in (one, two, three)), four["id"])

        asyncio.run(cells())
        """
    *states, pushed = output(python(machine, source)).split()
    assert states == ["TRAINING_JOB_COMPLETED"] * 3
    machine.wait(pushed, "COMPLETED")


def test_a_cancelled_coroutine_stops_its_job(machine: Machine) -> None:
    project = "cancelled coroutine"
    config = machine.folder("echo ready; sleep 600\n", project=project)
    source = f"""
        import asyncio
        from pathlib import Path
        from prefect_bt.flows.train import atrain

        async def cell():
            training = asyncio.create_task(atrain({str(config)!r}))
            while not Path({str(config.parent)!r}, "go").exists():
                await asyncio.sleep(0.1)
            training.cancel()
            try:
                await training
            except asyncio.CancelledError:
                print("cancelled")

        asyncio.run(cell())
        """
    process = python(machine, source)
    (job_id,) = until(lambda: machine.jobs_of(project), seconds=60, what="the job")
    until(lambda: "ready" in machine.logs(job_id), seconds=60, what="ready")
    (config.parent / "go").touch()
    assert output(process) == "cancelled"
    assert machine.wait(job_id, "STOPPED")
    machine.nothing_left(job_id)
