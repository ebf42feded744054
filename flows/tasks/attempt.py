"""One attempt of the gang, as Prefect tasks; retried by Prefect as the job's policy decides."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any

from prefect.client.schemas.objects import State
from prefect.futures import PrefectFuture, wait
from prefect.logging import get_run_logger
from prefect.runtime import flow_run
from prefect.states import Cancelled, Completed, Failed
from prefect.utilities.annotations import quote

from prefect_bt.attempts.failure_causes import diagnose_node
from prefect_bt.attempts.gang_policy import Gang, launch_gang
from prefect_bt.attempts.job_context import JobContext
from prefect_bt.attempts.lifecycle import (
    adopt_gang,
    apply_limits,
    decide_job_retry,
    describe_error,
    finalize_unfinished_attempts,
    finish_gang,
    launch_failure_outcome,
    plan_attempt,
    record_outcome,
    resolve_job_secrets,
    was_preempted,
)
from prefect_bt.attempts.max_run_time import check_run_time
from prefect_bt.errors import AttemptFailed, ServerError, StoreError
from prefect_bt.flows.tasks.job_task import call_task, job_task, outside_transaction, read_result
from prefect_bt.flows.tasks.pull_image import ensure_image
from prefect_bt.flows.tasks.reporting.gang_monitor import monitor_gang
from prefect_bt.flows.tasks.reporting.rank_log import RankLogForwarder
from prefect_bt.flows.tasks.reporting.report import publish_job_card, transition_job
from prefect_bt.flows.tasks.reporting.upload_progress import report_upload_progress
from prefect_bt.flows.tasks.retry_delay import RetryDelay
from prefect_bt.flows.tasks.stop_requests import QueueWatcher, watch_for_stop
from prefect_bt.host.job_lock import host_id
from prefect_bt.ledger.fencing_epochs import Superseded
from prefect_bt.ledger.records import NodePhase, NodeStatus, Outcome, StopReason
from prefect_bt.ledger.states import JobState
from prefect_bt.substrates import CLUSTERS
from prefect_bt.text.durations import format_duration
from prefect_bt.text.number_ranges import format_ranks

LOG_FOLLOW_SECONDS = 5.0
"""Seconds for the tasks that forward logs to read their end, before the files are removed."""

API_RETRY_DELAYS = (1.0, 2.0, 4.0, 8.0, 15.0, 30.0)
"""Seconds before each further question for a secret while Prefect's API does not answer."""


def run_attempts(site: JobContext, mirrored: Sequence[PrefectFuture[Any]] = ()) -> list[State[Any]]:
    """Run attempts until one succeeds, is stopped, or the retry policy says no; AttemptFailed.

    `mirrored`: the tasks that the attempts begin after. Return the states of the tasks `training`
    and `attempt`, for what begins after them.
    """
    if site.resumed and not should_continue(site):
        return []
    budget = site.record.retries
    with RetryDelay(site) as delay:

        def decide(task: Any, task_run: Any, state: State[Any]) -> bool:
            return delay.decide(task, task_run, state)  # Prefect 3.8 calls no bound method

        retried = training.with_options(
            retries=max(1, budget.user + budget.infrastructure + budget.out_of_memory),
            retry_condition_fn=decide,
        )
        after = list(mirrored)
        state = retried(site, delay, quote(after), return_state=True, wait_for=after)
        read_result(state)
        return [state, *delay.attempts[-1:]]
    return []


@job_task("training", raises=True)
def training(site: JobContext, delay: RetryDelay, mirrored: list[PrefectFuture[Any]]) -> Any:
    """Run one attempt; Prefect's retries of this task are the job's.

    A gang that still runs, because only its flow died, is adopted.
    """
    delay.end()
    with outside_transaction(), watch_for_stop(site) as stop:
        gang = adopt_gang(site)
        if gang is None:
            finalize_unfinished_attempts(site, reason="the process that ran it died")
            delay.check_elapsed()
            if stop():
                message = "Stopped before an attempt began."
                if site.ledger.get_state(site.job_id) is not JobState.STOPPED:  # in its delay
                    transition_job(site, JobState.STOPPED, message=message)
                return Cancelled(message=message)
            number = _begin_attempt(site)
        else:
            number = gang.attempt
        delay.has_begun = True
        state = run_attempt(site, number, gang, stop, return_state=True, wait_for=mirrored)
    delay.attempts.append(state)
    ended = read_result(state)
    return Cancelled(message=ended.message) if isinstance(ended, State) else None


