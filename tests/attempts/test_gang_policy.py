"""The gang's policy, against a substrate that behaves: it keeps time, state and stop requests."""

from dataclasses import replace
from typing import Any

import pytest

from prefect_bt.attempts.failure_causes import CAUSES
from prefect_bt.attempts.gang_policy import (
    RESPONSE_TIMEOUT,
    Gang,
    launch_gang,
)
from prefect_bt.errors import SubstrateError
from prefect_bt.ledger.records import Cause, FailureClass, NodePhase, NodeStatus
from prefect_bt.ledger.states import JobState
from tests.attempts.simulated import Clock, Script, Simulated, SimulatedNode, pace_of, plan, run

CURE = CAUSES[Cause.CUT_SHORT].remedy


def watched(clock: Clock, *nodes: SimulatedNode, stop: bool = False, **options: Any) -> Gang:
    """A gang that began at 1000 s, once it was watched to its end."""
    gang = Gang(0, list(nodes), timing=pace_of(clock), started_at=1000.0)
    gang.watch(stop_requested=lambda: stop, on_change=lambda _: None, **options)
    return gang


def test_all_zero_is_completed() -> None:
    _, gang = run(Script(), Script(seconds=5))
    assert gang.make_outcome().state is JobState.COMPLETED


def test_first_failure_stops_the_others_and_is_named() -> None:
    substrate, gang = run(Script(seconds=100), Script(seconds=2, code=3), Script(seconds=100))
    outcome = gang.make_outcome()
    assert (outcome.state, outcome.failed_rank) == (JobState.FAILED, 1)
    assert (outcome.failure, outcome.exit_code) == (FailureClass.USER, 3)
    assert outcome.log_tail == ("line of rank 1",)
    assert outcome.message == (
        "Rank 1 failed first, at 00:16:42 UTC, 00:02 after the start: start command 1 exited with "
        "3. Its last log lines say why. Then ranks 0 and 2 were stopped."
    )
    assert outcome.cause is Cause.COMMAND_FAILED
    assert outcome.cure == "Its last log lines say why."
    assert outcome.failed_at == 1002.0
    assert substrate.nodes[0].stops == [("rank 1 failed", False)]
    assert substrate.clock.now < 1010


def test_sigterm_ignored_means_sigkill_after_the_shared_grace() -> None:
    substrate, gang = run(
        Script(seconds=None, ignores_sigterm=True),
        Script(seconds=2, code=1),
        Script(seconds=None, ignores_sigterm=True),
    )
    assert [n.stops[-1] for n in substrate.nodes if n.rank != 1] == [("rank 1 failed", True)] * 2
    assert 1030 < substrate.clock.now < 1036
    assert gang.make_outcome().failed_rank == 1
    assert gang.make_outcome().message.endswith("Then ranks 0 and 2 had to be killed.")


def test_a_node_that_answers_no_stop_is_given_up() -> None:
    substrate, gang = run(Script(seconds=None, deaf=True), Script(seconds=None), stop_at=1)
    deaf, other = substrate.nodes
    assert (deaf.given_up, other.given_up) == (1, 0)
    assert deaf.ended is not None
    assert deaf.stops == [("stopped", False), ("stopped", True)]
    assert (deaf.ended.ended_at or 0) >= 1001 + gang.grace + RESPONSE_TIMEOUT
    assert gang.make_outcome().state is JobState.STOPPED


def test_a_node_that_is_found_lost_after_its_commands_ended_is_not_done() -> None:
    _, gang = run(Script())
    gang.statuses[0] = NodeStatus(0, NodePhase.LOST, started_at=1000, ended_at=1001)
    assert gang.make_outcome().failure is FailureClass.INFRASTRUCTURE


LOST, KILLED = [Script(seconds=1, lost=True), Script(seconds=50)], [Script(seconds=1, code=137)]


