"""Three trials of one parent flow, in threads, in processes and by `run_deployment`."""

from __future__ import annotations

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

MODES = ["threads", "processes", "deployment"]


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


@pytest.mark.parametrize("mode", MODES)
def test_a_cancelled_parent_stops_its_trials(machine: Machine, mode: str) -> None:
    sweep = Sweep(machine, mode, ["echo ready; sleep 600\n"] * 3)

    def ready() -> bool:
        jobs = sweep.jobs()
        return len(jobs) == 3 and all("ready" in machine.logs(job) for job in jobs)

    until(ready, seconds=60, what=sweep.output)
    (run_id,) = sweep.lines("run")[0]
    call(machine, "POST", f"flow_runs/{run_id}/set_state", state={"type": "CANCELLING"})
    for job_id in sweep.jobs():
        machine.wait(job_id, "STOPPED", seconds=20)
    sweep.process.wait(300)
    for job_id in sweep.jobs():
        run_is(machine, machine.ledger.list_runs(job_id)[-1].flow_run_id, "CANCELLED")
        machine.nothing_left(job_id)


@pytest.mark.parametrize("mode", MODES)
def test_a_retried_parent_gets_the_same_jobs(machine: Machine, mode: str) -> None:
    """Its third trial fails at first: that job goes on, and the others are not run again."""
    scripts = ["echo done\n", "echo done\n", "exit $((3 - 3 * BT_RETRY_COUNT))\n"]
    sweep = Sweep(machine, mode, scripts, retries=1)
    assert sweep.process.wait(600) == 0, sweep.output()
    first, second = sweep.lines("jobs")
    jobs = set(sweep.jobs())
    assert len(jobs) == 3, sweep.output()
    assert set(second) == jobs
    assert set(first) & jobs == set(first[:2])
    attempts: dict[str, Any] = {job: len(machine.view(job)["attempts"]) for job in jobs}
    assert sorted(attempts.values()) == [1, 1, 2]
    for job in jobs:
        machine.run("delete", "--job-id", job, "--yes")
    store = machine.ledger.store
    (run_id,) = sweep.lines("run")[0]
    assert not [*store.list(f"{CALLS_INDEX}/{run_id}")], "nothing of deleted jobs is left"