def _begin_attempt(site: JobContext) -> int:
    """Record the next attempt; return its number."""
    if site.ledger.get_state(site.job_id) is JobState.DEPLOYING:
        why = "prepared again: the previous attempt never ran"
        transition_job(site, JobState.CREATED, message=why)
    attempt = site.ledger.begin_attempt(
        site.job_id,
        flow_run_id=str(flow_run.get_id()),
        host=host_id(site.settings.state_dir),
        epoch=site.epoch,
    )
    transition_job(site, JobState.DEPLOYING, attempt=attempt)
    return attempt


@job_task("attempt", run_name="attempt {attempt}")
def run_attempt(
    site: JobContext, attempt: int, adopted: Gang | None, stop_requested: Callable[[], bool]
) -> Any:
    """Launch the gang, watch it, flush it. AttemptFailed unless it ended well or was stopped.

    `adopted`: a gang that another process launched, which is dead.
    """
    with outside_transaction():
        if adopted:
            get_run_logger().warning(
                "Attempt %d continues: its %d nodes still run, although the process of the flow "
                "died.",
                attempt,
                len(adopted.handles),
            )
        gang = adopted or _launch(site, attempt, stop_requested)
        if gang:
            outcome = _watch_to_end(site, gang, stop_requested)
        else:
            outcome = site.ledger.list_outcomes(site.job_id)[-1]
    stopped = outcome.state is JobState.STOPPED
    return (Cancelled if stopped else Completed)(message=outcome.message)


def _launch(site: JobContext, attempt: int, stop_requested: Callable[[], bool]) -> Gang | None:
    """Return the attempt's gang; None if the job was stopped before. Record an end either way."""
    try:
        check_run_time(site.ledger, site.record)
        if ensure_image(site, attempt, stop_requested):
            return call_task(provision, site, attempt)
    except Exception as error:
        record_outcome(site, launch_failure_outcome(attempt, error))
        raise
    why = "Stopped while its image was pulled."
    record_outcome(site, Outcome(attempt, JobState.STOPPED, message=why, ended_at=time.time()))
    return None


def _watch_to_end(site: JobContext, gang: Gang, stop_requested: Callable[[], bool]) -> Outcome:
    """Follow the gang to its end; stop every node of it if it cannot be followed."""
    attempt, followers = gang.attempt, list[PrefectFuture[Any]]()
    with (
        report_upload_progress(site, attempt),
        _serving_context(site, gang),
        monitor_gang(site, gang) as monitor,
    ):
        try:
            for handle in gang.handles:
                future: Any = run_node.submit(site, attempt, handle.rank)  # pyright: ignore[reportUnknownMemberType]
                followers.append(future)
            on_change = _make_status_observer(site, attempt)
            preempted = QueueWatcher(site)
            gang.watch(
                stop_requested=stop_requested,
                on_change=on_change,
                preemption_requested=preempted,
                hang=monitor.find_hang,
            )
            call_task(
                upload_checkpoints, site, gang, attempt, lambda: stop_requested() or preempted()
            )
            wait(followers)
        except BaseException as error:
            if isinstance(error, Superseded) and site.record.substrate in CLUSTERS:
                raise  # the machine that runs the job now watches its pods
            lost = isinstance(error, Exception)
            why = f"it could no longer be monitored: {describe_error(error)}" if lost else ""
            gang.shut_down(why or StopReason.STOPPED)
            wait(followers, timeout=LOG_FOLLOW_SECONDS)
            record_outcome(site, gang.interrupted_outcome(why) if lost else gang.make_outcome())
            raise
    return finish_gang(site, gang)


def _serving_context(site: JobContext, gang: Gang) -> AbstractContextManager[None]:
    if site.record.serving is None:
        return nullcontext()
    from prefect_bt.flows.tasks.serving_watch import watch_serving  # no training needs it

    return watch_serving(site, site.record.serving, gang)


@job_task("provision", run_name="attempt {attempt} · provision")
def provision(site: JobContext, attempt: int) -> Gang:
    """Resolve the secrets and the plan, then launch all nodes or none."""
    plan = plan_attempt(site, attempt)
    site.ledger.save_resources(site.job_id, plan.attempt, plan.nodes[0].resources)
    secrets = _resolve_secrets(site)
    if site.record.serving is not None:
        from prefect_bt.flows.tasks.serving_watch import add_server_key  # no training needs it

        plan, secrets = add_server_key(site, plan, secrets)
    site.ledger.get_epochs(site.job_id).check(site.epoch)
    gang = launch_gang(site.substrate, plan, secrets=secrets)
    apply_limits(site, gang)
    return gang