@pytest.mark.parametrize("scripts", [LOST, KILLED, [Script(seconds=1, code=143)]])
def test_lost_nodes_and_signals_from_outside_are_infrastructure(scripts: list[Script]) -> None:
    _, gang = run(*scripts)
    assert gang.make_outcome().failure is FailureClass.INFRASTRUCTURE


def test_stop_is_not_a_failure() -> None:
    substrate, gang = run(Script(seconds=None), Script(seconds=None), stop_at=3)
    assert gang.make_outcome().state is JobState.STOPPED
    assert gang.make_outcome().failure is None
    assert [n.stops for n in substrate.nodes] == [[("stopped", False)]] * 2


def test_a_rank_that_fails_after_a_stop_was_requested_is_not_a_failure() -> None:
    fails_late = Script(seconds=10, code=3, ignores_sigterm=True)
    _, gang = run(Script(seconds=None), fails_late, stop_at=3)
    outcome = gang.make_outcome()
    assert (outcome.state, outcome.failed_rank) == (JobState.STOPPED, None)


def test_a_preempted_gang_is_stopped_politely_and_has_not_failed() -> None:
    clock = Clock(now=2000.0)
    nodes = [SimulatedNode(rank, 0, Script(seconds=None), clock, 1000.0) for rank in (0, 1)]
    outcome = watched(clock, *nodes, preemption_requested=lambda: clock.now >= 2003).make_outcome()
    assert (outcome.state, outcome.failure) == (JobState.STOPPED, None)
    assert outcome.cause is Cause.PREEMPTED
    assert [node.stops for node in nodes] == [[("preempted", False)]] * 2


def test_a_gang_that_hangs_is_stopped_and_its_failure_is_retried() -> None:
    clock = Clock(now=2000.0)
    scripts = [Script(seconds=None, ignores_sigterm=True), Script(seconds=None)]
    nodes = [SimulatedNode(rank, 0, script, clock, 1000.0) for rank, script in enumerate(scripts)]
    sentence = "No step for 45 s."
    gang = watched(clock, *nodes, hang=lambda: sentence if clock.now >= 2003 else "")
    outcome = gang.make_outcome()
    assert (outcome.state, outcome.cause) == (JobState.FAILED, Cause.HUNG)
    assert outcome.failure is FailureClass.INFRASTRUCTURE
    assert outcome.message.startswith(f"{sentence} It was stopped.")
    assert [node.stops[0] for node in nodes] == [("hung", False)] * 2
    assert nodes[0].stops[-1] == ("hung", True)


def test_incomplete_checkpoints_are_named_after_a_success() -> None:
    _, gang = run(Script(), Script())
    assert gang.make_outcome().message.endswith("and their checkpoints are committed.")
    left = ("checkpoint-3: no config.json",)
    gang.statuses[1] = replace(gang.statuses[1], uncommitted=left, kept_in="box-7:/state/x")
    outcome = gang.make_outcome()
    assert outcome.state is JobState.COMPLETED
    assert outcome.message == (
        "All ranks exited with 0. Not committed: rank 1: checkpoint-3: no config.json. Kept in "
        f"box-7:/state/x; `prefect-bt checkpoints commit --job-id {gang.job_id} NAME` commits one "
        "as it is."
    )
    gang.statuses[1] = replace(gang.statuses[1], kept_in="")
    assert gang.make_outcome().message.endswith("The files of a pod are deleted with it.")


def test_every_change_of_a_status_is_passed_on_once() -> None:
    clock, changes = Clock(), list[list[NodePhase]]()
    scripts = Script(seconds=1, quiet=True), Script(seconds=2, quiet=True)
    nodes = [SimulatedNode(rank, 0, script, clock, 1000.0) for rank, script in enumerate(scripts)]
    Gang(0, nodes, timing=pace_of(clock), started_at=1000.0).watch(
        stop_requested=lambda: False,
        on_change=lambda statuses: changes.append([status.phase for status in statuses]),
    )
    running, done = NodePhase.RUNNING, NodePhase.DONE
    assert changes == [[running, running], [done, running], [done, done]]


