"""deployments/prefect.yaml on a real Prefect server, and a run of it by a real worker."""

import subprocess
import sys
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import FlowRun
from prefect.settings import PREFECT_API_AUTH_STRING, PREFECT_API_URL, temporary_settings

from prefect_bt.definitions import load_training_project
from prefect_bt.ledger.states import JobState
from prefect_bt.weights import NodeCache
from tests.e2e.conftest import Machine, served_machine

__all__ = ["served_machine"]  # a fixture
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


@pytest.fixture(scope="module")
def deployed(served_machine: Machine) -> Generator[Machine]:
    """The machine of `up`, whose worker runs what is deployed as users deploy it."""
    command = ["deploy", "--all", "--prefect-file", "deployments/prefect.yaml"]
    for _ in range(3):
        done = subprocess.run(
            [sys.executable, "-m", "prefect", "--no-prompt", *command],
            env={**served_machine.environment, **served_machine.api, "PWD": str(ROOT)},
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
        if "503 Service Unavailable" not in done.stdout + done.stderr:
            break  # Prefect's server answers 503 while its SQLite file is locked
    assert done.returncode == 0, done.stdout + done.stderr
    api: dict[Any, Any] = {
        PREFECT_API_URL: served_machine.api_url,
        PREFECT_API_AUTH_STRING: served_machine.api[PREFECT_API_AUTH_STRING.name],
    }
    with temporary_settings(api):
        yield served_machine


def deployment(name: str, flow: str = "train") -> Any:
    with get_client(sync_client=True) as client:
        return client.read_deployment_by_name(f"{flow}/{name}")


def run_to_the_end(name: str, parameters: dict[str, Any], flow: str = "train") -> FlowRun:
    deadline = time.monotonic() + PATIENCE
    with get_client(sync_client=True) as client:
        made = deployment(name, flow)
        run = client.create_flow_run_from_deployment(made.id, parameters=parameters)
        while time.monotonic() < deadline:
            run = client.read_flow_run(run.id)
            if run.state is not None and run.state.is_final():
                break
            time.sleep(0.5)
    return run


def test_the_file_defines_the_deployments(deployed: Machine):
    for name in ("train", "nightly-tiny-lm"):
        made = deployment(name)
        assert made.entrypoint == "prefect_bt.flows.train.train"
        assert made.work_pool_name == "training"
        # A step that changes to the deploying machine's folder would fail on other machines.
        assert not made.pull_steps
    nightly = deployment("nightly-tiny-lm")
    assert [s.schedule.cron for s in nightly.schedules] == ["0 2 * * *"]
    config = Path(nightly.parameters["config"])
    assert config == ROOT / "examples/tiny-lm/config.py"
    assert load_training_project(config).name == "tiny-lm"


def test_weights_are_mirrored_on_a_schedule_that_is_off(deployed: Machine, tmp_path: Path):
    made = deployment("nightly", "mirror-weights")
    assert made.entrypoint == "prefect_bt.flows.mirror_weights.mirror_weights"
    assert made.parameters == {"sources": ["hf://sshleifer/tiny-gpt2@main"]}
    assert [(s.schedule.cron, s.active) for s in made.schedules] == [("0 1 * * *", False)]
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.txt").write_text("a")
    source = f"file://{tmp_path}/data"
    run = run_to_the_end("nightly", {"sources": [source]}, "mirror-weights")
    assert run.state is not None
    assert run.state.is_completed(), f"{run.state}\n{worker_log(deployed)}"
    trees = NodeCache(deployed.state_dir / "weights").list_trees()
    assert [tree.summary.source for tree in trees].count(source) == 1


@pytest.mark.extended
def test_a_worker_runs_it(deployed: Machine, tmp_path: Path):
    config = tmp_path / "job" / "config.py"
    config.parent.mkdir()
    config.write_text(CONFIG)
    run = run_to_the_end("train", {"config": str(config)})
    assert run.state is not None
    assert run.state.is_completed(), f"{run.state}\n{worker_log(deployed)}"
    job_id = deployed.ledger.runs.find_job(str(run.id))
    assert job_id
    assert deployed.ledger.get_state(job_id) is JobState.COMPLETED
    assert [known.flow_run_id for known in deployed.ledger.runs.list(job_id)] == [str(run.id)]


def worker_log(machine: Machine) -> str:
    return (machine.state_dir / "worker.log").read_text()[-6000:]
