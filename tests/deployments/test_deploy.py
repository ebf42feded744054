"""deployments/prefect.yaml on a real Prefect server, and a run of it by a real worker."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import FlowRun

from prefect_bt.definitions import load_training_project
from prefect_bt.jobs import open_ledger
from prefect_bt.records import JobState
from prefect_bt.weights import NodeCache

if TYPE_CHECKING:
    from tests.prefect_server import PrefectServer

pytest_plugins = ["tests.prefect_server"]
pytestmark = [pytest.mark.integration, pytest.mark.slow]

ROOT = Path(__file__).parents[2]
PATIENCE = 400.0

CONFIG = """
from truss_train import definitions as d

project = d.TrainingProject(
    name="deployed",
    job=d.TrainingJob(
        image=d.Image(base_image="none"),
        compute=d.Compute(memory="64Mi"),
        runtime=d.Runtime(start_commands=["/bin/sh -c 'echo hello from rank $BT_NODE_RANK'"]),
    ),
)
"""


def prefect(*words: str, env: dict[str, str]) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "prefect", "--no-prompt", *words],
        env={**env, "PWD": str(ROOT)},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture
def environment(prefect_server: PrefectServer, prefect_api: str) -> dict[str, str]:
    """That of commands and workers; prefect_api has put this test's own store in os.environ."""
    return {**prefect_server.environment, "PREFECT_WORKER_QUERY_SECONDS": "1"}


@pytest.fixture
def worker(environment: dict[str, str], tmp_path: Path) -> Generator[Path]:
    """Start a worker of the pool `training` and yield the file with its output."""
    prefect("work-pool", "create", "--type", "process", "--overwrite", "training", env=environment)
    log = tmp_path / "worker.log"
    command = [sys.executable, "-m", "prefect", "worker", "start", "--pool", "training"]
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output
        )
    yield log
    process.terminate()
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def deployment(name: str) -> Any:
    """Read the deployment `flow/deployment`."""
    with get_client(sync_client=True) as client:
        return client.read_deployment_by_name(name)


def start(name: str, parameters: dict[str, Any]) -> FlowRun:
    with get_client(sync_client=True) as client:
        return client.create_flow_run_from_deployment(deployment(name).id, parameters=parameters)


def wait_for(run: FlowRun, worker: Path) -> None:
    """Wait until the run has completed; any other end fails the test with the worker's output."""
    deadline = time.monotonic() + PATIENCE
    with get_client(sync_client=True) as client:
        while time.monotonic() < deadline:
            run = client.read_flow_run(run.id)
            if run.state is not None and run.state.is_final():
                break
            time.sleep(0.5)
    assert run.state is not None
    assert run.state.is_completed(), f"{run.state}\n{worker.read_text()[-6000:]}"


def test_the_file_deploys_and_a_worker_runs_it(
    environment: dict[str, str], worker: Path, tmp_path: Path
):
    prefect("deploy", "--all", "--prefect-file", "deployments/prefect.yaml", env=environment)
    check_trainings()
    check_nightly_mirror()
    data = tmp_path / "data"
    data.mkdir()
    (data / "a.txt").write_text("a")
    config = tmp_path / "job" / "config.py"
    config.parent.mkdir()
    config.write_text(CONFIG)
    mirror = start("mirror-weights/nightly", {"sources": [f"file://{data}"]})
    training = start("train/train", {"config": str(config)})
    wait_for(mirror, worker)
    wait_for(training, worker)
    [tree] = NodeCache(Path(os.environ["PREFECT_BT_STATE_DIR"]) / "weights").trees()
    assert tree.summary.source == f"file://{data}"
    ledger = open_ledger(os.environ["PREFECT_BT_STORE"])
    (job,) = ledger.jobs()
    assert ledger.state(job.id) is JobState.COMPLETED
    assert [known.flow_run_id for known in ledger.runs_of_job(job.id)] == [str(training.id)]


def check_trainings() -> None:
    for name in ("train/train", "train/nightly-tiny-lm"):
        made = deployment(name)
        assert made.entrypoint == "prefect_bt.flows.train.train"
        assert made.work_pool_name == "training"
        # A step that changes to the deploying machine's folder would fail on other machines.
        assert not made.pull_steps
    nightly = deployment("train/nightly-tiny-lm")
    assert [s.schedule.cron for s in nightly.schedules] == ["0 2 * * *"]
    config = Path(nightly.parameters["config"])
    assert config == ROOT / "examples/tiny-lm/config.py"
    assert load_training_project(config).name == "tiny-lm"


def check_nightly_mirror() -> None:
    made = deployment("mirror-weights/nightly")
    assert made.entrypoint == "prefect_bt.flows.mirror_weights.mirror_weights"
    assert made.parameters == {"sources": ["hf://sshleifer/tiny-gpt2@main"]}
    assert [(s.schedule.cron, s.active) for s in made.schedules] == [("0 1 * * *", False)]
