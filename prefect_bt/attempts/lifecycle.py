"""Begin and end the attempts of a job; an attempt ends before the next one begins.

A JobContext is a job in one process: its records, and the substrate of its nodes. The flow calls
these functions in its tasks; hooks and commands call them in other processes.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace

from prefect_bt.attempts.failure_causes import diagnose_cause, diagnose_error
from prefect_bt.attempts.gang_policy import Gang
from prefect_bt.attempts.job_context import JobContext
from prefect_bt.attempts.max_run_time import find_run_time_limit
from prefect_bt.attempts.retry_policy import RetryDecision, decide_retry
from prefect_bt.checkpoints.committed.catalog import find_newest
from prefect_bt.checkpoints.committed.load_references import resolve_loaded_checkpoints
from prefect_bt.checkpoints.retention import holds
from prefect_bt.credentials.secrets import resolve_secrets
from prefect_bt.definitions import secret_names
from prefect_bt.errors import (
    AmbiguousError,
    AttemptFailed,
    CheckpointError,
    NotFoundError,
    PrefectBtError,
    StoreError,
)
from prefect_bt.host.job_lock import host_id
from prefect_bt.job_metrics.archive import archive_metrics
from prefect_bt.ledger.job_objects import add_removal, delete_removals, list_removals
from prefect_bt.ledger.node_objects import delete_node_objects
from prefect_bt.ledger.records import (
    ArchivedLog,
    AttemptRecord,
    Cause,
    FailureClass,
    JobRecord,
    Outcome,
    StopReason,
)
from prefect_bt.ledger.states import JobState
from prefect_bt.logs.log_archive import LogArchiver
from prefect_bt.node_paths import WORKSPACE_DIR
from prefect_bt.object_keys import job_prefix
from prefect_bt.planning.context import PlanContext
from prefect_bt.planning.plan import GangPlan, ImagePlan, LoadedCheckpoint, WorkspacePlan
from prefect_bt.planning.planner import (
    list_image_secret_names,
    list_job_secret_names,
    plan_gang,
    plan_image,
)
from prefect_bt.serving.deployment_records import DeploymentLedger
from prefect_bt.substrates import CLUSTERS
from prefect_bt.substrates.protocol import NodeHandle
from prefect_bt.text.control_characters import escape_controls
from prefect_bt.training_cache.snapshot import write_snapshot

MAX_CONCURRENT_REMOVALS = 8
HOLD_RETRY_DELAYS = (0.0, 0.1, 0.5, 2.0)
"""Seconds before each retry to hold a checkpoint that is being deleted."""


def plan_attempt(site: JobContext, attempt: int) -> GangPlan:
    """Return the plan of an attempt; PlanError if the job cannot run on this machine."""
    record, settings, pins = site.record, site.settings, site.ledger.pins
    image = pins.read_image(record.id) if site.substrate.supports_images else ""
    missing: list[str] = []
    try:
        load = _resolve_and_hold(site, attempt)
    except (NotFoundError, AmbiguousError) as error:
        load, missing = (), [str(error)]
    context = PlanContext(
        job_id=record.id,
        job_name=record.name,
        project_id=record.project_id,
        store=site.ledger.store.url,
        capacity=site.substrate.capacity(),
        substrate=site.substrate.name,
        leader_address=site.substrate.leader_address(record.id, attempt),
        attempt=attempt,
        epoch=site.epoch,
        retry_reason=_last_failure_cause(site),
        workspace=plan_workspace(record),
        loaded_checkpoints=load,
        missing_references=tuple(missing),
        supports_images=site.substrate.supports_images,
        pinned_image=image,
        grace=settings.grace,
        settle=settings.settle,
        repeat_delays=settings.upload_repeat_delays,
        retention=record.retention,
        revisions={key: pin.revision for key, pin in pins.read_weights(record.id).items()},
    )
    return plan_gang(site.project.model_copy(update={"team_name": site.team}), context)


def _last_failure_cause(site: JobContext) -> str:
    causes = [outcome.cause for outcome in site.ledger.list_outcomes(site.job_id)]
    return causes[-1].value if causes and causes[-1] else ""


def _resolve_and_hold(site: JobContext, attempt: int) -> tuple[LoadedCheckpoint, ...]:
    """Return the checkpoints that the job loads, protected from deletion by holds."""
    which = ""
    for pause in HOLD_RETRY_DELAYS:
        time.sleep(pause)
        record = site.record
        load = resolve_loaded_checkpoints(
            site.ledger,
            site.project,
            project_id=record.project_id,
            created_before=record.created_at,
        )
        name = f"{record.id}-{attempt:04d}"
        keys, gone = holds.acquire_holds(site.ledger, load, holder=record.id, name=name)
        if not gone:
            site.holds += keys
            return load
        which = ", ".join(f"{one.name} of job {one.job_id}" for one in gone)
    raise CheckpointError(
        f"Job {site.job_id} loads checkpoints that are being deleted: {which}.",
        next_step="Load another checkpoint; `prefect-bt checkpoints list` shows those of a job.",
    )


def release_holds(site: JobContext) -> None:
    """Release the job's holds of checkpoints, because the job has ended."""
    holds.release_holds(site.ledger.store, [*site.holds, *_iter_server_holds(site)])
    site.holds.clear()


