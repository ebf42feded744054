"""The same job with its store in a bucket: a real S3 server process, nothing on a shared disk."""

import json
from typing import Any

import pytest

from prefect_bt.flows.train import train
from tests.checkpoints.buckets import Bucket
from tests.in_process import environment_of
from tests.s3_server import shared_s3

from .conftest import Machine

pytestmark = [pytest.mark.integration]


@pytest.fixture
def bucket() -> dict[str, str]:
    """The environment in which a store is a bucket of a server of ours."""
    made = Bucket(shared_s3())
    return {
        "AWS_ENDPOINT_URL": made.endpoint,
        "AWS_ACCESS_KEY_ID": "planted-key",
        "AWS_SECRET_ACCESS_KEY": "planted-aws-secret",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_REGION": "us-east-1",
        "PREFECT_BT_STORE": f"s3://{made.name}/team",
    }


def test_a_retry_restores_from_the_bucket(machine: Machine, bucket: dict[str, str]) -> None:
    script = """
    ls $BT_CHECKPOINT_DIR; env | grep -c AWS_SECRET || echo no aws secret here
    mkdir -p $BT_CHECKPOINT_DIR/checkpoint-$BT_RETRY_COUNT
    echo "{}" > $BT_CHECKPOINT_DIR/checkpoint-$BT_RETRY_COUNT/a.json
    exit $((1 - BT_RETRY_COUNT))
    """
    config = machine.folder(script)
    with environment_of({**machine.environment, **bucket}):
        job: Any = train(str(config), retries=1)
    assert job["current_status"] == "TRAINING_JOB_COMPLETED", job["error_message"]
    assert job["store"] == bucket["PREFECT_BT_STORE"]
    logs = machine.run("logs", "--job-id", job["id"], **bucket).stdout
    assert "(rank-0) no aws secret here" in logs, "the store's credentials are not the job's"
    assert "(rank-0) checkpoint-0" in logs
    listed = machine.run("checkpoints", "list", "--job-id", job["id"], "-o", "json", **bucket)
    names = [c["checkpoint_id"] for c in json.loads(listed.stdout)["checkpoints"]]
    assert names == ["checkpoint-0", "checkpoint-1"]
    assert not list((machine.root / "store").glob(f"**/{job['id']}*"))
