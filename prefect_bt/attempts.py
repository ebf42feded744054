"""From one attempt to the next: what is left of the last is put away before another starts.

A site is a job seen from one process: its records, and the substrate that runs its nodes. The flow
calls these functions from its tasks; hooks and commands call them from other processes.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace

from prefect_bt.cachesnapshot import write_snapshot
from prefect_bt.checkpoints import holds
from prefect_bt.checkpoints.catalogue import newest
from prefect_bt.contract import WORKSPACE_DIR, job_prefix
from prefect_bt.diagnosis import diagnose_cause, diagnose_error
from prefect_bt.errors import (
    AmbiguousError,
    AttemptFailed,
    CheckpointError,
    NotFoundError,
    PrefectBtError,
    StoreError,
)
from prefect_bt.gang import Gang
from prefect_bt.jobs import load_definition
from prefect_bt.lastsave import find_last_save
from prefect_bt.ledger import Ledger
from prefect_bt.loading import resolve_load
from prefect_bt.maxruntime import find_run_time
from prefect_bt.ownership import Claim, host_of
from prefect_bt.plan import GangPlan, ImagePlan, LoadedCheckpoint, WorkspacePlan
from prefect_bt.planning import PlanContext, image_secrets, plan_gang, plan_image, secret_names
from prefect_bt.records import (
    AttemptRecord,
    Cause,
    FailureClass,
    JobRecord,
    JobState,
    Outcome,
    SealedLog,
)
from prefect_bt.retrying import RetryDecision, decide_retry
from prefect_bt.sealing import Sealer
from prefect_bt.secrets import SecretSource, resolve_secrets
from prefect_bt.serving.deployments import Deployments
from prefect_bt.settings import Settings
from prefect_bt.substrates.protocol import NodeHandle, Substrate
from prefect_bt.visible import visible

REMOVED_AT_ONCE = 8
HOLD_PAUSES = (0.0, 0.1, 0.5, 2.0)
"""Seconds before each try to hold a checkpoint that somebody is deleting."""


class JobSite:
    """A job, its records and its substrate, for one process."""

    def __init__(
        self,
        ledger: Ledger,
        substrate: Substrate,
        record: JobRecord,
        *,
        settings: Settings,
        secret_sources: Sequence[SecretSource] = (),
    ) -> None:
        self.ledger, self.substrate, self.record = ledger, substrate, record
        self.settings, self.secret_sources = settings, tuple(secret_sources)
        self.claim = Claim(settings.state_dir)
        """The job's lock, for whoever runs the job; nothing is claimed in those who look at it."""
        self.project = load_definition(record)
        self.holds: list[str] = []
        """Keys of what says that this job needs checkpoints of others."""
        self.notes: tuple[str, ...] = ()
        """Notes of the plan, if this process accepted the job."""
        self.epoch = 0
        """Epoch in which this process acts for the job (prefect_bt.epochs); 0 if it only reads."""
        self.resumed = False
        """Whether this process takes up a job that another was running when it died."""

    @property
    def job_id(self) -> str:
        return self.record.id

    @property
    def team(self) -> str:
        """The team that owns the job's project, whatever team its definition names."""
        return self.ledger.team_of(self.record.project_id)

    @property
    def checkpointing(self) -> bool:
        return self.project.job.runtime.checkpointing_config.enabled


def plan_attempt(site: JobSite, attempt: int) -> GangPlan:
    """The plan of this attempt; PlanError when the job cannot run here (any more)."""
    record, settings = site.record, site.settings
    missing: list[str] = []
    try:
        load = _load_held(site, attempt)
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
        retry_reason=_last_cause(site),
        workspace=workspace_plan(record),
        load=load,
        missing=tuple(missing),
        images=site.substrate.images,
        image=site.ledger.pinned_image(record.id) if site.substrate.images else "",
        grace=settings.grace,
        settle=settings.settle,
        retention=record.retention,
        revisions={key: pin.revision for key, pin in site.ledger.pinned_weights(record.id).items()},
    )
    return plan_gang(site.project.model_copy(update={"team_name": site.team}), context)


def _last_cause(site: JobSite) -> str:
    causes = [outcome.cause for outcome in site.ledger.outcomes(site.job_id)]
    return causes[-1].value if causes and causes[-1] else ""


def _load_held(site: JobSite, attempt: int) -> tuple[LoadedCheckpoint, ...]:
    """What the job loads, held so that nobody deletes it before the nodes have it."""
    which = ""
    for pause in HOLD_PAUSES:
        time.sleep(pause)
        record = site.record
        load = resolve_load(
            site.ledger, site.project, project_id=record.project_id, before=record.created_at
        )
        name = f"{record.id}-{attempt:04d}"
        keys, gone = holds.take(site.ledger, load, holder=record.id, name=name)
        if not gone:
            site.holds += keys
            return load
        which = ", ".join(f"{one.name} of job {one.job_id}" for one in gone)
    raise CheckpointError(
        f"Job {site.job_id} is to load what is being deleted: {which}.",
        next_step="Load another checkpoint; `prefect-bt checkpoints list` shows those of a job.",
    )