def _iter_server_holds(site: JobContext) -> Iterator[str]:
    """Yield the holds of a served revision, which the deployment acquired."""
    serving = site.record.serving
    if serving is None:
        return
    revision = DeploymentLedger(site.ledger).get_revision(serving.deployment, serving.revision)
    for job_id in {job for job, _ in revision.required_checkpoints}:
        with suppress(NotFoundError):
            project_id = site.ledger.get_job(job_id).project_id
            yield holds.hold_key(project_id, job_id, site.job_id)


def plan_workspace(record: JobRecord) -> WorkspacePlan:
    if not record.workspace_sha256:
        return WorkspacePlan(WORKSPACE_DIR)
    key = f"{job_prefix(record.project_id, record.id)}/workspace.tar"
    return WorkspacePlan(WORKSPACE_DIR, key, record.workspace_sha256, record.workspace_size)


def resolve_job_secrets(site: JobContext) -> dict[str, str]:
    """Return the values of all secrets that the job names. SecretError."""
    names = list_job_secret_names(site.project.job, supports_images=site.substrate.supports_images)
    variables = secret_names(site.project.job.runtime.environment_variables)
    return resolve_secrets(names, site.secret_sources, team=site.team, variables=variables)


def resolve_image_secrets(site: JobContext) -> dict[str, str]:
    """Return the values of the secrets of docker_auth. SecretError."""
    return resolve_secrets(
        list_image_secret_names(site.project.job), site.secret_sources, team=site.team
    )


def plan_job_image(site: JobContext) -> ImagePlan:
    """Return the image of the next attempt: the pinned one, else that of the definition."""
    return plan_image(site.project.job, site.ledger.pins.read_image(site.job_id))


def finalize_unfinished_attempts(site: JobContext, *, reason: str) -> None:
    """End every attempt without an outcome: stop, flush, archive the logs, record the outcome.

    An attempt whose nodes had all ended by themselves gets its own outcome; an attempt that is
    stopped here gets an interrupted one. Idempotent; any process that reaches the substrate can
    call it.
    """
    known = {outcome.attempt for outcome in site.ledger.list_outcomes(site.job_id)}
    handles = site.substrate.list_nodes(site.job_id)
    for begun in site.ledger.list_attempts(site.job_id):
        nodes = [handle for handle in handles if handle.attempt == begun.attempt]
        if nodes or begun.attempt not in known:
            outcome = _finalize(site, begun, nodes, reason)
            if begun.attempt not in known:
                record_outcome(site, outcome)


def adopt_gang(site: JobContext) -> Gang | None:
    """Return the running gang of an attempt whose watching process died.

    Return None unless all of its nodes exist: an incomplete launch is finalized instead.
    """
    begun = site.ledger.list_attempts(site.job_id)
    ended = {outcome.attempt for outcome in site.ledger.list_outcomes(site.job_id)}
    if not begun or begun[-1].attempt in ended:
        return None
    last = begun[-1]
    nodes = [h for h in site.substrate.list_nodes(site.job_id) if h.attempt == last.attempt]
    if len(nodes) != site.project.job.compute.node_count:
        return None
    return _make_gang(site, last, nodes)


