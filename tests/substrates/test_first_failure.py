"""Which of several real nodes failed first, and what became of the others."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from prefect_bt.attempts.gang_policy import Gang
from prefect_bt.ledger.records import Cause, FailureClass
from prefect_bt.ledger.states import JobState
from tests.node_agent.rig import Rig, wait_line, wait_over, wait_running

STUBBORN = "trap '' TERM; echo ready; while :; do sleep 0.1; done"
WAITS = "while ! [ -e {file} ]; do sleep 0.02; done; "


def watched(gang: Gang) -> Gang:
    gang.watch(stop_requested=lambda: False, on_change=lambda _: None)
    gang.wait_for_flush()
    return gang


@pytest.mark.slow
def test_the_first_failure_and_the_others_ends(rig: Rig, tmp_path: Path) -> None:
    sign = tmp_path / "now"
    commands = [
        STUBBORN,
        WAITS.format(file=sign) + "echo last words; kill -SEGV $$",
        "sleep 600",
        "true",
    ]
    nodes = [rig.launch(c, rank=rank, group_size=4) for rank, c in enumerate(commands)]
    wait_line(nodes[0], "ready")
    wait_running(nodes[2])
    wait_over(nodes[3])
    began = nodes[0].observe().started_at
    sign.touch()
    outcome = watched(Gang(0, nodes, grace=0.5, started_at=began)).make_outcome()
    assert (outcome.state, outcome.failed_rank) == (JobState.FAILED, 1)
    assert (outcome.failure, outcome.cause) == (FailureClass.USER, Cause.SEGMENTATION_FAULT)
    assert "last words" in outcome.log_tail
    assert outcome.message.startswith("Rank 1 failed first, at ")
    assert "after the start: start command 1 died of SIGSEGV. Native code crashed" in (
        outcome.message
    )
    end = "Then rank 3 had exited with 0, rank 2 was stopped, rank 0 had to be killed."
    assert outcome.message.endswith(end)

    # Another process that finds the nodes, because this one died, says the same.
    other = Gang(0, rig.substrate.list_nodes(nodes[0].job.job_id), started_at=began)
    other.shut_down("the process that ran it died")
    again = other.make_outcome()
    assert (again.failed_rank, again.cause, again.message) == (1, outcome.cause, outcome.message)


def test_a_node_that_is_sent_a_signal_by_somebody_else(rig: Rig) -> None:
    """SIGTERM to the whole node, as a machine that is taken back does, is no stop of ours."""
    nodes = [rig.launch("sleep 600", rank=rank, group_size=2) for rank in range(2)]
    for node in nodes:
        wait_running(node)
    name = str(nodes[1].folder.path)
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or []
        if name in words and "prefect_bt.node_agent" in words:
            process.terminate()
    outcome = watched(Gang(0, nodes, grace=5)).make_outcome()
    assert (outcome.failed_rank, outcome.cause) == (1, Cause.TERMINATED)
    assert outcome.failure is FailureClass.INFRASTRUCTURE
    assert outcome.message.endswith("Then rank 0 was stopped.")
