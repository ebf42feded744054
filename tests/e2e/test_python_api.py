"""From Python: `push` returns when accepted, `train` when it is over; UI actions take effect."""

import asyncio
import json
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any, cast

import pytest

from prefect_bt import apush
from prefect_bt.blocks import TrainingCompute
from prefect_bt.flows.train import atrain, train
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
    source = f"""
    import json
    import prefect_bt.compat
    from prefect_bt import push
    from truss_train import loader, public_api
    one = push({str(config)!r}, remote="baseten", substrate="local")
    with loader.import_training_project({str(config)!r}) as project:
        two = public_api.push(project, source_dir={str(config.parent)!r})
    assert one.pop("job_object") == project.job and "job_object" not in two
    print(json.dumps([one, two]))
    """
    for document in json.loads(output(python(machine, source))):
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


FAILS_ONCE = "exit $((3 - 3 * BT_RETRY_COUNT))\n"


def test_retries_of_the_flow_are_attempts(machine: Machine) -> None:
    """tests/flows/test_job_flow.py has the default of all flows in Prefect's settings."""
    with environment_of(machine.environment):
        job: Any = train.with_options(retries=1)(str(machine.folder(FAILS_ONCE)))
    assert (job["current_status"], len(job["attempts"])) == ("TRAINING_JOB_COMPLETED", 2)


def test_in_an_event_loop(machine: Machine) -> None:
    """Save and load blocks at once, and await flows, as in a notebook."""
    config = str(machine.folder("echo hi\n"))

    async def cells() -> list[Any]:
        TrainingCompute(cpu_count=1, memory="64Mi").save("in-a-notebook", overwrite=True)
        compute: Any = TrainingCompute.load("in-a-notebook")
        assert compute.build().cpu_count == 1
        assert await cast("Any", TrainingCompute.load("in-a-notebook"))
        trained = await cast("Any", train(config, compute=compute))
        beats = 0

        async def beat() -> None:
            nonlocal beats
            while True:
                beats += 1
                await asyncio.sleep(0.05)

        beating = asyncio.create_task(beat())
        jobs = await asyncio.gather(atrain(config), atrain(config), apush(config))
        beating.cancel()
        assert beats > 5, "the event loop goes on"
        return [trained, *jobs]

    with environment_of(machine.environment):
        *trained, pushed = asyncio.run(cells())
    assert [job["current_status"] for job in trained] == ["TRAINING_JOB_COMPLETED"] * 3
    machine.wait(pushed["id"], "COMPLETED")


def test_a_cancelled_coroutine_stops_its_job(machine: Machine, tmp_path: Path) -> None:
    project = "cancelled coroutine"
    script = "touch $WORD/ready; exec sleep 600\n"
    config = machine.folder(script, project=project, env={"WORD": str(tmp_path)})

    async def cell() -> None:
        training = asyncio.create_task(atrain(str(config)))
        while not (tmp_path / "ready").exists() and not training.done():
            await asyncio.sleep(0.1)
        training.cancel()
        with pytest.raises(asyncio.CancelledError):
            await training

    with environment_of(machine.environment):
        asyncio.run(cell())
    (job_id,) = machine.jobs_of(project)
    machine.wait(job_id, "STOPPED")
    machine.nothing_left(job_id)
