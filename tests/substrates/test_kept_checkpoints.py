"""Local checkpoints that may be the only copy stay, whichever attempt's folder goes last."""

from __future__ import annotations

from pathlib import Path

import pytest

from prefect_bt import codec
from prefect_bt.host.nodes.handle import HostHandle
from prefect_bt.host.state_folder import JobFolder
from prefect_bt.ledger.records import NodePhase, NodeStatus

LOST = NodeStatus(0, NodePhase.LOST, started_at=1.0, reason="the node's process is gone")
UNSENT = NodeStatus(0, NodePhase.DONE, exit_code=0, started_at=1.0, upload_error="no such bucket")
NEVER_RAN = NodeStatus(0, NodePhase.DONE, exit_code=1, reason="staging failed: no GPU")
STOPPED_EARLY = NodeStatus(0, NodePhase.DONE, reason="stopped")
FAILED = NodeStatus(0, NodePhase.DONE, exit_code=1, started_at=2.0)
WELL = NodeStatus(0, NodePhase.DONE, exit_code=0, started_at=2.0)


def attempt(job: JobFolder, number: int, status: NodeStatus) -> HostHandle:
    handle = HostHandle(job, number, 0)
    handle.folder.path.mkdir(parents=True)
    handle.folder.status.write_text(codec.dumps(status))
    return handle


def checkpoint(job: JobFolder) -> Path:
    file = job.rank_folder(0) / "checkpoints" / "checkpoint-1" / "model.bin"
    file.parent.mkdir(parents=True)
    file.write_bytes(b"the only copy")
    return file


@pytest.mark.parametrize("first", [LOST, UNSENT], ids=["lost", "unsent"])
@pytest.mark.parametrize(
    "last", [NEVER_RAN, STOPPED_EARLY, FAILED], ids=["never ran", "stopped early", "failed"]
)
def test_an_attempt_that_sent_nothing_lets_nothing_go(
    tmp_path: Path, first: NodeStatus, last: NodeStatus
) -> None:
    job = JobFolder(tmp_path, "abc1234")
    kept = checkpoint(job)
    nodes = [attempt(job, 0, first), attempt(job, 1, last)]
    for node in nodes:
        node.remove()
    assert kept.exists()
    # Nor when the job is taken up again, and the next attempt does not begin either.
    again = attempt(job, 2, STOPPED_EARLY)
    assert again.has_unsaved_checkpoints()
    again.remove()
    assert kept.exists()


def test_an_attempt_that_ended_well_has_sent_all_there_was(tmp_path: Path) -> None:
    job = JobFolder(tmp_path, "abc1234")
    checkpoint(job)
    for node in [attempt(job, 0, LOST), attempt(job, 1, WELL)]:
        node.remove()
    assert not job.path.exists()


def test_attempts_that_never_ran_leave_nothing(tmp_path: Path) -> None:
    job = JobFolder(tmp_path, "abc1234")
    for node in [attempt(job, 0, NEVER_RAN), attempt(job, 1, STOPPED_EARLY)]:
        node.remove()
    assert not job.path.exists()
