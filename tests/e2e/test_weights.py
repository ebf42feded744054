"""Weights of a job: in place and read-only before its commands, fetched once for all jobs."""

import json
import os
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from prefect_bt.planning.planner import plan_weights_sources
from tests.checkpoints.buckets import Bucket
from tests.s3_server import shared_s3
from tests.weights.hub_server import Hub, Repo, serving_hub

from .conftest import Machine, until
from .test_prefect_sees import ask, full_bar

pytestmark = [pytest.mark.integration]

MODEL = os.urandom(300_000)
SECRET = "hf_pl4ntedT0kenOfWeights"

KEYS = {"aws_access_key_id": "test", "aws_secret_access_key": "planted-key-of-s3-weights"}

CONFIG = """
from truss_train import WeightsSource, definitions as d

project = d.TrainingProject(
    name="weights",
    job=d.TrainingJob(
        image=d.Image(base_image="none"),
        compute=d.Compute(node_count={nodes}, memory="64Mi"),
        runtime=d.Runtime(start_commands=["sh ./run.sh"]),
        weights=[{sources}],
    ),
)
"""
SOURCE = 'WeightsSource(source="{}", mount_location="{}", {})'

RUN = """
set -u
cd /app/models/base
find . -type f | sort
sha256sum model.safetensors
touch new 2>/dev/null && echo WRITTEN
echo x >> config.json 2>/dev/null && echo APPENDED
rm -f config.json 2>/dev/null || echo kept
cat config.json; echo; ls /app/models
"""


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A Hub that jobs use which run in this process; a pushed one is given HF_ENDPOINT."""
    with serving_hub() as hub:
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", hub.url)
        hub.repos["o/base"] = Repo(token=SECRET, gated=True)
        files = {"config.json": b"the config", "model.safetensors": MODEL, "sub/a.txt": b"a"}
        hub.repos["o/base"].commit({**files, "skip.bin": b"not wanted"})
        yield hub


def config(folder: Path, *sources: str, nodes: int = 1) -> Path:
    text = CONFIG.format(nodes=nodes, sources=", ".join(sources))
    (folder / "config.py").write_text(text)
    (folder / "run.sh").write_text(textwrap.dedent(RUN))
    return folder / "config.py"


def lines_of_rank(logs: str, rank: int) -> list[str]:
    """Return the output of the rank's commands."""
    found = [line.partition(f"(rank-{rank}) ")[2] for line in logs.splitlines()]
    return [line for line in found if line and "[prefect-bt]" not in line]


def test_weights_are_read_only_and_fetched_once(machine: Machine, hub: Hub, tmp_path: Path) -> None:
    (tmp_path / "data" / "rows").mkdir(parents=True)
    (tmp_path / "data" / "rows" / "1.txt").write_text("row")
    pushed = tmp_path / "pushed"
    pushed.mkdir()
    base = SOURCE.format(
        "hf://o/base@main",
        "/app/models/base/",
        'ignore_patterns=["*.bin"], auth_secret_name="hf_token_of_the_weights"',
    )
    local = SOURCE.format(f"file://{tmp_path}/data", "/app/models/data", "")
    path = config(pushed, base, local, nodes=2)
    extra = {"PREFECT_BT_SECRET_HF_TOKEN_OF_THE_WEIGHTS": SECRET}
    job = machine.completed(path, extra=extra)
    logs = machine.logs(job["id"])
    for rank in (0, 1):
        said = lines_of_rank(logs, rank)
        assert said[:3] == ["./config.json", "./model.safetensors", "./sub/a.txt"]
        assert "Read-only file system" in said[4]
        assert said[5:] == ["kept", "the config", "base", "data"]
    assert SECRET not in logs
    assert not Path("/app").exists()
    fetched = hub.bodies()
    assert hub.settled_sent() == len(MODEL) + len(b"the config") + len(b"a")

    again = machine.completed(path, extra=extra)
    assert hub.bodies() == fetched
    machine.nothing_left(again["id"])
    trees = [tree.name for tree in (machine.state_dir / "weights" / "trees").iterdir()]
    mounted = [one["revision"] for one in again["weights"]]
    places = [one["mount_location"] for one in again["weights"]]
    assert places == ["/app/models/base", "/app/models/data"]
    assert mounted[0] == hub.repos["o/base"].branches["main"]
    assert all(any(tree.endswith(f"-{revision}") for tree in trees) for revision in mounted)
    assert again["weights"] == job["weights"]


