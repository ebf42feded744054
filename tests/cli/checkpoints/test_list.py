"""Check the output of `checkpoints list` and `get_checkpoint_urls`."""

import csv
import io
import json
import os
import signal
import urllib.error
import urllib.request
from functools import partial
from typing import Any

import pytest

from prefect_bt.checkpoints.committed.catalog import list_checkpoints
from prefect_bt.file_server import process
from prefect_bt.file_server.server_folder import FileServerFolder
from tests.checkpoints.buckets import SECRET, Bucket, use
from tests.cli.conftest import Cli, Shop
from tests.s3_server import shared_s3


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
{job.id}  {ids[0]}       checkpoint-10    full              3.00 GiB  2023-11-14 22:13:21 UTC
{job.id}  {ids[1]}       adapter          lora  org/base    17 bytes  2023-11-14 22:13:22 UTC
{job.id}  {ids[2]}       runs                               5 bytes   2023-11-14 22:13:23 UTC
Location: {cli.folder}/store/training_projects/{job.project_id}/jobs/{job.id}
Download: prefect-bt checkpoints download --job-id {job.id}
"""
    )


def test_json(cli: Cli, job):
    found = cli("checkpoints", "list", "--job-id", job.id, "-o", "json").json
    assert found["job_id"] == job.id
    assert found["total_checkpoints"] == 3
    full, lora, _ = found["checkpoints"]
    assert list(full) == [
        *("job_id", "id", "checkpoint_id", "checkpoint_type", "base_model"),
        *("size_bytes", "size_human_readable", "created_at", "sync_status", "sync_error"),
        "note",
    ]
    assert lora["lora_adapter_config"]["r"] == 8


def test_csv(cli: Cli, job):
    rows = list(csv.DictReader(io.StringIO(cli("checkpoints", "list", "-o", "csv").out)))
    assert [row["Checkpoint Name"] for row in rows] == ["checkpoint-10", "adapter", "runs"]
    assert rows[0]["Size (bytes)"] == "3221225472"
    assert rows[0]["Size (human readable)"] == "3.00 GiB"


@pytest.mark.slow
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
    done = cli("checkpoints", "list", "--checkpoint-name", "adapter")
    assert "Files of checkpoint: adapter" in done.out


def test_an_unknown_name(cli: Cli, job):
    error = cli("checkpoints", "list", "--checkpoint-name", "nope").refusal()
    assert f"Job {job.id} has: adapter, checkpoint-10, runs." in error


def test_none(cli: Cli, shop: Shop, ended):
    job = shop.job("tiny", *ended)
    done = cli("checkpoints", "list")
    assert (done.code, done.out) == (0, "")
    assert done.err == f"No checkpoints found for training job {job.id}.\n"
    assert cli("checkpoints", "list", "-o", "json").json["checkpoints"] == []
    assert cli("checkpoints", "list", "-o", "csv").out.count("\n") == 1
    error = cli("get_checkpoint_urls").refusal()
    assert error.startswith(f"error: Job {job.id} has no committed checkpoint. Upload status")


@pytest.mark.parametrize("verb", ["get_checkpoint_urls", "get-checkpoint-urls"])
def test_plain_urls(cli: Cli, shop: Shop, job, verb: str):
    done = cli(verb, "--unsigned")
    target = cli.folder / f"my-proj-x_{job.id}_checkpoints.json"
    assert done.out == (
        f"URLs of 4 checkpoint files written to {target}\n"
        "The URLs are not signed: readers need access to the store.\n"
    )
    found = json.loads(target.read_text())
    assert set(found) == {"timestamp", "job", "checkpoint_artifacts"}
    assert found["job"]["id"] == job.id
    first = found["checkpoint_artifacts"][0]
    assert first["url"].startswith(f"file://{cli.folder}/store/training_projects/{job.project_id}/")
    assert set(first) == {"url", "relative_file_name", "node_rank", "size_bytes", "last_modified"}
    assert [file["node_rank"] for file in found["checkpoint_artifacts"]] == [0, 0, 0, 1]
    assert not (cli.folder / "state/files").exists(), "nothing had to be started"


def artifacts(cli: Cli, job) -> list[dict[str, Any]]:
    (file,) = cli.folder.glob(f"*_{job.id}_checkpoints.json")
    return json.loads(file.read_text())["checkpoint_artifacts"]


@pytest.fixture
def serving(cli: Cli):
    yield cli.folder / "state"
    process.stop_all_servers(cli.folder / "state")


def fill(shop: Shop, job, data: bytes) -> None:
    """Every object that the manifests name gets bytes."""
    for checkpoint in list_checkpoints(shop.ledger.store, job.project_id, job.id):
        for file in checkpoint.files():
            shop.ledger.store.put(file.key, data)


def read(url: str, **headers: str) -> tuple[int, bytes]:
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with direct.open(urllib.request.Request(url, headers=headers), timeout=200) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, b""


@pytest.mark.slow
def test_urls_that_answer(cli: Cli, shop: Shop, job, serving):
    fill(shop, job, b"0123456789")
    done = cli("get_checkpoint_urls")
    target = cli.folder / f"my-proj-x_{job.id}_checkpoints.json"
    known = next(FileServerFolder.iter_all(serving)).read_record()
    assert (done.code, done.err) == (0, "")
    assert done.out == (
        f"URLs of 4 checkpoint files written to {target}\n"
        f"The URLs are valid for 7 days, served at {known.base} to this machine "
        "(for others: prefect-bt checkpoints serve).\n"
    )
    urls = [file["url"] for file in artifacts(cli, job)]
    assert [read(url) for url in urls] == [(200, b"0123456789")] * 4
    assert read(urls[0], Range="bytes=2-4") == (206, b"234")
    again = cli("get-checkpoint-urls", "--job-id", job.id)
    assert again.code == 0
    found = next(FileServerFolder.iter_all(serving)).read_record()
    assert found == known, "the same server is found"

    stopped = cli("down")
    assert f"Stopped the file server at {known.base}" in stopped.out
    assert not known.process.is_alive
    assert cli("get_checkpoint_urls").code == 0
    assert read(urls[0]) == (200, b"0123456789"), "at the same address again"


@pytest.mark.slow
def test_up_serves_again_what_was_given_out(cli: Cli, shop: Shop, job, serving, monkeypatch):
    for name in ("PREFECT_BT_STORE", "PREFECT_BT_STATE_DIR"):
        monkeypatch.setenv(name, cli.env[name])
    restart = partial(process.restart_server, shop.ledger.store.url, serving, cli.env)
    assert restart() is None, "no URL was ever created"
    assert list(FileServerFolder.iter_all(serving)) == []
    assert cli("get_checkpoint_urls").code == 0
    (place,) = FileServerFolder.iter_all(serving)
    before = process.stop_server(place)
    assert restart().base == before.base
    assert place.read_record().process.is_alive


@pytest.mark.slow
def test_served_in_the_foreground(cli: Cli, shop: Shop, job, serving):
    fill(shop, job, b"0123456789")
    server = cli.start("checkpoints", "serve", "--address", "http://localhost:1/x/")
    try:
        said = server.stdout.readline()
        assert said == f"Serving {cli.folder}/store at http://localhost:1/x; Ctrl-C stops it.\n"
        known = next(FileServerFolder.iter_all(serving)).read_record()
        assert known.process.pid == server.pid
        assert cli("get_checkpoint_urls").code == 0
        url = artifacts(cli, job)[0]["url"]
        assert url.startswith("http://localhost:1/x/training_projects/")
        # What stands between that address and us hands the rest on.
        real = url.replace("http://localhost:1/x", f"http://127.0.0.1:{known.port}")
        assert read(real) == (200, b"0123456789")
        error = cli("checkpoints", "serve").refusal()
        assert f"Process {server.pid} serves this store already" in error
        server.send_signal(signal.SIGINT)
        assert server.wait(timeout=200) == 0
        assert "Traceback" not in server.stderr.read()
    finally:
        server.kill()
        server.wait()


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--host", "0.0.0.0"], 2, "--address http://<name>:<port>"),
        (["--address", "box:80"], 2, "'box:80' is not a URL"),
        (["--host", "192.0.2.1"], 1, "Cannot listen at 192.0.2.1"),
    ],
)
def test_what_cannot_be_served(cli: Cli, arguments: list[str], code: int, said: str):
    assert said in cli("checkpoints", "serve", *arguments).refusal(code)


@pytest.mark.integration
def test_a_bucket_signs_for_itself(cli: Cli, monkeypatch, ended):
    use(monkeypatch, shared_s3())
    bucket = Bucket(shared_s3())
    told = {name: value for name, value in os.environ.items() if name.startswith("AWS_")}
    shop = Shop(bucket.url)
    job = shop.job("tiny", *ended)
    shop.checkpoint(job, "checkpoint-10", size=10, at=1)
    fill(shop, job, b"0123456789")
    done = cli("get_checkpoint_urls", PREFECT_BT_STORE=bucket.url, **told)
    assert (done.code, done.err) == (0, "")
    assert "valid for 7 days" in done.out
    (file,) = artifacts(cli, job)
    assert read(file["url"], Range="bytes=0-7") == (206, b"01234567")
    assert SECRET not in file["url"]
    error = cli("checkpoints", "serve", PREFECT_BT_STORE=bucket.url, **told).refusal()
    assert "a bucket signs its own URLs" in error
    assert not (cli.folder / "state/files").exists()
