"""Real launchers over several nodes of one host: gangs at the same time do not meet."""

import pytest

from tests.optional import needs

from .conftest import Machine

pytestmark = [
    needs("torch", "accelerate"),
    pytest.mark.integration,
    pytest.mark.slow,
    pytest.mark.soak,  # tests/examples/ runs torchrun over two nodes in make test-all
]

# Two processes of a node share one pipe: `print` would write the line and its end apart.
TRAIN = """
import json, os, sys
from pathlib import Path
import torch, torch.distributed as dist

dist.init_process_group("gloo")
mine = torch.tensor([float(os.environ["SEED"]) + dist.get_rank()])
dist.all_reduce(mine)
sys.stdout.write(f"sum {mine.item():.0f} of {dist.get_world_size()}\\n")
if os.environ["LOCAL_RANK"] == "0":
    folder = Path(os.environ["BT_CHECKPOINT_DIR"], "checkpoint-1")
    folder.mkdir()
    folder.joinpath("state.json").write_text(json.dumps({"sum": mine.item()}))
dist.destroy_process_group()
"""

ACCELERATED = """
import sys
import torch
from accelerate import Accelerator

here = Accelerator(cpu=True)
total = here.reduce(torch.tensor([here.process_index + 1])).item()
sys.stdout.write(f"sum {total}\\n")
here.end_training()
"""

TORCHRUN = (
    "torchrun --nnodes $BT_GROUP_SIZE --node-rank $BT_NODE_RANK --nproc-per-node 2"
    " --master-addr $BT_LEADER_ADDR train.py"
)
# What one writes for GPUs; without any, the variable moves it to the CPU.
ACCELERATE = (
    "accelerate launch --multi_gpu --num_machines $BT_GROUP_SIZE --num_processes 2"
    " --machine_rank $BT_NODE_RANK --main_process_ip $BT_LEADER_ADDR"
    " --main_process_port $BT_LEADER_PORT train.py"
)


def start(machine: Machine, script: str, command: str, **env: str) -> str:
    config = machine.folder(f"set -e\n{command}\n", nodes=2, env=env)
    config.with_name("train.py").write_text(script)
    return machine.push(config)["id"]


def sums(machine: Machine, job_id: str) -> list[str]:
    lines = (line.rpartition(") ")[2] for line in machine.logs(job_id).splitlines())
    return [line for line in lines if line.startswith("sum ")]


def test_two_gangs_of_torchrun_at_once(machine: Machine) -> None:
    jobs = [start(machine, TRAIN, TORCHRUN, SEED=seed) for seed in ("10", "1000")]
    for job_id, expected in zip(jobs, ("sum 46 of 4", "sum 4006 of 4"), strict=True):
        machine.wait(job_id, "COMPLETED", "FAILED", seconds=200)
        assert sums(machine, job_id) == [expected] * 4, machine.logs(job_id)[-3000:]
        ranks = machine.view(job_id)["checkpoints"]
        assert {c["checkpoint_id"] for c in ranks} == {"checkpoint-1"}
        machine.nothing_left(job_id)


def test_accelerate_over_two_nodes(machine: Machine) -> None:
    cpu = {"ACCELERATE_USE_CPU": "true", "CUDA_VISIBLE_DEVICES": ""}
    job_id = start(machine, ACCELERATED, ACCELERATE, **cpu)
    machine.wait(job_id, "COMPLETED", "FAILED", seconds=200)
    assert sums(machine, job_id) == ["sum 3", "sum 3"], machine.logs(job_id)[-3000:]
    machine.nothing_left(job_id)