def test_a_bucket_read_with_a_secret(machine: Machine, tmp_path: Path) -> None:
    pushed = tmp_path / "pushed"
    pushed.mkdir()
    address = shared_s3()
    bucket = Bucket(address)
    files = {"config.json": b"the config", "model.safetensors": MODEL, "sub/a.txt": b"a"}
    for name, data in files.items():
        bucket.client.put_object(Bucket=bucket.name, Key=f"base/{name}", Body=data)
    given = 'auth={"auth_method": "custom_secret", "auth_secret_name": "keys"}'
    path = config(pushed, SOURCE.format(f"s3://{bucket.name}/base", "/app/models/base", given))
    extra = {"AWS_ENDPOINT_URL": address, "PREFECT_BT_SECRET_KEYS": json.dumps(KEYS)}
    job = machine.completed(path, extra=extra)
    logs = machine.logs(job["id"])
    said = lines_of_rank(logs, 0)
    assert said[:3] == ["./config.json", "./model.safetensors", "./sub/a.txt"]
    assert "Read-only file system" in said[4]
    assert said[5:] == ["kept", "the config", "base"]
    assert KEYS["aws_secret_access_key"] not in logs + json.dumps(job)


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("hf://o/base", ["hf://o/base is gated", "Give auth with a token"]),
        ("file:///no/such/folder", ["file:///no/such/folder is not a folder"]),
    ],
)
def test_a_mirror_that_fails_launches_nothing(
    machine: Machine, hub: Hub, tmp_path: Path, source: str, words: list[str]
) -> None:
    path = config(tmp_path, SOURCE.format(source, "/app/models/base", ""))
    job = machine.train(path)
    assert job["current_status"] in {"TRAINING_JOB_FAILED", "TRAINING_JOB_DEPLOY_FAILED"}
    for word in words:
        assert word in job["error_message"]
    assert job["attempts"] == []
    assert hub.bodies() == 0
    machine.nothing_left(job["id"])

    def mirror() -> Any:
        of_run = {"id": {"any_": [job["flow_run_id"]]}}
        tasks = ask(machine, "task_runs/filter", flow_runs=of_run)
        ended = [one for one in tasks if one["state_type"] == "FAILED"]
        return next((one for one in ended if "mirror-weights" in one["name"]), None)

    task = until(mirror, seconds=30, what="the task of the mirror")
    # The sentence and nothing else, and not tried again.
    assert (task["state"]["message"], task["run_count"]) == (job["error_message"], 1)


def test_the_mirror_is_seen_on_the_run(machine: Machine, hub: Hub, tmp_path: Path) -> None:
    hub.repos["o/seen"] = Repo()
    hub.repos["o/seen"].commit({"config.json": b"c", "model.safetensors": MODEL[:70_000]})
    path = config(tmp_path, SOURCE.format("hf://o/seen", "/app/models/base", ""))
    job = machine.completed(path)
    key = plan_weights_sources(["hf://o/seen"])[0].key

    bar = full_bar(machine, f"weights-{job['id']}-{key[:12]}")
    assert "hf://o/seen: " in bar["description"]
    of_run = {"flow_run_id": {"any_": [job["flow_run_id"]]}}

    def line() -> str:
        messages = [log["message"] for log in ask(machine, "logs/filter", logs=of_run, limit=200)]
        return next((m for m in messages if "from the source (" in m), "")

    assert "hf://o/seen: 2 files, 70.0 KB in" in until(line, seconds=30, what="the line of the end")
    tasks = ask(machine, "task_runs/filter", flow_runs={"id": {"any_": [job["flow_run_id"]]}})
    assert "mirror-weights hf://o/seen" in [task["name"] for task in tasks]


def test_a_stop_of_a_mirror_keeps_partial_files(machine: Machine, hub: Hub, tmp_path: Path) -> None:
    size = 4 << 20  # an hour at the speed of the server
    hub.repos["o/slow"] = Repo()
    hub.repos["o/slow"].commit({"model.safetensors": os.urandom(size)})
    hub.bad.seconds_a_chunk = 10.0
    path = config(tmp_path, SOURCE.format("hf://o/slow", "/app/models/base", ""))
    job = machine.push(path, HF_ENDPOINT=hub.url)
    until(lambda: hub.sent, seconds=60, what="the first bytes")
    machine.run("stop", "--job-id", job["id"])
    machine.wait(job["id"], "STOPPED", seconds=60)
    machine.nothing_left(job["id"])
    assert machine.view(job["id"])["attempts"] == []
    listed = json.loads(machine.run("weights", "list", "-o", "json").stdout)
    assert listed["unfinished_bytes"] > 0
    assert "hf://o/slow" not in [tree["source"] for tree in listed["trees"]]


def test_a_job_keeps_its_first_revision(machine: Machine, hub: Hub, tmp_path: Path) -> None:
    repo = hub.repos["o/moving"] = Repo()
    first = repo.commit({"config.json": b"of the first"})
    path = config(tmp_path, SOURCE.format("hf://o/moving@main", "/app/models/base", ""))
    (tmp_path / "run.sh").write_text("cat /app/models/base/config.json; test $BT_RETRY_COUNT = 1")
    job = machine.train(path)
    assert job["current_status"] == "TRAINING_JOB_FAILED"
    assert [one["revision"] for one in job["weights"]] == [first]

    second = repo.commit({"config.json": b"of the second"})
    again = machine.train(None, job_id=job["id"])
    assert again["current_status"] == "TRAINING_JOB_COMPLETED"
    assert machine.logs(job["id"]).count("of the first") == 2
    assert "of the second" not in machine.logs(job["id"])
    assert [one["revision"] for one in again["weights"]] == [first]

    fresh = machine.train(path)
    assert [one["revision"] for one in fresh["weights"]] == [second]
    assert "of the second" in machine.logs(fresh["id"])
