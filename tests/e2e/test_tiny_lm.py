"""The example itself: a real model, killed in the middle, goes on from its last commit."""

from __future__ import annotations

import json
import re
from pathlib import Path

import psutil
import pytest

from .conftest import Machine, until

pytest.importorskip("torch", reason="PyTorch is not installed: make demo-deps")
pytest.importorskip("transformers", reason="transformers is not installed: make demo-deps")
pytestmark = [
    pytest.mark.integration,
    pytest.mark.slow,
    pytest.mark.timeout(900),
]

CONFIG = Path(__file__).parents[2] / "examples" / "tiny-lm" / "config.py"


def test_killed_in_the_middle(machine: Machine) -> None:
    job_id = machine.push(CONFIG, TINY_LM_STEPS="12")["id"]
    until(lambda: machine.checkpoints(job_id), seconds=300, what="a committed checkpoint")
    killed = [kill(pid) for pid in machine.job_processes(job_id)]
    assert any(killed)
    machine.wait(job_id, "COMPLETED", seconds=600)

    logs = machine.logs(job_id)
    assert "attempt 0" in logs
    assert "attempt 1" in logs
    resumed = re.search(r"(?:from|resum)\S* .*checkpoint-(\d+)", logs)
    assert resumed, logs[-3000:]
    job = machine.view(job_id)
    assert [a["status"] for a in job["attempts"]] == ["failed", "completed"]
    last = next(c for c in job["checkpoints"] if c["checkpoint_id"] == "checkpoint-12")
    assert last["checkpoint_type"] == "full"
    assert "checkpoint-3" in machine.checkpoints(job_id), "rotated on disk, kept in the store"
    assert state_of(machine, job_id, "checkpoint-12")["global_step"] == 12
    machine.nothing_left(job_id)


def kill(pid: int) -> bool:
    try:
        process = psutil.Process(pid)
        if "train.py" in " ".join(process.cmdline()[:3]):
            process.kill()
            return True
    except psutil.Error:
        pass
    return False


def state_of(machine: Machine, job_id: str, name: str) -> dict[str, int]:
    """trainer_state.json as committed: found through the manifest, read from its object."""
    store = machine.root / "store"
    manifest = next(store.glob(f"**/{job_id}/manifests/rank-0/{name}/*.json"))
    entries = json.loads(manifest.read_text())["entries"]
    key = next(e["key"] for e in entries if e["path"].endswith("trainer_state.json"))
    return json.loads((store / key).read_text())
