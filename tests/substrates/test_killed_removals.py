"""Removing a job's nodes, killed before each single deletion: the next one removes the rest."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from prefect_bt.host.job_lock import JobLock
from prefect_bt.ledger.records import NodeStatus
from prefect_bt.substrates.local.substrate import LocalProcessSubstrate

from .test_kept_checkpoints import LOST, WELL, JobFolder, attempt, checkpoint

JOB = "abc1234"
DELETIONS = frozenset({"os.remove", "os.rmdir"})


def remove_all(state: Path) -> None:
    """As the owner of a job that is over does (attempts.clear_nodes, then Claim.drop)."""
    claim = JobLock(state)
    claim.acquire(JOB)
    for handle in LocalProcessSubstrate(state).list_nodes(JOB):
        handle.remove()
    claim.release_and_remove()


def remove_until_killed(state: Path, deletions: int) -> bool:
    """In a process that dies instead of its next deletion after so many; whether it died."""
    child = os.fork()
    if child == 0:
        left = deletions

        def count(event: str, _arguments: object) -> None:
            nonlocal left
            if event in DELETIONS:
                left -= 1
                if left < 0:
                    os._exit(9)

        sys.addaudithook(count)
        remove_all(state)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9


@pytest.mark.slow
@pytest.mark.parametrize("last", [WELL, LOST], ids=["stored", "the only copy"])
def test_killed_before_any_deletion(tmp_path: Path, last: NodeStatus) -> None:
    killed = 0
    while True:
        state = tmp_path / str(killed)
        job = JobFolder(state, JOB)
        kept = checkpoint(job)
        attempt(job, 0, LOST)
        attempt(job, 1, last)
        died = remove_until_killed(state, killed)
        remove_all(state)
        if last is WELL:
            assert not job.path.exists(), (killed, sorted(job.path.rglob("*")))
        else:
            assert kept.exists(), killed
        if not died:
            break
        killed += 1
    assert killed > 5
