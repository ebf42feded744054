"""One attempt of the gang, as Prefect tasks; retried by Prefect as the job's policy decides."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import Any

from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State
from prefect.futures import PrefectFuture, wait
from prefect.logging import get_run_logger
from prefect.runtime import flow_run
from prefect.states import Cancelled, Completed, Failed

from prefect_bt.attempts.diagnosis import diagnose_node
from prefect_bt.attempts.gang import Gang, launch_gang
from prefect_bt.attempts.job_context import JobContext
from prefect_bt.attempts.lifecycle import (
    adopt_gang,
    configure_gang,
    decide_job_retry,
    describe_error,
    finalize_unfinished_attempts,
    finish_gang,
    launch_failure_outcome,
    plan_attempt,
    record_outcome,
    resolve_job_secrets,
)
from prefect_bt.attempts.max_run_time import check_run_time
from prefect_bt.attempts.resources import save_resources
from prefect_bt.errors import AttemptFailed, ServerError, StoreError
from prefect_bt.flows.tasks.pull_image import ensure_image
from prefect_bt.flows.tasks.rank_log import RankLogForwarder
from prefect_bt.flows.tasks.report import publish_job_card, transition_job
from prefect_bt.flows.tasks.retry_delay import wait_before_retry
from prefect_bt.flows.tasks.stop_requests import watch_for_stop
from prefect_bt.flows.tasks.upload_progress import report_upload_progress
from prefect_bt.host.job_lock import host_id
from prefect_bt.ledger.fencing_epochs import Superseded
from prefect_bt.ledger.records import NodePhase, NodeStatus, Outcome, StopReason
from prefect_bt.ledger.states import JobState

LOG_FOLLOW_SECONDS = 5.0
"""For those who show a rank's log, to see its end before its files go; they look often."""

API_RETRY_DELAYS = (1.0, 2.0, 4.0, 8.0, 15.0, 30.0)
"""Seconds before each further question for a secret while Prefect's API does not answer."""

MAX_RETRIES = 1000
"""Prefect's own bound; the job's policy decides (attempts.retry_policy)."""


def run_attempts(site: JobContext) -> None:
    """Attempts until one succeeds, is stopped, or the retry policy says no; AttemptFailed."""
    if site.resumed and not _should_continue(site):
        return

    def condition(task: Any, task_run: Any, state: State[Any]) -> bool:
        _ = task, task_run, state
        return not _is_superseded(site) and decide_job_retry(site).retry

    training_attempt.with_options(
        retries=MAX_RETRIES, retry_delay_seconds=0, retry_condition_fn=condition
    )(site)


@task(name="training-attempt", cache_policy=NO_CACHE, persist_result=False)
def training_attempt(site: JobContext) -> str:
    """Launch the gang, watch it, flush it; returns how it ended. AttemptFailed when badly.

    A gang that is there already, because whoever watched it died, is watched on.
    """
    with watch_for_stop(site) as stop:
        gang = adopt_gang(site)
        if gang is not None:
            return _watch_to_end(site, gang, stop, adopted=True)
        return _start_attempt(site, stop)


def _start_attempt(site: JobContext, stop_requested: Callable[[], bool]) -> str:
    """The next attempt, from what the last one left to its own end."""
    finalize_unfinished_attempts(site, reason="the process that ran it died")
    wait_before_retry(site, stop_requested)
    if stop_requested():
        transition_job(site, JobState.STOPPED, message="Stopped before an attempt began.")
        return JobState.STOPPED.value
    if site.ledger.get_state(site.job_id) is JobState.DEPLOYING:
        transition_job(site, JobState.CREATED, message="the attempt before never ran")
    attempt = site.ledger.begin_attempt(
        site.job_id,
        flow_run_id=str(flow_run.get_id()),
        host=host_id(site.settings.state_dir),
        epoch=site.epoch,
    )
    transition_job(site, JobState.DEPLOYING, attempt=attempt)
    with record_failed_launch(site, attempt):
        check_run_time(site.ledger, site.record)
        if not ensure_image(site, stop_requested):
            why = "Stopped while its image was pulled."
            outcome = Outcome(attempt, JobState.STOPPED, message=why, ended_at=time.time())
            return record_outcome(site, outcome).state.value
        gang = provision(site, attempt)
    return _watch_to_end(site, gang, stop_requested)


def _watch_to_end(
    site: JobContext, gang: Gang, stop_requested: Callable[[], bool], *, adopted: bool = False
) -> str:
    """Watch the gang to its end. `adopted`: another process launched it, and is dead."""
    attempt = gang.attempt
    if adopted:
        get_run_logger().info(
            "Attempt %d goes on: its %d nodes outlived the process that watched them.",
            attempt,
            len(gang.handles),
        )
    with (
        report_upload_progress(site, attempt),
        _serving_context(site, gang),
        stop_gang_on_error(site, gang) as nodes,
    ):
        nodes += [_follow_rank(site, attempt, handle.rank) for handle in gang.handles]
        gang.watch(stop_requested=stop_requested, on_change=_make_status_observer(site, attempt))
        upload_checkpoints(site, gang)
        wait(nodes)
    return finish_gang(site, gang).state.value


