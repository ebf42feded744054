"""The nodes of a running job, as every machine shows them; a stop while Prefect does not answer."""

import json
import os
from pathlib import Path

import pytest

from prefect_bt.attempts.live_nodes import live_document
from prefect_bt.ledger.ledger import Ledger
from prefect_bt.ledger.node_objects import GangObjects
from prefect_bt.ledger.records import NodePhase, NodeStatus, Outcome
from prefect_bt.ledger.requests import OWNER, READER
from prefect_bt.ledger.states import JobState
from prefect_bt.object_store import open_store
from prefect_bt.supervisor.supervised_job import SupervisedJob
from tests.ledger.fencing_epochs.jobs import ELSEWHERE, FAILED, job_of

RUNS, ENDS = NodePhase.RUNNING, NodePhase.DONE


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(open_store(str(tmp_path / "store")))


def publish(ledger: Ledger, job_id: str, *statuses: NodeStatus) -> GangObjects:
    record = ledger.get_job(job_id)
    gang = GangObjects.of_attempt(ledger.store, record.project_id, job_id, 0)
    for status in statuses:
        gang.rank(status.rank).write_status(status, 0)
    return gang


def test_nodes_of_another_machine_are_as_it_published_them(ledger: Ledger, tmp_path: Path) -> None:
    job_id = job_of(ledger, ELSEWHERE, FAILED[:3])
    stopped = [NodeStatus(rank, ENDS, reason="stopped") for rank in (2, 3)]
    gang = publish(ledger, job_id, NodeStatus(0, RUNS), NodeStatus(1, RUNS), *stopped)
    gang.requests.mark(READER)
    document = live_document(ledger, ledger.get_job(job_id), tmp_path / "state")
    assert document is not None
    assert (document["machine"], document["last_heard_at"]) == ("box-7", None), "a reader is none"
    assert document["summary"] == "2 running; ranks 2 and 3 done (stopped)"
    assert [node["phase"] for node in document["nodes"]] == [RUNS, RUNS, ENDS, ENDS]
    gang.requests.mark(OWNER)
    document = live_document(ledger, ledger.get_job(job_id), tmp_path / "state")
    assert document is not None
    assert document["last_heard_at"]


def test_a_job_without_a_running_attempt_has_no_nodes(ledger: Ledger, tmp_path: Path) -> None:
    job_id = job_of(ledger, ELSEWHERE, FAILED[:3])
    ledger.end_attempt(job_id, Outcome(0, JobState.FAILED))
    assert live_document(ledger, ledger.get_job(job_id), tmp_path / "state") is None


def test_a_stop_ends_the_wait_for_prefect(
    ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its flow is dead, so that no other process reads the request."""
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:9/api")
    monkeypatch.setattr("prefect_bt.supervisor.supervised_job.POLL_INTERVAL", 0.01)
    job_id = job_of(ledger, ELSEWHERE, FAILED[:3])
    handoff = {"job_id": job_id, "store": ledger.store.url, "state_dir": str(tmp_path)}
    for name in ("PREFECT_BT_OWNER_FD", "PREFECT_BT_STATE_DIR"):
        monkeypatch.setenv(name, os.environ.get(name, ""))  # the job sets them
    job, polls = SupervisedJob(json.dumps(handoff).encode(), 99), list[int]()

    def request_stop() -> bool:
        polls.append(1)
        if len(polls) == 3:
            ledger.controls.request_stop(job_id, by="me")
        assert len(polls) < 9
        return False

    assert not job.wait_for_api(request_stop)
