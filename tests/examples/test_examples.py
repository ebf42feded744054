"""Every shipped example, pushed in this process against a Prefect server, with local nodes.

One of them trains in the gate: a fine-tuning that is killed and resumes. The command of another is
run there over two nodes with a stand-in for torchrun. `make test-all` trains with torchrun, and
`make soak` runs the others.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from prefect_bt.checkpoints.committed.catalog import list_checkpoints
from prefect_bt.ledger.open_ledger import open_ledger
from prefect_bt.object_keys import job_prefix

missing = [n for n in ("torch", "transformers", "accelerate", "peft") if not find_spec(n)]
pytestmark = [
    pytest.mark.integration,
    pytest.mark.slow,
    pytest.mark.skipif(bool(missing), reason=f"{missing} not installed: make demo-deps"),
]
pytest_plugins = ["tests.prefect_server"]

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
soak = pytest.mark.soak


@dataclass(frozen=True)
class Trained:
    """A job of an example that has ended."""

    document: dict[str, Any]

    @property
    def id(self) -> str:
        return self.document["id"]

    @property
    def attempts(self) -> list[str]:
        return [attempt["status"] for attempt in self.document["attempts"]]

    @property
    def types(self) -> dict[str, str]:
        """Name of a committed checkpoint -> its type, empty for one that is not recognised."""
        found = self.document["checkpoints"]
        return {one["checkpoint_id"]: one["checkpoint_type"] or "" for one in found}

    @property
    def log(self) -> str:
        """The sealed logs of every attempt and rank."""
        ledger = open_ledger()
        job = ledger.get_job(self.id)
        found = ledger.store.list(f"{job_prefix(job.project_id, job.id)}/attempts")
        keys = sorted(info.key for info in found if info.key.endswith(".log"))
        return "\n".join(ledger.store.get(key).decode() for key in keys)

    def read_json(self, checkpoint: str, path: str) -> Any:
        """A committed file of a checkpoint."""
        ledger = open_ledger()
        job = ledger.get_job(self.id)
        committed = list_checkpoints(ledger.store, job.project_id, job.id)
        [one] = [c for c in committed if c.checkpoint_id == checkpoint]
        [key] = [e.key for part in one.manifests for e in part.entries if e.path == path]
        return json.loads(ledger.store.get(key))

    def losses(self) -> list[float]:
        return [float(loss) for loss in re.findall(r"step \d+/\d+ loss ([\d.]+)", self.log)]

    def learned(self) -> bool:
        losses = self.losses()
        return len(losses) >= 4 and losses[-1] < losses[0] / 1.2


@pytest.fixture
def push(prefect_api: str, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Trained]:
    """`push("lora-sft", STEPS="8")`: a completed job; the variables are set as `config.py` runs."""
    from prefect_bt.flows.train import train

    monkeypatch.setenv("PREFECT_BT_SETTLE", "0.5")
    monkeypatch.setenv("PREFECT_BT_GRACE", "5")

    def run(name: str, *, retries: int = 0, **variables: str) -> Trained:
        with pytest.MonkeyPatch.context() as patch:
            for variable, value in variables.items():
                patch.setenv(variable, value)
            document = train(str(EXAMPLES / name / "config.py"), retries=retries)
        assert isinstance(document, dict), document
        trained = Trained(document)
        assert document["current_status"] == "TRAINING_JOB_COMPLETED", trained.log[-3000:]
        return trained

    return run


def test_a_fine_tuning_is_killed_and_resumes(push: Callable[..., Trained]) -> None:
    job = push("full-finetune", STEPS="16", KILL_AT_STEP="9")
    assert job.attempts == ["failed", "completed"]
    assert "resuming from checkpoint-8" in job.log
    # On disk two are kept, in the store all.
    assert job.types == {f"checkpoint-{step}": "full" for step in (4, 8, 12, 16)}
    assert job.read_json("checkpoint-16", "trainer_state.json")["global_step"] == 16
    assert job.learned(), job.log


TORCHRUN = """#!{python}
import socket, sys, time
given = dict(zip(sys.argv[1:-1:2], sys.argv[2:-1:2]))
leader = given["--master-addr"], int(given["--master-port"])
if given["--node-rank"] == "0":
    with socket.create_server(leader) as server:
        server.accept()
else:
    while True:
        try:
            socket.create_connection(leader, timeout=200)
            break
        except ConnectionRefusedError:
            time.sleep(0.05)