def over(*statuses: NodeStatus) -> Gang:
    """A gang whose nodes ended before anybody of this process looked."""
    clock = Clock(now=2000.0)
    nodes = [SimulatedNode(s.rank, 0, Script(), clock, 1000.0, ended=s) for s in statuses]
    return watched(clock, *nodes)


def ended(rank: int, code: int | None, at: float, reason: str = "") -> NodeStatus:
    return NodeStatus(
        rank, NodePhase.DONE, exit_code=code, reason=reason, started_at=1000.0, ended_at=at
    )


def test_a_rank_that_was_asked_to_stop_is_never_the_first_failure() -> None:
    """Not even where its clock is ahead; the watcher that asked it may be another process."""
    gang = over(ended(0, 143, 1001.0, "rank 1 failed"), ended(1, 3, 1002.0))
    assert gang.make_outcome().failed_rank == 1
    assert gang.make_outcome().message.endswith("Then rank 0 was stopped.")


def test_a_rank_that_was_sent_a_signal_by_somebody_else_is() -> None:
    gang = over(ended(0, 143, 1001.0, "stopped"), ended(1, 1, 1002.0))
    outcome = gang.make_outcome()
    assert (outcome.failed_rank, outcome.cause) == (0, Cause.TERMINATED)
    assert outcome.message.endswith("Then rank 1 exited with 1 by itself within 1 s.")


@pytest.mark.parametrize("clocks", [("a", "a"), ("a", "b")])
@pytest.mark.parametrize("seen_first", [0, 1])
def test_of_two_failures_the_first_is_named_only_if_one_clock_tells(
    seen_first: int, clocks: tuple[str, str]
) -> None:
    """Rank 1 ended first by its clock; its report may arrive after that of rank 0."""
    clock = Clock(now=2000.0)
    nodes = [SimulatedNode(rank, 0, Script(seconds=None), clock, 1000.0) for rank in range(2)]
    ends = [replace(ended(0, 3, 1999.5), clock=clocks[0])]
    ends += [replace(ended(1, 4, 1999.1), clock=clocks[1])]
    nodes[seen_first].ended = ends[seen_first]

    def end_other(_: object) -> None:
        nodes[1 - seen_first].ended = ends[1 - seen_first]

    gang = Gang(0, list(nodes), timing=pace_of(clock), started_at=1000.0)
    gang.watch(stop_requested=lambda: False, on_change=end_other)
    outcome = gang.make_outcome()
    if clocks == ("a", "a"):
        assert outcome.failed_rank == 1
        assert outcome.message.startswith("Rank 1 failed first, at 00:33:19 UTC")
        assert outcome.message.endswith("Then rank 0 exited with 3 by itself within 1 s.")
        return
    assert outcome.failed_rank == seen_first
    assert outcome.message.startswith(
        "Ranks 0 and 1 failed at about the same time; which was first is not known, because the "
        "clocks of their machines may differ. Rank "
    )
    for rank, code in ((0, 3), (1, 4)):
        when = f"Rank {rank}, at 00:33:19 UTC, 16:39 after the start"
        assert f"{when}: start command 1 exited with {code}" in outcome.message


def test_a_failure_that_is_seen_much_later_is_not_the_first_whatever_its_clock_says() -> None:
    clock, deaf = Clock(now=2000.0), Script(seconds=None, deaf=True)
    nodes = [SimulatedNode(rank, 0, deaf, clock, 1000.0) for rank in range(2)]
    nodes[0].ended = replace(ended(0, 3, 1999.5), clock="a")

    def end_late() -> bool:
        if clock.now > 2010.0:
            nodes[1].ended = replace(ended(1, 4, 1000.5), clock="b")
        return False

    gang = Gang(0, list(nodes), timing=pace_of(clock), started_at=1000.0)
    gang.watch(stop_requested=end_late, on_change=lambda _: None)
    outcome = gang.make_outcome()
    assert outcome.failed_rank == 0
    assert outcome.message.startswith("Rank 0 failed first, at")


