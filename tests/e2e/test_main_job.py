"""The main job, end to end: the real command line, a real Prefect server, real processes."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from .conftest import Machine, until

pytestmark = [pytest.mark.integration]

WRITE = (
    "mkdir -p $BT_CHECKPOINT_DIR/checkpoint-1; echo '{}' > $BT_CHECKPOINT_DIR/checkpoint-1/a.json"
)


SCRIPT = f"""
{WRITE}
echo hello from $BT_TRAINING_JOB_ID
env
pwd
mkdir -p /app /workspace /b10/more; touch /app/x /workspace/y /b10/more/z
test -f /app/x && touch $BT_SCRATCH_DIR/s $BT_PROJECT_CACHE_DIR/c
echo '{{"step": 4, "reward": 0.5}}' >> $BT_METRICS_FILE
echo "step 7/7 loss 0.25"
sleep 3
"""


def test_completed(machine: Machine) -> None:
    """Check that the host has nothing at the places of the job's folders."""
    names = ["/app", "/b10", "/workspace", "/mnt/bt-scratch", "/mnt/ckpts"]
    if os.geteuid() == 0:
        names += ["/root/.cache/user_artifacts", "/root/.cache/team_artifacts"]
    before = [name for name in names if Path(name).exists()]
    code, job = machine.push_wait(machine.folder(SCRIPT, cache=True, project="my / project"))
    assert (code, job["current_status"]) == (0, "TRAINING_JOB_COMPLETED"), job["error_message"]
    assert [name for name in names if Path(name).exists()] == before
    assert machine.checkpoints(job["id"]) == ["checkpoint-1"]
    lines = [line.partition("(rank-0) ")[2] for line in machine.logs(job["id"]).splitlines()]
    assert f"hello from {job['id']}" in lines
    assert "/b10/workspace" in lines
    check_variables(job, lines)
    seen = machine.view(job["id"])
    states = [event["state"].removeprefix("TRAINING_JOB_") for event in seen["events"]]
    assert states == ["CREATED", "DEPLOYING", "RUNNING", "COMPLETED"]
    assert seen["flow_run_url"].startswith("http://127.0.0.1:")
    check_metrics(machine, seen)
    machine.nothing_left(job["id"])


def check_metrics(machine: Machine, job: dict[str, Any]) -> None:
    """Check what the sampler and the trainer's output leave of an ended job."""
    goodput = job["goodput"]
    assert sum(goodput["seconds"].values()) == pytest.approx(goodput["wall_clock"], rel=0.01)
    assert goodput["seconds"]["training"] > 0
    assert job["training"]["curve"] == "▁"
    assert job["training"]["values"] == {"loss": 0.25, "reward": 0.5, "total_steps": 7}
    document = json.loads(machine.run("metrics", "--job-id", job["id"], "-o", "json").stdout)
    [node] = document["per_node_metrics"]
    assert node["metrics"]["cpu_memory_usage_bytes"][0]["value"] > 0
    assert document["gpu_utilization"] == {}
    assert [point["value"] for point in document["training"]["loss"]] == [0.25]


def check_variables(job: dict[str, Any], lines: list[str]) -> None:
    """Check every variable of the documentation."""
    env = dict(line.split("=", 1) for line in lines if line.startswith("BT_"))
    assert int(env.pop("BT_LEADER_PORT")) > 1024
    assert env == {
        "BT_TRAINING_JOB_ID": job["id"],
        "BT_TRAINING_PROJECT_ID": job["training_project"]["id"],
        "BT_TRAINING_JOB_NAME": job["name"],
        "BT_TRAINING_PROJECT_NAME": "my - project",
        "BT_NUM_GPUS": "0",
        "BT_WORKING_DIR": "/b10/workspace",
        "BT_SCRATCH_DIR": "/mnt/bt-scratch",
        "BT_METRICS_FILE": "/mnt/bt-scratch/metrics.jsonl",
        "BT_CHECKPOINT_DIR": "/mnt/ckpts",
        "BT_PROJECT_CACHE_DIR": "/root/.cache/user_artifacts",
        "BT_TEAM_CACHE_DIR": "/root/.cache/team_artifacts",
        "BT_RW_CACHE_DIR": "/root/.cache",
        "BT_RETRY_COUNT": "0",
        "BT_GROUP_SIZE": "1",
        "BT_LEADER_ADDR": "127.0.0.1",
        "BT_NODE_RANK": "0",
    }