def _resolve_secrets(site: JobContext) -> dict[str, str]:
    """Return the secrets; wait for a Prefect server that is being restarted."""
    for pause in API_RETRY_DELAYS:
        try:
            return resolve_job_secrets(site)
        except ServerError:
            time.sleep(pause)
    return resolve_job_secrets(site)


@job_task("run-node", run_name="attempt {attempt} · rank {rank}")
def run_node(site: JobContext, attempt: int, rank: int) -> State[Any]:
    """Follow one rank to its end, showing a bounded sample of its log; changes nothing."""
    nodes = [node for node in site.substrate.list_nodes(site.job_id) if node.attempt == attempt]
    handle = next(node for node in nodes if node.rank == rank)
    log = RankLogForwarder(handle, lines_per_second=max(1.0, 100 / len(nodes)))
    while not (status := handle.observe()).is_over:
        log.forward()
        time.sleep(0.2)
    log.finish()
    return _node_state(status)


@job_task("upload-checkpoints", run_name="attempt {attempt} · upload checkpoints")
def upload_checkpoints(
    site: JobContext, gang: Gang, attempt: int, end_repeats: Callable[[], bool]
) -> State[Any]:
    """Wait for the final flush of every rank. A job is not COMPLETED before it ends.

    `end_repeats`: as in Gang.wait_for_flush.
    """
    _ = site, attempt
    gang.wait_for_flush(end_repeats=end_repeats)
    failed = [f"rank {s.rank}: {s.upload_error}" for s in gang.statuses if s.upload_error]
    if failed:
        return Failed(message=f"Not committed: {'; '.join(failed)}")
    left = [name for status in gang.statuses for name in status.uncommitted]
    if left:
        return Completed(message=f"Not committed: {', '.join(left)}.")
    return Completed(message="Every complete checkpoint is committed.")


def should_continue(site: JobContext) -> bool:
    """Return whether an attempt follows the one that a crash of the flow interrupted.

    A gang that still runs is adopted. An attempt that ended before the crash keeps its outcome: a
    completed training is not repeated.
    """
    gang = adopt_gang(site)
    if gang is not None and not gang.is_over():
        return True
    finalize_unfinished_attempts(site, reason="the process that ran it died")
    if site.ledger.controls.find_stop_request(site.job_id):
        return False
    outcomes = site.ledger.list_outcomes(site.job_id)
    if not outcomes or was_preempted(site) or decide_job_retry(site).retry:
        return True
    if outcomes[-1].failure is not None:
        raise AttemptFailed(outcomes[-1].message, outcome={"attempt": outcomes[-1].attempt})
    return False


def _make_status_observer(site: JobContext, attempt: int) -> Callable[[Sequence[NodeStatus]], None]:
    shown: dict[int, str] = {}
    has_logged_end = is_running = False

    def observe(statuses: Sequence[NodeStatus]) -> None:
        nonlocal has_logged_end, is_running
        for status in statuses:
            if status.waiting and shown.get(status.rank) != status.waiting:
                shown[status.rank] = status.waiting
                get_run_logger().info("Rank %d waits: %s", status.rank, status.waiting)
        done = [status.rank for status in statuses if status.exit_code == 0]
        if done and not has_logged_end and not all(status.commands_ended for status in statuses):
            has_logged_end = True
            patience = format_duration(site.record.retries.straggler_patience)
            message = "The commands of %s have ended. A rank is stopped when inactive for %s."
            get_run_logger().info(message, format_ranks(done), patience)
        started = any(status.started_at is not None for status in statuses)
        # Watching goes on without a store; the job's end is written with more patience.
        with suppress(StoreError):
            if started and not is_running:
                if site.ledger.get_state(site.job_id) is not JobState.RUNNING:
                    transition_job(site, JobState.RUNNING, attempt=attempt)
                    publish_job_card(site)
                is_running = True

    return observe


def _node_state(status: NodeStatus) -> State[Any]:
    if status.phase is NodePhase.LOST or (status.exit_code and not status.reason):
        return Failed(message=diagnose_node(status).message)
    if status.stop_reason is StopReason.STRAGGLER:
        return Completed(message="Stopped: inactive after another rank had exited with 0.")
    if status.reason:
        return Cancelled(message=f"Ended: {status.reason}.")
    return Completed(message="Exited with 0.")