def test_a_shut_down_is_not_a_stop_by_the_user() -> None:
    clock = Clock(now=2000.0)
    signalled = ended(0, 143, 1001.0, "stopped")
    node = SimulatedNode(0, 0, Script(), clock, 1000.0, ended=signalled)
    gang = Gang(0, [node], timing=pace_of(clock), started_at=1000.0)
    gang.shut_down("its flow ended unexpectedly")
    assert gang.make_outcome().failed_rank == 0


def test_ranks_that_were_all_stopped_for_another_reason_are_no_success() -> None:
    why = "it could no longer be monitored: OSError."
    for code in (143, 0, None):
        gang = over(ended(0, 143, 1001.0, why), ended(1, code, 1001.0, why))
        outcome = gang.make_outcome()
        assert (outcome.state, outcome.failed_rank) == (JobState.FAILED, None)
        assert (outcome.failure, outcome.cause) == (FailureClass.INFRASTRUCTURE, Cause.CUT_SHORT)
        assert outcome.message == (
            f"The attempt was aborted: it could no longer be monitored: OSError. {CURE}"
        )


def test_a_stop_that_another_process_began_is_a_stop() -> None:
    clock = Clock(now=2000.0)
    done = ended(0, 143, 1001.0, "stopped")
    node = SimulatedNode(0, 0, Script(), clock, 1000.0, ended=done)
    assert watched(clock, node, stop=True).make_outcome().state is JobState.STOPPED


def test_the_death_of_an_agent_is_noticed_while_its_uploader_flushes() -> None:
    clock = Clock()
    dying = NodeStatus(0, NodePhase.FLUSHING, reason="gone", started_at=1000.0, ended_at=1000.0)
    first = SimulatedNode(0, 0, Script(), clock, 1000.0, ended=dying)
    other = SimulatedNode(1, 0, Script(seconds=500), clock, 1000.0)
    assert watched(clock, first, other).first_failed_rank == 0
    assert other.stops == [("rank 0 failed", False)]
    assert clock.now < 1010


def test_commands_that_somebody_kills_are_infrastructure_and_the_first_failure() -> None:
    clock = Clock()
    nodes = [SimulatedNode(rank, 0, Script(seconds=None), clock, 1000.0) for rank in range(2)]
    clock.sleep(5)
    assert nodes[1].kill_commands()
    outcome = watched(clock, *nodes).make_outcome()
    assert (outcome.failed_rank, outcome.cause) == (1, Cause.KILLED)
    assert outcome.failure is FailureClass.INFRASTRUCTURE


def test_an_attempt_that_nobody_watched_to_its_end_was_cut_short() -> None:
    gang = over(ended(0, 0, 1001.0))
    outcome = gang.interrupted_outcome("the process that ran it died")
    assert (outcome.state, outcome.cause) == (JobState.FAILED, Cause.CUT_SHORT)
    assert outcome.failure is FailureClass.INFRASTRUCTURE
    assert outcome.message == f"The attempt was aborted: the process that ran it died. {CURE}"
    assert outcome.cure == CURE
    assert outcome.nodes == tuple(gang.statuses)
    assert (outcome.started_at, outcome.ended_at) == (1000.0, 2000.0)


def test_a_rank_that_failed_before_a_shut_down_is_named() -> None:
    clock = Clock()
    nodes = [
        SimulatedNode(0, 0, Script(seconds=None), clock, 1000.0),
        SimulatedNode(1, 0, Script(seconds=5, code=7), clock, 1000.0),
    ]
    gang = Gang(0, nodes, timing=pace_of(clock), started_at=1000.0)
    clock.sleep(6)
    gang.shut_down("its flow ended unexpectedly")
    assert (gang.make_outcome().failed_rank, gang.make_outcome().exit_code) == (1, 7)