def release_holds(site: JobSite) -> None:
    """The job is over and needs no checkpoint of another any more."""
    holds.release(site.ledger.store, [*site.holds, *_holds_of_server(site)])
    site.holds.clear()


def _holds_of_server(site: JobSite) -> Iterator[str]:
    """Of what it serves; whoever deployed it took them."""
    serving = site.record.serving
    if serving is None:
        return
    revision = Deployments(site.ledger).revision(serving.deployment, serving.revision)
    for job_id in {job for job, _ in revision.held}:
        with suppress(NotFoundError):
            project_id = site.ledger.job(job_id).project_id
            yield holds.hold_key(project_id, job_id, site.job_id)


def workspace_plan(record: JobRecord) -> WorkspacePlan:
    if not record.workspace_sha256:
        return WorkspacePlan(WORKSPACE_DIR)
    key = f"{job_prefix(record.project_id, record.id)}/workspace.tar"
    return WorkspacePlan(WORKSPACE_DIR, key, record.workspace_sha256, record.workspace_size)


def site_secrets(site: JobSite) -> dict[str, str]:
    """Values of every secret the job names; SecretError before any compute is taken."""
    names = secret_names(site.project.job, images=site.substrate.images)
    return resolve_secrets(names, site.secret_sources, team=site.team)


def site_image_secrets(site: JobSite) -> dict[str, str]:
    """Those of docker_auth alone; SecretError."""
    return resolve_secrets(image_secrets(site.project.job), site.secret_sources, team=site.team)


def image_plan(site: JobSite) -> ImagePlan:
    """The image that the next attempt needs: what the job pinned, else what it defines."""
    return plan_image(site.project.job, site.ledger.pinned_image(site.job_id))


def reap(site: JobSite, *, reason: str) -> None:
    """Put away every attempt that nobody watched to its end: stop, flush, keep logs, record.

    An attempt whose nodes had all ended by themselves gets the outcome they earned; one that is
    stopped here was cut short. Idempotent, and callable from any process that can reach the
    substrate.
    """
    known = {outcome.attempt for outcome in site.ledger.outcomes(site.job_id)}
    handles = site.substrate.find(site.job_id)
    for begun in site.ledger.attempts(site.job_id):
        nodes = [handle for handle in handles if handle.attempt == begun.attempt]
        if nodes or begun.attempt not in known:
            outcome = _put_away(site, begun, nodes, reason)
            if begun.attempt not in known:
                close_attempt(site, outcome)


def adopt(site: JobSite) -> Gang | None:
    """The gang of an attempt that nobody watches any more, to be watched as if nothing had been.

    None unless all of its nodes are there: a launch that was cut short is put away instead.
    """
    begun = site.ledger.attempts(site.job_id)
    if not begun or begun[-1].attempt in {o.attempt for o in site.ledger.outcomes(site.job_id)}:
        return None
    last = begun[-1]
    nodes = [h for h in site.substrate.find(site.job_id) if h.attempt == last.attempt]
    if len(nodes) != site.project.job.compute.node_count:
        return None
    return equip_gang(site, Gang(last.attempt, nodes, grace=site.settings.grace, began=last.at))


def equip_gang(site: JobSite, gang: Gang) -> Gang:
    """Give a gang what it needs of the job's record: the limit of its commands, a grace to save."""
    gang.run_time = find_run_time(site.ledger, site.record)
    return give_time_to_save(site, gang)


def give_time_to_save(site: JobSite, gang: Gang) -> Gang:
    """A stop of this gang waits for as long as a checkpoint takes to write, as far as is known."""
    settings = site.settings

    def grace() -> float:
        with suppress(StoreError):
            found = find_last_save(
                site.ledger, site.record, grace=settings.grace, notice=settings.notice
            )
            return found.grace if found else gang.grace
        return gang.grace

    gang.grace_to_save = grace
    return gang


def _put_away(
    site: JobSite, begun: AttemptRecord, nodes: Sequence[NodeHandle], reason: str
) -> Outcome:
    gang = Gang(begun.attempt, nodes, grace=site.settings.grace, began=begun.at)
    equip_gang(site, gang)
    seen = [handle.observe() for handle in nodes]
    ended = all(status.commands_ended for status in seen)
    complete = len(nodes) == site.project.job.compute.node_count
    by_themselves = ended and complete and not any(status.reason == "stopped" for status in seen)
    stopped = bool(site.ledger.stop_request(site.job_id)) and not by_themselves
    gang.shut_down("stopped" if stopped else reason)
    return gang.outcome() if stopped or (ended and complete) else gang.cut_short(reason)