def _make_gang(site: JobContext, begun: AttemptRecord, nodes: Sequence[NodeHandle]) -> Gang:
    grace = site.settings.grace
    gang = Gang(begun.attempt, nodes, grace=grace, job_id=site.job_id, started_at=begun.at)
    apply_limits(site, gang)
    return gang


def apply_limits(site: JobContext, gang: Gang) -> None:
    """Give the gang the job's maximum run time and its patience with stragglers."""
    gang.run_time_limit = find_run_time_limit(site.ledger, site.record)
    gang.straggler_patience = site.record.retries.straggler_patience


def _finalize(
    site: JobContext, begun: AttemptRecord, nodes: Sequence[NodeHandle], reason: str
) -> Outcome:
    gang = _make_gang(site, begun, nodes)
    seen = [handle.observe() for handle in nodes]
    ended = all(status.commands_ended for status in seen)
    complete = len(nodes) == site.project.job.compute.node_count
    by_themselves = (
        ended and complete and not any(status.stop_reason is StopReason.STOPPED for status in seen)
    )
    stopped = bool(site.ledger.controls.find_stop_request(site.job_id)) and not by_themselves
    gang.shut_down(StopReason.STOPPED if stopped else reason)
    return (
        gang.make_outcome() if stopped or (ended and complete) else gang.interrupted_outcome(reason)
    )


def record_outcome(site: JobContext, outcome: Outcome) -> Outcome:
    """Archive the attempt's logs, then record its outcome. The first outcome is final."""
    sealed = archive_logs(site, outcome.attempt)
    best = find_newest(site.ledger.store, site.record.project_id, site.job_id)
    best_key = best.newest_manifest if best else ""
    shown = escape_controls(outcome.message)
    outcome = replace(outcome, message=shown, newest_checkpoint=best_key, logs=sealed)
    if site.record.serving and outcome.state is JobState.COMPLETED:
        outcome = _server_exit_outcome(outcome)
    site.ledger.end_attempt(site.job_id, outcome, epoch=site.epoch)
    _write_cache_snapshot(site)
    return outcome


def _write_cache_snapshot(site: JobContext) -> None:
    """Record the state of the training cache for other machines. Errors are ignored."""
    cache = site.project.job.runtime.cache_config
    folder, project_id = site.settings.state_dir, site.record.project_id
    with suppress(StoreError, OSError):
        if cache and cache.enabled:
            write_snapshot(site.ledger.store, folder, project_id, host=host_id(folder))


def _server_exit_outcome(outcome: Outcome) -> Outcome:
    """Return the outcome of a server: one that ends by itself has failed, also with exit code 0."""
    found = diagnose_cause(Cause.COMMAND_FAILED)
    return replace(
        outcome,
        state=JobState.FAILED,
        message="The server ended by itself, with exit code 0.",
        failure=found.failure_class,
        cause=found.cause,
    )


def archive_logs(site: JobContext, attempt: int) -> tuple[ArchivedLog, ...]:
    """Copy every rank's log and metrics of the attempt into the store; the logs, by rank."""
    record, nodes = site.record, site.substrate.list_nodes(site.job_id)
    archive_metrics(site.ledger.store, record.project_id, record.id, attempt, nodes)
    sealer = LogArchiver(
        site.ledger.store,
        project_id=record.project_id,
        job_id=record.id,
        attempt=attempt,
        scratch=site.settings.state_dir,
    )
    return sealer.archive(nodes)


def announce_removal(site: JobContext) -> None:
    """Record that the nodes are to be removed, before the job's end is published. StoreError.

    If this process cannot remove them, another one does (jobs.stale_nodes).
    """
    if site.record.substrate in CLUSTERS:
        add_removal(site.ledger.store, site.job_id)