def _serving_context(site: JobContext, gang: Gang) -> AbstractContextManager[None]:
    if site.record.serving is None:
        return nullcontext()
    from prefect_bt.flows.tasks.serving_watch import watch_serving  # no training needs it

    return watch_serving(site, site.record.serving, gang)


@task(name="provision", cache_policy=NO_CACHE, persist_result=False)
def provision(site: JobContext, attempt: int) -> Gang:
    """Secrets and plan first, then all nodes or none."""
    plan = plan_attempt(site, attempt)
    save_resources(site.ledger, plan)
    secrets = _resolve_secrets(site)
    if site.record.serving is not None:
        from prefect_bt.flows.tasks.serving_watch import add_server_key  # no training needs it

        plan, secrets = add_server_key(site, plan, secrets)
    site.ledger.get_epochs(site.job_id).check(site.epoch)
    gang = launch_gang(site.substrate, plan, secrets=secrets)
    return configure_gang(site, gang)


def _resolve_secrets(site: JobContext) -> dict[str, str]:
    """A server that is being started again is no failure of the attempt."""
    for pause in API_RETRY_DELAYS:
        try:
            return resolve_job_secrets(site)
        except ServerError:
            time.sleep(pause)
    return resolve_job_secrets(site)


@task(
    name="run-node",
    task_run_name="run-node rank-{rank}",
    cache_policy=NO_CACHE,
    persist_result=False,
)
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


@task(name="upload-checkpoints", cache_policy=NO_CACHE, persist_result=False)
def upload_checkpoints(site: JobContext, gang: Gang) -> str:
    """Wait for the final flush of every rank. A job is not COMPLETED before it ends."""
    _ = site
    gang.wait_for_flush(lambda _: None)
    left = [name for status in gang.statuses for name in status.uncommitted]
    return f"flushed; not whole, so not committed: {', '.join(left)}" if left else "flushed"


@contextmanager
def record_failed_launch(site: JobContext, attempt: int) -> Generator[None]:
    """An attempt that could not be launched still has an outcome."""
    try:
        yield
    except Exception as error:
        record_outcome(site, launch_failure_outcome(attempt, error))
        raise


@contextmanager
def stop_gang_on_error(site: JobContext, gang: Gang) -> Generator[list[PrefectFuture[Any]]]:
    """Stop every node of the gang if the block raises.

    Yield a list for the futures of the tasks that follow the nodes.
    """
    followers: list[PrefectFuture[Any]] = []
    try:
        yield followers
    except Exception as error:
        why = f"it could not be watched any more: {describe_error(error)}"
        gang.shut_down(why)
        wait(followers, timeout=LOG_FOLLOW_SECONDS)
        record_outcome(site, gang.interrupted_outcome(why))
        raise
    except BaseException:
        gang.shut_down(StopReason.STOPPED)
        wait(followers, timeout=LOG_FOLLOW_SECONDS)
        record_outcome(site, gang.make_outcome())
        raise


def _is_superseded(site: JobContext) -> bool:
    """Return whether another machine runs the job, so that its attempts are not ours to retry."""
    try:
        site.ledger.get_epochs(site.job_id).check(site.epoch)
    except Superseded:
        return True
    return False


def _should_continue(site: JobContext) -> bool:
    """After a crash: whether the attempt that it cut short is followed by another.

    A gang that still runs goes on. What had ended before the crash stands: a finished training is
    not run again.
    """
    gang = adopt_gang(site)
    if gang is not None and not gang.is_over():
        return True
    finalize_unfinished_attempts(site, reason="the process that ran it died")
    if site.ledger.find_stop_request(site.job_id):
        return False
    outcomes = site.ledger.list_outcomes(site.job_id)
    if not outcomes or decide_job_retry(site).retry:
        return True
    if outcomes[-1].failure is not None:
        raise AttemptFailed(outcomes[-1].message, outcome={"attempt": outcomes[-1].attempt})
    return False


def _follow_rank(site: JobContext, attempt: int, rank: int) -> PrefectFuture[Any]:
    future: Any = run_node.submit(site, attempt, rank)  # pyright: ignore[reportUnknownMemberType]
    return future


def _make_status_observer(site: JobContext, attempt: int) -> Callable[[Sequence[NodeStatus]], None]:
    def observe(statuses: Sequence[NodeStatus]) -> None:
        started = any(status.started_at is not None for status in statuses)
        # Watching goes on without a store; the job's end is written with more patience.
        with suppress(StoreError):
            if started and site.ledger.get_state(site.job_id) is not JobState.RUNNING:
                transition_job(site, JobState.RUNNING, attempt=attempt)
                publish_job_card(site)

    return observe


def _node_state(status: NodeStatus) -> State[Any]:
    if status.phase is NodePhase.LOST or (status.exit_code and not status.reason):
        return Failed(message=diagnose_node(status).message)
    if status.reason and status.stop_reason is not StopReason.STRAGGLER:
        return Cancelled(message=f"Ended: {status.reason}.")
    return Completed(message="Exited with 0.")
