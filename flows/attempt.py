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

from prefect_bt.attempt_resources import save_resources
from prefect_bt.attempts import (
    JobSite,
    adopt,
    close_attempt,
    describe,
    end_gang,
    equip_gang,
    judge_retry,
    plan_attempt,
    reap,
    refuse,
    site_secrets,
)
from prefect_bt.diagnosis import diagnose
from prefect_bt.epochs import Superseded
from prefect_bt.errors import AttemptFailed, ServerError, StoreError
from prefect_bt.flows.backoff import wait_to_retry
from prefect_bt.flows.pulling import bring_image
from prefect_bt.flows.ranklog import RankLog
from prefect_bt.flows.reporting import move_job, report_job
from prefect_bt.flows.stopping import watching_for_stop
from prefect_bt.flows.uploading import uploads_shown
from prefect_bt.gang import Gang, launch_gang
from prefect_bt.maxruntime import check_run_time
from prefect_bt.ownership import host_of
from prefect_bt.records import JobState, NodePhase, NodeStatus, Outcome

FOLLOW_SECONDS = 5.0
"""For those who show a rank's log, to see its end before its files go; they look often."""

SERVER_PAUSES = (1.0, 2.0, 4.0, 8.0, 15.0, 30.0)
"""Seconds before each further question for a secret while Prefect's API does not answer."""

MOST_RETRIES = 1000
"""Prefect's own bound; the job's policy decides (retrying.py)."""


def attempt_until_done(site: JobSite) -> None:
    """Attempts until one succeeds, is stopped, or the retry policy says no; AttemptFailed."""
    if site.resumed and not _goes_on(site):
        return

    def condition(task: Any, task_run: Any, state: State[Any]) -> bool:
        _ = task, task_run, state
        return not _is_superseded(site) and judge_retry(site).retry

    training_attempt.with_options(
        retries=MOST_RETRIES, retry_delay_seconds=0, retry_condition_fn=condition
    )(site)


@task(name="training-attempt", cache_policy=NO_CACHE, persist_result=False)
def training_attempt(site: JobSite) -> str:
    """Launch the gang, watch it, flush it; returns how it ended. AttemptFailed when badly.

    A gang that is there already, because whoever watched it died, is watched on.
    """
    with watching_for_stop(site) as stop:
        gang = adopt(site)
        if gang is not None:
            return _see_through(site, gang, stop, adopted=True)
        return _begin(site, stop)


def _begin(site: JobSite, stop: Callable[[], str]) -> str:
    """The next attempt, from what the last one left to its own end."""
    reap(site, reason="the process that ran it died")
    wait_to_retry(site, stop)
    if stop():
        move_job(site, JobState.STOPPED, message="Stopped before an attempt began.")
        return JobState.STOPPED.value
    if site.ledger.state(site.job_id) is JobState.DEPLOYING:
        move_job(site, JobState.CREATED, message="the attempt before never ran")
    attempt = site.ledger.begin_attempt(
        site.job_id,
        flow_run_id=str(flow_run.get_id()),
        host=host_of(site.settings.state_dir),
        epoch=site.epoch,
    )
    move_job(site, JobState.DEPLOYING, attempt=attempt)
    with recording(site, attempt):
        check_run_time(site.ledger, site.record)
        if not bring_image(site, stop):
            why = "Stopped while its image was pulled."
            outcome = Outcome(attempt, JobState.STOPPED, message=why, ended_at=time.time())
            return close_attempt(site, outcome).state.value
        gang = provision(site, attempt)
    return _see_through(site, gang, stop)


def _see_through(
    site: JobSite, gang: Gang, stop: Callable[[], str], *, adopted: bool = False
) -> str:
    """Watch the gang to its end. `adopted`: another process launched it, and is dead."""
    attempt = gang.attempt
    if adopted:
        get_run_logger().info(
            "Attempt %d goes on: its %d nodes outlived the process that watched them.",
            attempt,
            len(gang.handles),
        )
    with uploads_shown(site, attempt), _serving(site, gang), stopping(site, gang) as nodes:
        nodes += [_follow(site, attempt, handle.rank) for handle in gang.handles]
        gang.watch(stop_requested=stop, observe=_on_change(site, attempt))
        upload_checkpoints(site, gang)
        wait(nodes)
    return end_gang(site, gang).state.value


def _serving(site: JobSite, gang: Gang) -> AbstractContextManager[None]:
    if site.record.serving is None:
        return nullcontext()
    from prefect_bt.flows.serving import serving_watched  # no training needs it

    return serving_watched(site, site.record.serving, gang)


