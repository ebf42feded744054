"""What trainers write, and what public reports say that other tools make of it, in real jobs."""

import sys
from pathlib import Path

import pytest

from prefect_bt.checkpoints.committed.catalog import list_checkpoints
from tests.checkpoints import folders

from .conftest import Machine

pytestmark = [pytest.mark.integration]

WRITES = """
import json, os, sys, time
from pathlib import Path
sys.path.insert(0, os.environ["TESTS"])
from tests.checkpoints import folders
ckpts = Path(os.environ["BT_CHECKPOINT_DIR"])
first = os.environ["BT_RETRY_COUNT"] == "0"
"""

REPORTED = """
MODEL = {"config.json": folders.text({"model_type": "llama"})}
MODEL["model.safetensors"] = folders.safetensors()
INFINITE = {"peft_type": "LORA", "r": 8, "megatron": {"std": [float("inf"), float("nan")]}}
folders.write(ckpts / "infinite", {
    "adapter_config.json": json.dumps(INFINITE).encode(),
    "adapter_model.safetensors": folders.safetensors(),
})
folders.write(ckpts / "old-index", MODEL | folders.stale_index())
folders.write(ckpts / "side-files", MODEL | {
    "ds_config.json": b'{ // ZeRO\\n "stage": 2,}',
    "author.json": "André".encode("latin-1"),
    "metrics.json": b"",
    "scratch.bin": b"",
})
# Two of four processes go on, and then without the optimizer.
states = {f"rng_state_{rank}.pth": folders.torch_zip() for rank in range(4)}
full = folders.hf_full(10)
del full["rng_state.pth"]
folders.write(ckpts / "qwen-lr2e-5-epoch3/checkpoint-10", full | states)
time.sleep(2.5)
full = folders.hf_full(20)
del states["rng_state_3.pth"], states["rng_state_2.pth"]
del full["rng_state.pth"], full["optimizer.pt"]
folders.write(ckpts / "qwen-lr2e-5-epoch3/checkpoint-20", full | states)
for step in (10, 20):
    folders.write(ckpts, {f"epoch=1-step={step}.ckpt": folders.torch_zip(b"%d" % step)})
"""


def python(machine: Machine, code: str) -> Path:
    """A training folder whose command runs this Python code."""
    root = str(Path(__file__).parents[2])
    config = machine.folder("", commands=[f"{sys.executable} train.py"], env={"TESTS": root})
    (config.parent / "train.py").write_text(WRITES + code)
    return config


def test_what_public_reports_found_is_committed_in_one_attempt(machine: Machine) -> None:
    job = machine.completed(python(machine, REPORTED))
    checkpoints = list_checkpoints(machine.ledger.store, job["training_project"]["id"], job["id"])
    by_name = {checkpoint.checkpoint_id: checkpoint for checkpoint in checkpoints}
    run = "qwen-lr2e-5-epoch3"
    assert set(by_name) == {
        *("infinite", "old-index", "side-files", f"{run}/checkpoint-10", f"{run}/checkpoint-20"),
        *("epoch=1-step=10.ckpt", "epoch=1-step=20.ckpt"),
    }
    assert by_name["infinite"].lora_adapter_config is not None
    assert by_name["infinite"].lora_adapter_config["megatron"] == {"std": ["Infinity", "NaN"]}
    assert by_name[f"{run}/checkpoint-20"].step == by_name["epoch=1-step=20.ckpt"].step == 20
    assert "checkpoint-10" in by_name[f"{run}/checkpoint-20"].note
    assert [attempt["status"] for attempt in job["attempts"]] == ["completed"]


KILLED = """
if first:
    folders.write(ckpts / "checkpoint-10", folders.hf_full(10))
    folders.write(ckpts / "logs", {"epoch=1-step=10.ckpt": folders.torch_zip(b"1")})
    time.sleep(2.5)
    whole = folders.hf_full(20)
    names = list(whole)
    folders.write(ckpts / "checkpoint-20", {name: whole[name] for name in names[:3]})
    folders.write(ckpts / "logs", {"epoch=2-step=20.ckpt": folders.torch_zip(b"2")[:-9]})
    os.kill(os.getpid(), 9)
names = sorted(str(path.relative_to(ckpts)) for path in ckpts.rglob("*") if path.is_file())
print("resumes from", names, flush=True)
"""


@pytest.mark.extended
def test_a_kill_in_a_save_resumes_from_the_save_before(machine: Machine) -> None:
    job = machine.completed(python(machine, KILLED))
    assert [attempt["status"] for attempt in job["attempts"]] == ["failed", "completed"]
    whole = sorted(f"checkpoint-10/{path}" for path in folders.hf_full(10))
    files = [*whole, "logs/epoch=1-step=10.ckpt"]
    assert f"resumes from {files}" in machine.logs(job["id"])