print("Node", given["--node-rank"], "of", given["--nnodes"], "met the other:", sys.argv[-1])
"""
"""Meets the other node where torchrun would, and trains nothing."""


def test_two_nodes_meet_at_the_address_of_torchrun(
    push: Callable[..., Trained], tmp_path: Path
) -> None:
    program = tmp_path / "bin" / "torchrun"
    program.parent.mkdir()
    program.write_text(TORCHRUN.format(python=sys.executable))
    program.chmod(0o755)
    path = os.pathsep.join([str(program.parent), os.environ["PATH"]])
    job = push("multinode-torchrun", PATH=path, PREFECT_BT_PYTHON_ENVIRONMENT="false")
    assert job.attempts == ["completed"]
    for rank in ("0", "1"):
        assert f"Node {rank} of 2 met the other: train.py" in job.log


@pytest.mark.extended
def test_torchrun_over_two_nodes(push: Callable[..., Trained]) -> None:
    job = push("multinode-torchrun", STEPS="24")
    assert job.attempts == ["completed"]
    assert "attempt 0: 2 processes on 2 nodes" in job.log
    assert job.types == {f"checkpoint-{step}": "full" for step in (6, 12, 18, 24)}
    assert job.learned(), job.log


@soak
def test_torchrun_resumes_from_the_leaders_checkpoint(push: Callable[..., Trained]) -> None:
    # Of two nodes the other one may be seen to fail first, with exit code 1.
    many = {"PROCESSES": "2", "STEPS": "24", "KILL_AT_STEP": "13"}
    job = push("multinode-torchrun", retries=1, **many)
    assert job.attempts == ["failed", "completed"]
    assert "attempt 1: 4 processes on 2 nodes" in job.log
    assert "resuming from checkpoint-12" in job.log
    assert set(job.types.values()) == {"full"}
    assert job.learned(), job.log


@soak
def test_an_adapter_beside_its_base(push: Callable[..., Trained]) -> None:
    job = push("lora-sft")
    assert job.types == {"base": "full", "checkpoint-40": "lora", "checkpoint-80": "lora"}
    assert "Dear friend, the cow says moo." in job.log
    assert job.learned(), job.log


@soak
def test_accelerate_over_two_nodes_resumes(push: Callable[..., Trained]) -> None:
    two = {"NODES": "2", "PROCESSES": "1", "STEPS": "16", "KILL_AT_STEP": "9"}
    job = push("accelerate-launch", retries=1, **two)
    assert job.attempts == ["failed", "completed"]
    assert "attempt 1: 2 processes" in job.log
    assert "resuming from checkpoint-8" in job.log
    assert job.types["checkpoint-16"] == "full"
    assert job.learned(), job.log


@soak
def test_shards_of_dcp_resume(push: Callable[..., Trained]) -> None:
    job = push("pytorch-dcp", STEPS="16", KILL_AT_STEP="9")
    assert job.attempts == ["failed", "completed"]
    assert "resuming from step-8" in job.log
    steps = {f"step-{step}": "" for step in (4, 8, 12, 16)}
    assert job.types == {**steps, "model": "full"}
    assert job.learned(), job.log


@soak
def test_an_evaluation_reads_what_another_job_committed(push: Callable[..., Trained]) -> None:
    trained = push("full-finetune")
    early = push("evaluate-checkpoint", JOB=trained.id, CHECKPOINT="checkpoint-25")
    final = push("evaluate-checkpoint")
    before, after = (job.read_json("metrics", "metrics.json") for job in (early, final))
    assert (before["checkpoint"], after["checkpoint"]) == ("checkpoint-25", "checkpoint-100")
    assert after["loss"] < before["loss"]
    assert after["exact_answers"] > 0.8


@soak
def test_the_demo_trains(push: Callable[..., Trained]) -> None:
    job = push("tiny-lm", TINY_LM_STEPS="8")
    assert job.types["checkpoint-8"] == "full"


def test_the_stand_in_is_the_same_everywhere() -> None:
    assert len({path.read_text() for path in EXAMPLES.glob("*/tiny.py")}) == 1


def test_a_missing_library_is_one_sentence(tmp_path: Path) -> None:
    """With a Python that has none of them, as run.sh finds it on PATH."""
    fake = tmp_path / "python"
    fake.write_text(f'#!/bin/sh\nexec {os.path.realpath(sys.executable)} -I -S "$@"\n')
    fake.chmod(0o755)
    for script in sorted(set(EXAMPLES.glob("*/run.sh")) - {EXAMPLES / "template" / "run.sh"}):
        path = os.pathsep.join([str(tmp_path), os.environ["PATH"]])
        done = subprocess.run(
            ["sh", script],
            env={"PATH": path},
            cwd=script.parent,
            capture_output=True,
            text=True,
            check=False,
        )
        [line] = done.stderr.splitlines()
        assert done.returncode == 1
        assert line.startswith("run.sh: torch")
        assert "pip install 'prefect-bt[demo]'" in line