@task(name="provision", cache_policy=NO_CACHE, persist_result=False)
def provision(site: JobSite, attempt: int) -> Gang:
    """Secrets and plan first, then all nodes or none."""
    plan = plan_attempt(site, attempt)
    save_resources(site.ledger, plan)
    secrets = _secrets(site)
    if site.record.serving is not None:
        from prefect_bt.flows.serving import keyed  # no training needs it

        plan, secrets = keyed(site, plan, secrets)
    site.ledger.epochs(site.job_id).check(site.epoch)
    gang = launch_gang(site.substrate, plan, secrets=secrets)
    return equip_gang(site, gang)


def _secrets(site: JobSite) -> dict[str, str]:
    """A server that is being started again is no failure of the attempt."""
    for pause in SERVER_PAUSES:
        try:
            return site_secrets(site)
        except ServerError:
            time.sleep(pause)
    return site_secrets(site)


@task(
    name="run-node",
    task_run_name="run-node rank-{rank}",
    cache_policy=NO_CACHE,
    persist_result=False,
)
def run_node(site: JobSite, attempt: int, rank: int) -> State[Any]:
    """Follow one rank to its end, showing a bounded sample of its log; changes nothing."""
    nodes = [node for node in site.substrate.find(site.job_id) if node.attempt == attempt]
    handle = next(node for node in nodes if node.rank == rank)
    log = RankLog(handle, lines_per_second=max(1.0, 100 / len(nodes)))
    while not (status := handle.observe()).over:
        log.forward()
        time.sleep(0.2)
    log.finish()
    return _node_state(status)


@task(name="upload-checkpoints", cache_policy=NO_CACHE, persist_result=False)
def upload_checkpoints(site: JobSite, gang: Gang) -> str:
    """Wait for every rank's final flush; COMPLETED waits for it (decision 8)."""
    _ = site
    gang.drain(lambda _: None)
    left = [name for status in gang.statuses for name in status.uncommitted]
    return f"flushed; not whole, so not committed: {', '.join(left)}" if left else "flushed"


@contextmanager
def recording(site: JobSite, attempt: int) -> Generator[None]:
    """An attempt that could not be launched still has an outcome."""
    try:
        yield
    except Exception as error:
        close_attempt(site, refuse(attempt, error))
        raise


@contextmanager
def stopping(site: JobSite, gang: Gang) -> Generator[list[PrefectFuture[Any]]]:
    """Whatever ends this block, no node goes on: the one road of decision 11.

    The futures of those who follow the nodes go into the list that is yielded.
    """
    followers: list[PrefectFuture[Any]] = []
    try:
        yield followers
    except Exception as error:
        why = f"it could not be watched any more: {describe(error)}"
        gang.shut_down(why)
        wait(followers, timeout=FOLLOW_SECONDS)
        close_attempt(site, gang.cut_short(why))
        raise
    except BaseException:
        gang.shut_down("stopped")
        wait(followers, timeout=FOLLOW_SECONDS)
        close_attempt(site, gang.outcome())
        raise


def _is_superseded(site: JobSite) -> bool:
    """Return whether another machine runs the job, so that its attempts are not ours to retry."""
    try:
        site.ledger.epochs(site.job_id).check(site.epoch)
    except Superseded:
        return True
    return False


def _goes_on(site: JobSite) -> bool:
    """After a crash: whether the attempt that it cut short is followed by another.

    A gang that still runs goes on. What had ended before the crash stands: a finished training is
    not run again.
    """
    gang = adopt(site)
    if gang is not None and not gang.is_over():
        return True
    reap(site, reason="the process that ran it died")
    if site.ledger.stop_request(site.job_id):
        return False
    outcomes = site.ledger.outcomes(site.job_id)
    if not outcomes or judge_retry(site).retry:
        return True
    if outcomes[-1].failure is not None:
        raise AttemptFailed(outcomes[-1].message, outcome={"attempt": outcomes[-1].attempt})
    return False


def _follow(site: JobSite, attempt: int, rank: int) -> PrefectFuture[Any]:
    future: Any = run_node.submit(site, attempt, rank)  # pyright: ignore[reportUnknownMemberType]
    return future


def _on_change(site: JobSite, attempt: int) -> Callable[[Sequence[NodeStatus]], None]:
    def observe(statuses: Sequence[NodeStatus]) -> None:
        started = any(status.started_at is not None for status in statuses)
        # Watching goes on without a store; the job's end is written with more patience.
        with suppress(StoreError):
            if started and site.ledger.state(site.job_id) is not JobState.RUNNING:
                move_job(site, JobState.RUNNING, attempt=attempt)
                report_job(site)

    return observe


def _node_state(status: NodeStatus) -> State[Any]:
    if status.phase is NodePhase.LOST or (status.exit_code and not status.reason):
        return Failed(message=diagnose(status).sentence)
    if status.reason and status.reason != "straggler":
        return Cancelled(message=f"Ended: {status.reason}.")
    return Completed(message="Exited with 0.")