def test_a_shut_down_stops_the_nodes_and_waits_for_their_uploads() -> None:
    clock = Clock()
    node = SimulatedNode(0, 0, Script(seconds=None, flushes=40.0), clock, 1000.0)
    gang = Gang(0, [node], timing=pace_of(clock), started_at=1000.0)
    assert not gang.is_over()
    gang.shut_down("its flow ended unexpectedly")
    assert node.stops == [("its flow ended unexpectedly", False)]
    assert gang.is_over()
    assert 1040 <= clock.now < 1042


def test_sixty_four_ranks_fit_into_a_sentence() -> None:
    scripts = [Script(seconds=None, ignores_sigterm=rank % 9 == 8) for rank in range(64)]
    scripts[40] = Script(seconds=191.8, code=134)
    for rank in (41, 42, 43, 50):
        scripts[rank] = Script(seconds=192, code=1)
    _, gang = run(*scripts)
    outcome = gang.make_outcome()
    assert outcome.failed_rank == 40
    assert "Rank 40 failed first, at 00:19:51 UTC, 03:11 after the start: " in outcome.message
    assert outcome.message.endswith(
        "Then ranks 41-43, 50 exited with 1 by themselves within 1 s, ranks 0-7, 9-16, 18-25, "
        "27-34, 36-39, 45-49, 51, 52, 54-61, 63 were stopped, ranks 8, 17, 26, 35, 44, 53, 62 had "
        "to be killed."
    )


def test_an_upload_that_cannot_finish_fails_the_job() -> None:
    substrate, gang = run(Script())
    assert substrate.nodes[0].ended
    gang.statuses[0] = replace(gang.statuses[0], upload_error="rank 0, a.bin: disk full")
    outcome = gang.make_outcome()
    assert (outcome.state, outcome.failed_rank) == (JobState.FAILED, 0)
    assert "disk full" in outcome.message


@pytest.mark.parametrize("requested", [False, True])
def test_a_stop_during_the_final_flush_reaches_the_nodes_that_flush(requested: bool) -> None:
    clock = Clock()
    flushes = Script(seconds=1, flushes=40.0)
    nodes = [
        SimulatedNode(rank, 0, one, clock, 1000.0) for rank, one in enumerate((flushes, Script()))
    ]
    gang = watched(clock, *nodes)
    gang.wait_for_flush(end_repeats=lambda: requested)
    assert [node.stops for node in nodes] == [[("stopped", False)] * requested, []]
    assert gang.make_outcome().state is JobState.COMPLETED


def test_all_or_none() -> None:
    substrate = Simulated([Script()] * 3, refuse=2)
    with pytest.raises(SubstrateError, match="no room"):
        launch_gang(substrate, plan(3), secrets={})
    assert [n.removed for n in substrate.nodes] == [True, True]
    assert all(n.stops[-1][1] for n in substrate.nodes)


def test_only_the_secrets_a_node_names_reach_it() -> None:
    substrate = Simulated([Script()])
    given = plan(1)
    node = replace(given.nodes[0], secret_environment={"T": "token"})
    launch_gang(substrate, replace(given, nodes=(node,)), secrets={"token": "v", "other": "w"})
    assert substrate.secrets == [{"token": "v"}]


def test_ranks_that_were_evicted_together_did_not_end_on_request() -> None:
    evicted = Script(code=143)
    substrate, gang = run(evicted, evicted)
    assert substrate.nodes[0].ended
    told = {"reason": "Eviction API: evicting", "cause": Cause.EVICTED}
    gang.statuses = [replace(status, **told) for status in gang.statuses]
    gang.first_failed_rank = None
    outcome = gang.make_outcome()
    assert (outcome.failure, outcome.cause) == (FailureClass.INFRASTRUCTURE, Cause.EVICTED)
    assert "evicted from its machine: Eviction API" in outcome.message