def test_recreated_followed_and_downloaded(machine: Machine, tmp_path: Path) -> None:
    """A command line that returns does not stop the job."""
    project = "again / cached"
    first = machine.completed(machine.folder("echo done\n", project=project, cache=True))["id"]
    told = machine.run("recreate", "--job-id", first).stdout
    assert f'  Cache:   prefect-bt cache summarize "{project}"\n' in told
    (again,) = set(machine.jobs_of(project)) - {first}
    assert "(rank-0) done" in machine.run("logs", "--tail", "--job-id", again).stdout
    machine.wait(again, "COMPLETED")
    machine.run("download", "--job-id", again, "--target-directory", str(tmp_path))
    folder = next(tmp_path.iterdir())
    assert (folder / "run.sh").read_text() == "echo done\n"


def test_dry_run_starts_nothing_and_prints_the_plan(machine: Machine) -> None:
    config = machine.folder("true\n", env={"TOKEN": {"name": "planted"}}, project="never-made")
    done = machine.run(
        "push", str(config), "--dry-run", "-o", "json", PREFECT_BT_SECRET_PLANTED="sEcReT-value"
    )
    plan = json.loads(done.stdout)
    assert plan["nodes"][0]["secret_environment"] == {"TOKEN": "planted"}
    assert "sEcReT-value" not in done.stdout + done.stderr
    assert "never-made" not in machine.run("view").stdout
    text = machine.run("push", str(config), "--dry-run", PREFECT_BT_SECRET_PLANTED="x" * 9).stdout
    assert "/b10/workspace" in text


@pytest.mark.slow
def test_without_any_server(serverless: Machine) -> None:
    code, job = serverless.push_wait(serverless.folder(WRITE))
    assert code == 0, job
    assert serverless.checkpoints(job["id"]) == ["checkpoint-1"]
    serverless.nothing_left(job["id"])


NAN_CONFIG = """
cat > write.py <<'END'
import json, os, struct
header = json.dumps({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
weights = struct.pack("<Q", len(header)) + header + bytes(4)
inf, nan = float("inf"), float("nan")
configs = {
    "good": {"config.json": {"model_type": "llama", "time_step_limit": [0.0, inf]}},
    "lora": {"adapter_config.json": {"r": 8, "megatron_config": {"std": inf, "mean": nan}}},
    "cut": {
        "model.safetensors.index.json": {
            "weight_map": {"w": "model-1.safetensors", "v": "model-2.safetensors"}
        }
    },
}
for name, files in configs.items():
    folder = os.path.join(os.environ["BT_CHECKPOINT_DIR"], name)
    os.makedirs(folder)
    file = {"lora": "adapter_model", "cut": "model-1"}.get(name, "model")
    open(os.path.join(folder, f"{file}.safetensors"), "wb").write(weights)
    for file, value in files.items():
        json.dump(value, open(os.path.join(folder, file), "w"))
END
python write.py
"""


def test_odd_configs_are_committed_and_an_incomplete_checkpoint_is_named(machine: Machine) -> None:
    """One training, where Infinity and NaN in a config once made ten."""
    code, job = machine.push_wait(machine.folder(NAN_CONFIG))
    assert (code, job["current_status"]) == (0, "TRAINING_JOB_COMPLETED"), job["error_message"]
    assert len(job["attempts"]) == 1
    assert machine.checkpoints(job["id"]) == ["good", "lora"]
    (left,) = job["uncommitted"]
    assert left["checkpoint_id"] == "cut" and "model-2.safetensors" in left["why"]
    until(lambda: not machine.job_processes(job["id"]), seconds=30, what="no process left")
    machine.run("checkpoints", "commit", "--job-id", job["id"], "cut")
    assert sorted(machine.checkpoints(job["id"])) == ["cut", "good", "lora"]
    assert machine.view(job["id"])["checkpoint_sync_status"] == "COMPLETED"
    machine.nothing_left(job["id"])
