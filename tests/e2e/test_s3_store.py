"""The same job with its store in a bucket: a real S3 server process, nothing on a shared disk."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from .conftest import Machine

pytest.importorskip("moto.server", reason="moto[server] is not installed: make setup")
pytestmark = [pytest.mark.integration]


@pytest.fixture
def bucket() -> Iterator[dict[str, str]]:
    """The environment in which s3://training is a bucket of a server of ours."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = subprocess.Popen(
        [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    environment = {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_ACCESS_KEY_ID": "planted-key",
        "AWS_SECRET_ACCESS_KEY": "planted-aws-secret",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_REGION": "us-east-1",
        "PREFECT_BT_STORE": "s3://training/team",
    }
    try:
        make_bucket(environment)
        yield environment
    finally:
        server.kill()
        server.wait()


def make_bucket(environment: dict[str, str]) -> None:
    import boto3
    from botocore.exceptions import BotoCoreError

    client = boto3.client(
        "s3",
        endpoint_url=environment["AWS_ENDPOINT_URL"],
        aws_access_key_id="x",
        aws_secret_access_key="x",
        region_name="us-east-1",
    )
    for _ in range(100):
        try:
            client.create_bucket(Bucket="training")
        except BotoCoreError:
            time.sleep(0.1)
        else:
            return
    pytest.skip("the moto server did not start")


def test_a_retried_job_restores_its_checkpoint_from_the_bucket(
    machine: Machine, bucket: dict[str, str]
) -> None:
    script = """
    ls $BT_CHECKPOINT_DIR; env | grep -c AWS_SECRET || echo no aws secret here
    mkdir -p $BT_CHECKPOINT_DIR/checkpoint-$BT_RETRY_COUNT
    echo "{}" > $BT_CHECKPOINT_DIR/checkpoint-$BT_RETRY_COUNT/a.json
    exit $((1 - BT_RETRY_COUNT))
    """
    config = machine.folder(script)
    done = machine.run(
        "push", str(config), "--wait", "--retries", "1", "-o", "json", check=False, **bucket
    )
    job = json.loads(done.stdout)
    assert job["current_status"] == "TRAINING_JOB_COMPLETED", job["error_message"]
    assert job["store"] == "s3://training/team"
    logs = machine.run("logs", "--job-id", job["id"], **bucket).stdout
    assert "(rank-0) no aws secret here" in logs, "the store's credentials are not the job's"
    assert "(rank-0) checkpoint-0" in logs
    listed = machine.run("checkpoints", "list", "--job-id", job["id"], "-o", "json", **bucket)
    names = [c["checkpoint_id"] for c in json.loads(listed.stdout)["checkpoints"]]
    assert names == ["checkpoint-0", "checkpoint-1"]
    assert not list((machine.root / "store").glob(f"**/{job['id']}*"))
