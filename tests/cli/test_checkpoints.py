"""`checkpoints list` and `get_checkpoint_urls`, shapes of §8.5 and §12."""

from __future__ import annotations

import csv
import io
import json

import pytest

from .conftest import Cli, Shop


@pytest.fixture
def job(shop: Shop, ended):
    record = shop.job("my proj/x", *ended)
    lora = {"r": 8, "base_model_name_or_path": "org/base"}
    shop.checkpoint(record, "checkpoint-10", size=3 * 1024**3, at=1, type="full", step=10)
    shop.checkpoint(
        record,
        "adapter",
        size=17,
        at=2,
        type="lora",
        base_model="org/base",
        lora_adapter_config=lora,
        files=["adapter_config.json", "adapter_model.safetensors"],
    )
    shop.checkpoint(record, "runs", size=5, at=3, rank=1)
    return record


def test_the_table(cli: Cli, job):
    done = cli("checkpoints", "list")
    assert (done.code, done.err) == (0, "")
    ids = [row["id"] for row in cli("checkpoints", "list", "-o", "json").json["checkpoints"]]
    assert (
        done.out
        == f"""\
Checkpoints for job: {job.id}
Job ID   Checkpoint ID  Checkpoint Name  Type  Base Model  Size      Created At
{job.id}  {ids[0]}       checkpoint-10    full              3.00 GiB  2023-11-14 22:13:21
{job.id}  {ids[1]}       adapter          lora  org/base    17 bytes  2023-11-14 22:13:22
{job.id}  {ids[2]}       runs                               5 bytes   2023-11-14 22:13:23
They are in {cli.folder}/store/training_projects/{job.project_id}/jobs/{job.id}
As folders: prefect-bt checkpoints download --job-id {job.id}
"""
    )


def test_json(cli: Cli, job):
    found = cli("checkpoints", "list", "--job-id", job.id, "-o", "json").json
    assert found["job_id"] == job.id
    assert found["total_checkpoints"] == 3
    full, lora, _ = found["checkpoints"]
    assert list(full) == [
        "job_id",
        "id",
        "checkpoint_id",
        "checkpoint_type",
        "base_model",
        "size_bytes",
        "size_human_readable",
        "created_at",
    ]
    assert lora["lora_adapter_config"]["r"] == 8


def test_csv(cli: Cli, job):
    rows = list(csv.DictReader(io.StringIO(cli("checkpoints", "list", "-o", "csv").out)))
    assert [row["Checkpoint Name"] for row in rows] == ["checkpoint-10", "adapter", "runs"]
    assert rows[0]["Size (bytes)"] == "3221225472"
    assert rows[0]["Size (human readable)"] == "3.00 GiB"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--sort", "size"], ["runs", "adapter", "checkpoint-10"]),
        (["--sort", "size", "--order", "desc"], ["checkpoint-10", "adapter", "runs"]),
        (["--sort", "checkpoint-id"], ["adapter", "checkpoint-10", "runs"]),
        (["--sort", "type"], ["runs", "checkpoint-10", "adapter"]),
        (["--order", "desc"], ["runs", "adapter", "checkpoint-10"]),
    ],
)
def test_order(cli: Cli, job, arguments: list[str], expected: list[str]):
    found = cli("checkpoints", "list", *arguments, "-o", "json").json["checkpoints"]
    assert [checkpoint["checkpoint_id"] for checkpoint in found] == expected


def test_one_with_its_files(cli: Cli, job):
    found = cli("checkpoints", "list", "--checkpoint-name", "adapter", "-o", "json").json
    assert found["total_checkpoints"] == 1
    names = [file["relative_file_name"] for file in found["files"]]
    assert names == ["adapter/adapter_config.json", "adapter/adapter_model.safetensors"]
    assert (
        "Files of checkpoint: adapter"
        in cli("checkpoints", "list", "--checkpoint-name", "adapter").out
    )


def test_an_unknown_name(cli: Cli, job):
    done = cli("checkpoints", "list", "--checkpoint-name", "nope")
    assert done.code == 1
    assert f"Job {job.id} has: checkpoint-10, adapter, runs." in done.err


def test_none(cli: Cli, shop: Shop, ended):
    job = shop.job("tiny", *ended)
    done = cli("checkpoints", "list")
    assert (done.code, done.out) == (0, "")
    assert done.err == f"No checkpoints found for training job {job.id}.\n"
    assert cli("checkpoints", "list", "-o", "json").json["checkpoints"] == []
    assert cli("checkpoints", "list", "-o", "csv").out.count("\n") == 1
    done = cli("get_checkpoint_urls")
    assert (done.code, done.err) == (1, "error: No checkpoints found for this training job.\n")


@pytest.mark.parametrize("verb", ["get_checkpoint_urls", "get-checkpoint-urls"])
def test_urls(cli: Cli, shop: Shop, job, verb: str):
    done = cli(verb)
    target = cli.folder / f"my-proj-x_{job.id}_checkpoints.json"
    assert done.out == f"Addresses of 4 checkpoint files written to {target}\n"
    found = json.loads(target.read_text())
    assert set(found) == {"timestamp", "job", "checkpoint_artifacts"}
    assert found["job"]["id"] == job.id
    first = found["checkpoint_artifacts"][0]
    assert first["url"].startswith(f"file://{cli.folder}/store/training_projects/{job.project_id}/")
    assert set(first) == {"url", "relative_file_name", "node_rank", "size_bytes", "last_modified"}
    assert [file["node_rank"] for file in found["checkpoint_artifacts"]] == [0, 0, 0, 1]