def close_attempt(site: JobSite, outcome: Outcome) -> Outcome:
    """Seal the attempt's logs, then write down how it ended. The first outcome stands."""
    sealed = seal_logs(site, outcome.attempt)
    best = newest(site.ledger.store, site.record.project_id, site.job_id)
    best_key = best.newest_manifest if best else ""
    shown = visible(outcome.message)
    outcome = replace(outcome, message=shown, newest_checkpoint=best_key, logs=sealed)
    if site.record.serving and outcome.state is JobState.COMPLETED:
        outcome = _server_left(outcome)
    site.ledger.end_attempt(site.job_id, outcome, epoch=site.epoch)
    _keep_cache_snapshot(site)
    return outcome


def _keep_cache_snapshot(site: JobSite) -> None:
    """For other machines to see. Only for show: no fault of it is the attempt's."""
    cache = site.project.job.runtime.cache_config
    folder, project_id = site.settings.state_dir, site.record.project_id
    with suppress(StoreError, OSError):
        if cache and cache.enabled:
            write_snapshot(site.ledger.store, folder, project_id, host=host_of(folder))


def _server_left(outcome: Outcome) -> Outcome:
    """A server is never done: one that ends by itself failed, whatever it exits with."""
    found = diagnose_cause(Cause.COMMAND_FAILED)
    return replace(
        outcome,
        state=JobState.FAILED,
        message="The server ended by itself, with exit code 0.",
        failure=found.failure,
        cause=found.cause,
    )


def seal_logs(site: JobSite, attempt: int) -> tuple[SealedLog, ...]:
    """Copy every rank's whole log of the attempt into the store; what was sealed, by rank."""
    sealer = Sealer(
        site.ledger.store,
        project_id=site.record.project_id,
        job_id=site.job_id,
        attempt=attempt,
        scratch=site.settings.state_dir,
    )
    return sealer.seal(site.substrate.find(site.job_id))


def clear_nodes(site: JobSite) -> None:
    """Remove what the job's nodes left on the substrate; for a job that is over.

    Several ranks at a time, the attempts of one in order: its last keeps what is not saved.
    """
    by_rank: dict[int, list[NodeHandle]] = {}
    for handle in site.substrate.find(site.job_id):
        by_rank.setdefault(handle.rank, []).append(handle)

    def remove(handles: list[NodeHandle]) -> None:
        for handle in handles:
            handle.remove()

    with ThreadPoolExecutor(REMOVED_AT_ONCE) as pool:
        list(pool.map(remove, by_rank.values()))


def judge_retry(site: JobSite) -> RetryDecision:
    """Whether the job's last outcome is followed by another attempt."""
    outcomes = site.ledger.outcomes(site.job_id)
    if site.ledger.stop_request(site.job_id):
        return RetryDecision(False, "the job was asked to stop")
    if not outcomes:
        return RetryDecision(False, "no attempt was made")
    if _never_answered(site, outcomes[-1]):
        return RetryDecision(False, "the server has never answered")
    return decide_retry(outcomes, site.record.retries, checkpointing=site.checkpointing)


def _never_answered(site: JobSite, last: Outcome) -> bool:
    """A server that ended by itself before it answered once would do so again."""
    serving = site.record.serving
    if serving is None or last.failure is FailureClass.INFRASTRUCTURE:
        return False
    return not Deployments(site.ledger).was_ready(serving.deployment, serving.revision)


def end_gang(site: JobSite, gang: Gang) -> Outcome:
    """The attempt is over: logs sealed, outcome recorded; AttemptFailed unless it ended well.

    A stopped attempt is an outcome, not an error.
    """
    outcome = close_attempt(site, gang.outcome())
    if outcome.failure is not None:
        raise AttemptFailed(outcome.message, outcome={"attempt": outcome.attempt})
    return outcome


def refuse(attempt: int, error: Exception) -> Outcome:
    """The outcome of an attempt that could not be launched."""
    found = diagnose_error(error)
    now = time.time()
    return Outcome(
        attempt=attempt,
        state=JobState.FAILED if found.cause is Cause.MAX_RUN_TIME else JobState.DEPLOY_FAILED,
        message=describe(error),
        failure=found.failure,
        cause=found.cause,
        cure=found.cure,
        started_at=now,
        ended_at=now,
    )


def describe(error: Exception) -> str:
    """Our own errors are sentences; of any other the kind says more than the words."""
    return str(error) if isinstance(error, PrefectBtError) else f"{type(error).__name__}: {error}"


def ended_as(site: JobSite, otherwise: JobState) -> JobState:
    """The state in which a job ends that no attempt follows: what its last attempt came to.

    A training that finished is COMPLETED, whoever died or asked it to stop since.
    """
    outcomes = site.ledger.outcomes(site.job_id)
    last = outcomes[-1].state if outcomes else otherwise
    if last is not JobState.COMPLETED and site.ledger.stop_request(site.job_id):
        return JobState.STOPPED
    return last


def states_to(site: JobSite, end: JobState) -> tuple[JobState, ...]:
    """`end`, and before it what nobody lived to write down; empty when the job is over."""
    now = site.ledger.state(site.job_id)
    if now.terminal:
        return ()
    unseen = now is JobState.DEPLOYING and end is JobState.COMPLETED
    return (JobState.RUNNING, end) if unseen else (end,)
