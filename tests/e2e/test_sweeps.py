"""Two trials of one parent flow, in threads, in processes and by `run_deployment`."""

import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from prefect_bt.object_keys import CALLS_INDEX

from .conftest import Machine, call, until
from .test_worker import run_is

pytestmark = [pytest.mark.integration]

SWEEP = """
import sys
from pathlib import Path
from prefect import flow, task
from prefect.deployments import run_deployment
from prefect.runtime import flow_run
from prefect.task_runners import ProcessPoolTaskRunner, ThreadPoolTaskRunner
from prefect_bt.flows.train import train

@task
def call_train(config):
    return train(config)["id"]

@task
def call_deployment(config):
    run = run_deployment("train/train", parameters={"config": config}, poll_interval=1)
    return run.state.result()["id"]

HERE = ThreadPoolTaskRunner(max_workers=3)
RUNNERS = {"threads": HERE, "deployment": HERE, "processes": ProcessPoolTaskRunner(max_workers=3)}

@flow
def sweep(trial, configs, fails_first):
    print("run", flow_run.get_id(), flush=True)
    futures = trial.map(configs)
    ids = [future.result(raise_on_failure=False) for future in futures]
    print("jobs", *ids, flush=True)
    if fails_first and flow_run.run_count == 1:
        raise RuntimeError("the parent fails after its trials")
    for future in futures:
        future.result()

if __name__ == "__main__":
    mode, retries, *configs = sys.argv[1:]
    trial = call_deployment if mode == "deployment" else call_train
    run = sweep.with_options(task_runner=RUNNERS[mode], retries=int(retries))
    run(trial, configs, retries != "0")
"""

MODES = [
    "threads",
    pytest.param("processes", marks=pytest.mark.extended),
    pytest.param("deployment", marks=pytest.mark.extended),
]


@pytest.fixture(scope="module")
def machine(served_machine: Machine) -> Machine:
    return served_machine


class Sweep:
    """A process of a parent flow."""

    def __init__(self, machine: Machine, mode: str, scripts: list[str], retries: int = 0) -> None:
        self._machine, self.project = machine, f"sweep-{mode}-{id(self)}"
        script = machine.root / f"{self.project}.py"
        script.write_text(textwrap.dedent(SWEEP))
        configs = [str(machine.folder(text, project=self.project)) for text in scripts]
        self._log = Path(f"{script}.log")
        with self._log.open("w") as log:
            self.process = subprocess.Popen(
                [sys.executable, str(script), mode, str(retries), *configs],
                env={**machine.environment, **machine.api},
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def output(self) -> str:
        return self._log.read_text()

    def lines(self, word: str) -> list[list[str]]:
        found = [line.split()[1:] for line in self.output().splitlines()]
        starts = [line.split()[:1] for line in self.output().splitlines()]
        return [rest for rest, first in zip(found, starts, strict=True) if first == [word]]

    def jobs(self) -> list[str]:
        return self._machine.jobs_of(self.project)


@pytest.mark.extended
@pytest.mark.parametrize("mode", MODES)
def test_a_cancelled_parent_stops_its_trials(machine: Machine, mode: str) -> None:
    sweep = Sweep(machine, mode, ["echo ready; sleep 600\n"] * 2)

    def ready() -> bool:
        jobs = sweep.jobs()
        return len(jobs) == 2 and all("ready" in machine.logs(job) for job in jobs)

    until(ready, seconds=60, what=sweep.output)
    (run_id,) = sweep.lines("run")[0]
    call(machine, "POST", f"flow_runs/{run_id}/set_state", state={"type": "CANCELLING"})
    for job_id in sweep.jobs():
        machine.wait(job_id, "STOPPED", seconds=20)
    sweep.process.wait(300)
    for job_id in sweep.jobs():
        run_is(machine, machine.ledger.runs.list(job_id)[-1].flow_run_id, "CANCELLED")
        machine.nothing_left(job_id)


@pytest.mark.parametrize("mode", MODES)
def test_a_retried_parent_gets_the_same_jobs(machine: Machine, mode: str) -> None:
    """Its second trial fails at first: that job goes on, and the other is not run again."""
    scripts = ["echo done\n", "exit $((3 - 3 * BT_RETRY_COUNT))\n"]
    sweep = Sweep(machine, mode, scripts, retries=1)
    assert sweep.process.wait(600) == 0, sweep.output()
    first, second = sweep.lines("jobs")
    jobs = set(sweep.jobs())
    assert len(jobs) == 2, sweep.output()
    assert set(second) == jobs
    assert set(first) & jobs == set(first[:1])
    attempts: dict[str, Any] = {job: len(machine.view(job)["attempts"]) for job in jobs}
    assert sorted(attempts.values()) == [1, 2]
    for job in jobs:
        machine.run("delete", "--job-id", job, "--yes")
    store = machine.ledger.store
    (run_id,) = sweep.lines("run")[0]
    assert not [*store.list(f"{CALLS_INDEX}/{run_id}")], "nothing of deleted jobs is left"


PARENT = """
import sys, time
from pathlib import Path
from prefect import flow
from prefect.deployments import run_deployment
from prefect.runtime import flow_run

@flow(retries=1)
def parent(config, go_on):
    life = flow_run.run_count
    key, given = f"{flow_run.get_id()}-{life}", {"config": config}
    run = run_deployment("train/train", parameters=given, timeout=0, idempotency_key=key)
    print("run", run.id, flush=True)
    while life == 1 and not Path(go_on).exists():
        time.sleep(0.1)
    if life == 1:
        raise RuntimeError("the parent fails while its job runs")

parent(*sys.argv[1:])
"""


@pytest.mark.extended
def test_a_waiting_run_ends_with_the_stop_of_its_job(machine: Machine, tmp_path: Path) -> None:
    """The job is not taken up again by a second run of a parent that asked for it twice."""
    script, go_on, project = tmp_path / "parent.py", tmp_path / "go-on", f"waits-{tmp_path.name}"
    script.write_text(PARENT)
    config = machine.folder("echo ready; sleep 600\n", project=project)
    command = [sys.executable, str(script), str(config), str(go_on)]
    log = tmp_path / "log"
    with log.open("w") as out:
        process = subprocess.Popen(
            command, env={**machine.environment, **machine.api}, stdout=out, stderr=out
        )
    (job_id,) = until(lambda: machine.jobs_of(project), seconds=60, what=log.read_text)
    until(lambda: "ready" in machine.logs(job_id), seconds=60, what="ready")
    go_on.touch()
    assert process.wait(300) == 0, log.read_text()
    runs = [line.split()[1] for line in log.read_text().splitlines() if line.startswith("run ")]
    waiting = f"Job {job_id} runs already"

    def waits() -> bool:
        of_run = {"flow_run_id": {"any_": runs[1:]}}
        found = call(machine, "POST", "logs/filter", logs=of_run)
        return any(line["message"].startswith(waiting) for line in found)

    until(waits, seconds=60, what=waiting)
    machine.run("stop", "--job-id", job_id)
    machine.wait(job_id, "STOPPED")
    for run_id in runs:
        run_is(machine, run_id, "CANCELLED")
    assert len(machine.view(job_id)["attempts"]) == 1
    assert machine.view(job_id)["current_status"] == "TRAINING_JOB_STOPPED"
    machine.nothing_left(job_id)