def remove_nodes(site: JobContext, handles: Sequence[NodeHandle] | None = None) -> None:
    """Remove what the job's nodes, or these of them, left on the substrate and published.

    Several ranks at a time, the attempts of one in order: its last keeps what is not saved.
    """
    announced, store = list[str](), site.ledger.store
    attempts = None if handles is None else {handle.attempt for handle in handles}
    if handles is None and site.record.substrate in CLUSTERS:
        with suppress(StoreError):
            announced = list_removals(store, site.job_id)
    by_rank: dict[int, list[NodeHandle]] = {}
    for handle in site.substrate.list_nodes(site.job_id) if handles is None else handles:
        by_rank.setdefault(handle.rank, []).append(handle)

    def remove(handles: list[NodeHandle]) -> None:
        for handle in handles:
            handle.remove()

    with ThreadPoolExecutor(MAX_CONCURRENT_REMOVALS) as pool:
        list(pool.map(remove, by_rank.values()))
    with suppress(StoreError):  # else whoever finds the entry finds no nodes
        delete_removals(store, announced)
        if site.record.substrate not in CLUSTERS:  # the handles of pods do it
            delete_node_objects(store, site.record.project_id, site.job_id, attempts)


def decide_job_retry(site: JobContext) -> RetryDecision:
    """Return whether another attempt follows the job's last outcome."""
    outcomes = site.ledger.list_outcomes(site.job_id)
    if site.ledger.controls.find_stop_request(site.job_id):
        return RetryDecision(False, "the job was asked to stop")
    if not outcomes:
        return RetryDecision(False, "no attempt was made")
    if _was_never_ready(site, outcomes[-1]):
        return RetryDecision(False, "the server has never answered")
    return decide_retry(outcomes, site.record.retries, checkpointing=site.checkpointing)


def _was_never_ready(site: JobContext, last: Outcome) -> bool:
    """Return whether a server ended by itself before it was ready; a retry would do the same."""
    serving = site.record.serving
    if serving is None or last.failure is FailureClass.INFRASTRUCTURE:
        return False
    return not DeploymentLedger(site.ledger).was_ready(serving.deployment, serving.revision)


def finish_gang(site: JobContext, gang: Gang) -> Outcome:
    """Archive the logs and record the outcome. AttemptFailed unless it succeeded or was stopped."""
    outcome = record_outcome(site, gang.make_outcome())
    if outcome.failure is not None:
        raise AttemptFailed(outcome.message, outcome={"attempt": outcome.attempt})
    return outcome


def launch_failure_outcome(attempt: int, error: Exception) -> Outcome:
    """Return the outcome of an attempt that could not be launched."""
    found = diagnose_error(error)
    now = time.time()
    return Outcome(
        attempt=attempt,
        state=JobState.FAILED if found.cause is Cause.MAX_RUN_TIME else JobState.DEPLOY_FAILED,
        message=describe_error(error),
        failure=found.failure_class,
        cause=found.cause,
        cure=found.remedy,
        started_at=now,
        ended_at=now,
    )


def describe_error(error: Exception) -> str:
    """Return the message of an error of this package; the class name and message of any other."""
    return str(error) if isinstance(error, PrefectBtError) else f"{type(error).__name__}: {error}"


def was_preempted(site: JobContext) -> bool:
    """Return whether the last attempt gave up its place, so that the job is to wait again."""
    outcomes = site.ledger.list_outcomes(site.job_id)
    if not outcomes or site.ledger.controls.find_stop_request(site.job_id):
        return False
    return outcomes[-1].cause is Cause.PREEMPTED and outcomes[-1].failure is None


def terminal_state(site: JobContext, default: JobState) -> JobState:
    """Return the terminal state of a job that no attempt follows, by its last outcome.

    A completed training is COMPLETED, also if its process died or a stop was requested afterwards.
    """
    outcomes = site.ledger.list_outcomes(site.job_id)
    last = outcomes[-1].state if outcomes else default
    if last is not JobState.COMPLETED and site.ledger.controls.find_stop_request(site.job_id):
        return JobState.STOPPED
    return last


def missing_states(site: JobContext, end: JobState) -> tuple[JobState, ...]:
    """Return `end` and the unrecorded states before it; empty if the job has ended."""
    now = site.ledger.get_state(site.job_id)
    if now.terminal:
        return ()
    unseen = now is JobState.DEPLOYING and end is JobState.COMPLETED
    return (JobState.RUNNING, end) if unseen else (end,)
