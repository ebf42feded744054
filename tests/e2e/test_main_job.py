"""The main job, end to end: the real command line, a real Prefect server, real processes."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from .conftest import Machine

pytestmark = [pytest.mark.integration]

WRITE = (
    "mkdir -p $BT_CHECKPOINT_DIR/checkpoint-1; echo '{}' > $BT_CHECKPOINT_DIR/checkpoint-1/a.json"
)


def test_completed(machine: Machine) -> None:
    config = machine.folder(f"{WRITE}\necho hello from $BT_TRAINING_JOB_ID\nenv | sort\npwd\n")
    code, job = machine.push_wait(config)
    assert (code, job["current_status"]) == (0, "TRAINING_JOB_COMPLETED")
    assert machine.checkpoints(job["id"]) == ["checkpoint-1"]
    logs = machine.logs(job["id"])
    assert f"(rank-0) hello from {job['id']}" in logs
    assert "(rank-0) BT_RETRY_COUNT=0" in logs
    assert "(rank-0) /b10/workspace" in logs
    seen = machine.view(job["id"])
    states = [event["state"].removeprefix("TRAINING_JOB_") for event in seen["events"]]
    assert states == ["CREATED", "DEPLOYING", "RUNNING", "COMPLETED"]
    assert seen["flow_run_url"].startswith("http://127.0.0.1:")
    assert not Path("/b10").exists()
    machine.nothing_left(job["id"])


def test_every_variable_of_5_1(machine: Machine) -> None:
    code, job = machine.finish(machine.folder("env\n", cache=True, project="my / project"))
    assert code == 0
    lines = (line.partition("(rank-0) ")[2] for line in machine.logs(job["id"]).splitlines())
    env = dict(line.split("=", 1) for line in lines if line.startswith("BT_"))
    assert int(env.pop("BT_LEADER_PORT")) > 1024
    assert env == {
        "BT_TRAINING_JOB_ID": job["id"],
        "BT_TRAINING_PROJECT_ID": job["training_project"]["id"],
        "BT_TRAINING_JOB_NAME": job["name"],
        "BT_TRAINING_PROJECT_NAME": "my / project",
        "BT_NUM_GPUS": "0",
        "BT_WORKING_DIR": "/b10/workspace",
        "BT_SCRATCH_DIR": "/mnt/bt-scratch",
        "BT_CHECKPOINT_DIR": "/mnt/ckpts",
        "BT_PROJECT_CACHE_DIR": "/root/.cache/user_artifacts",
        "BT_TEAM_CACHE_DIR": "/root/.cache/team_artifacts",
        "BT_RW_CACHE_DIR": "/root/.cache",
        "BT_RETRY_COUNT": "0",
        "BT_GROUP_SIZE": "1",
        "BT_LEADER_ADDR": "127.0.0.1",
        "BT_NODE_RANK": "0",
    }


def test_a_failure_keeps_its_checkpoint_and_says_why(machine: Machine) -> None:
    config = machine.folder(f"{WRITE}\necho the reason >&2\nexit 3\n")
    code, job = machine.finish(config)
    assert code == 1
    assert job["current_status"] == "TRAINING_JOB_FAILED"
    assert "Rank 0 failed first" in job["error_message"]
    assert "exited with 3" in job["error_message"]
    assert machine.checkpoints(job["id"]) == ["checkpoint-1"]
    assert len(job["attempts"]) == 1
    machine.nothing_left(job["id"])


def test_retries_of_the_users_code(machine: Machine) -> None:
    config = machine.folder("echo attempt $BT_RETRY_COUNT; test $BT_RETRY_COUNT = 1\n")
    code, job = machine.finish(config, retries=1)
    assert code == 0
    assert [a["status"] for a in job["attempts"]] == ["failed", "completed"]
    logs = machine.logs(job["id"])
    assert "attempt 0" in logs
    assert "attempt 1" in logs


def test_commands_run_in_order_and_the_first_failure_ends_the_node(machine: Machine) -> None:
    config = machine.folder("", commands=["echo one", "false", "echo three"])
    code, job = machine.finish(config)
    assert code == 1
    logs = machine.logs(job["id"])
    assert "(rank-0) one" in logs
    assert "(rank-0) three" not in logs
    assert "start command 2" in job["error_message"]


def test_several_nodes_share_a_cache_and_nothing_else(machine: Machine) -> None:
    script = """
    echo $BT_NODE_RANK > $BT_PROJECT_CACHE_DIR/seen-$BT_NODE_RANK
    mkdir -p $BT_CHECKPOINT_DIR/c; echo $BT_NODE_RANK > $BT_CHECKPOINT_DIR/c/rank.txt
    until [ $(ls $BT_PROJECT_CACHE_DIR/seen-* | wc -l) = 3 ]; do sleep 0.1; done
    test $(ls $BT_CHECKPOINT_DIR/c | wc -l) = 1
    """
    code, job = machine.finish(machine.folder(script, nodes=3, cache=True, project="shared"))
    assert code == 0, job["error_message"]
    files = [p for p in (machine.root / "store").rglob("manifests/rank-*") if p.is_dir()]
    assert {p.name for p in files if job["id"] in str(p)} == {"rank-0", "rank-1", "rank-2"}
    assert machine.checkpoints(job["id"]) == ["c"]


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


def test_recreate_and_download(machine: Machine, tmp_path: Path) -> None:
    _, job = machine.finish(machine.folder("echo once\n"))
    again = json.loads(machine.run("recreate", "--job-id", job["id"], "-o", "json").stdout)
    assert again["id"] != job["id"]
    machine.wait(again["id"], "COMPLETED")
    machine.run("download", "--job-id", again["id"], "--target-directory", str(tmp_path))
    folder = next(tmp_path.iterdir())
    assert (folder / "run.sh").read_text() == "echo once\n"


def test_a_command_line_that_leaves_does_not_stop_the_job(machine: Machine, tmp_path: Path) -> None:
    script = "until test -e $WORD/go; do sleep 0.1; done; sleep 1; echo done\n"
    job = machine.push(machine.folder(script, env={"WORD": str(tmp_path)}))
    begun = ("CREATED", "DEPLOYING", "RUNNING")
    assert job["current_status"] in {f"TRAINING_JOB_{state}" for state in begun}
    (tmp_path / "go").touch()
    tail = machine.run("logs", "--tail", "--job-id", job["id"])
    assert "(rank-0) done" in tail.stdout
    machine.wait(job["id"], "COMPLETED")


@pytest.mark.slow
def test_without_any_server(serverless: Machine) -> None:
    code, job = serverless.push_wait(serverless.folder(WRITE))
    assert code == 0, job
    assert serverless.checkpoints(job["id"]) == ["checkpoint-1"]
    serverless.nothing_left(job["id"])


def test_host_is_untouched(machine: Machine) -> None:
    """Nothing is where the job sees its folders; what else comes to the host is not the job's."""
    names = ["/app", "/b10", "/workspace", "/mnt/bt-scratch", "/mnt/ckpts"]
    if os.geteuid() == 0:
        names += ["/root/.cache/user_artifacts", "/root/.cache/team_artifacts"]
    before = [name for name in names if Path(name).exists()]
    script = f"{WRITE}\nmkdir -p /app /workspace /b10/more; touch /app/x /workspace/y /b10/more/z\n"
    script += "test -f /app/x && touch $BT_SCRATCH_DIR/s $BT_PROJECT_CACHE_DIR/c\n"
    code, job = machine.finish(machine.folder(script, cache=True))
    assert code == 0, job["error_message"]
    assert [name for name in names if Path(name).exists()] == before


def test_the_cache_outlives_the_job_and_the_rest_does_not(machine: Machine) -> None:
    write = """
    for d in $BT_PROJECT_CACHE_DIR $BT_TEAM_CACHE_DIR $BT_RW_CACHE_DIR/huggingface; do
      mkdir -p $d; echo kept > $d/file
    done
    echo gone > $BT_SCRATCH_DIR/file; echo gone > /b10/workspace/file
    """
    read = """
    cat $BT_PROJECT_CACHE_DIR/file $BT_TEAM_CACHE_DIR/file $BT_RW_CACHE_DIR/huggingface/file
    test ! -e $BT_SCRATCH_DIR/file && test ! -e /b10/workspace/file
    """
    for script in (write, read):
        code, job = machine.finish(machine.folder(script, cache=True, project="cached"))
        assert code == 0, (job["error_message"], machine.logs(job["id"]))
    assert machine.logs(job["id"]).count("(rank-0) kept") == 3
