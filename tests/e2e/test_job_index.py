"""The process that ends a job stores its document, and a retry deletes it (decision 014)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from prefect_bt.object_keys import INDEX_ENDED

from .conftest import Machine, until

pytestmark = [pytest.mark.integration]

SCRIPT = """
mkdir -p $BT_CHECKPOINT_DIR/checkpoint-$BT_RETRY_COUNT
echo "{}" > $BT_CHECKPOINT_DIR/checkpoint-$BT_RETRY_COUNT/a.json
echo ready
test $BT_RETRY_COUNT = 0 && exit 3
sleep 600
"""


def stored(machine: Machine, job_id: str) -> list[dict[str, Any]]:
    store = machine.ledger.store
    infos = list(store.list(f"{INDEX_ENDED}/{job_id}"))
    return [json.loads(store.get(info.key))["document"] for info in infos]


def check_stored(machine: Machine, job_id: str) -> None:
    """Wait for the document, which is written after the event; compare it with the records."""
    [document] = until(lambda: stored(machine, job_id), seconds=10, what="a document")
    assert document == machine.view(job_id)


def test_documents_of_a_job_that_fails_and_is_retried_and_stopped(machine: Machine) -> None:
    code, job = machine.finish(machine.folder(SCRIPT))
    assert code == 1
    check_stored(machine, job["id"])
    machine.run("retry", "--job-id", job["id"])
    assert stored(machine, job["id"]) == []
    until(lambda: machine.logs(job["id"]).count("ready") == 2, seconds=60, what="attempt 1")
    machine.run("stop", "--job-id", job["id"])
    machine.wait(job["id"], "STOPPED")
    check_stored(machine, job["id"])
    assert len(machine.view(job["id"])["checkpoints"]) == 2
