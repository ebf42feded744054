"""Kill a rank of a running job on purpose, and watch whether the job resumes.

A script that does not load its checkpoint, or starts again at step 1, is found in the time of two
checkpoints.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from prefect_bt.attempts.job_context import open_job_context
from prefect_bt.checkpoints.committed.catalog import list_checkpoints
from prefect_bt.checkpoints.layout import parse_step
from prefect_bt.checkpoints.upload.upload_status import UploadStatusReader
from prefect_bt.definitions import TrainingProject
from prefect_bt.errors import DrillError, StateError
from prefect_bt.jobs.reconcile import Reconciler
from prefect_bt.jobs.stop import stop_job, wait_for_end
from prefect_bt.ledger.ledger import Ledger
from prefect_bt.ledger.records import JobRecord
from prefect_bt.substrates.protocol import NodeHandle

_POLL_INTERVAL = 0.2
Echo = Callable[[str], None]


@dataclass(frozen=True)
class DrillResult:
    """The outcome of a drill. Steps are those of checkpoints; seconds count from the kill."""

    job_id: str
    resumed: bool
    why: str
    """What happened, and what to do if the job did not resume."""
    rank: int
    at: float
    """When the rank was killed, in epoch seconds."""
    step_before: int | None = None
    """Newest committed step when the rank was killed."""
    step_after: int | None = None
    """Lowest step that the next attempt wrote before its first commit."""
    attempt: int | None = None
    seconds_to_attempt: float | None = None
    """Until the commands of the next attempt ran."""
    seconds_to_step: float | None = None
    """Until its first commit."""


class _DrillWatch:
    """Waits for events of the drilled job, and recovers it meanwhile if its process dies."""

    def __init__(self, ledger: Ledger, record: JobRecord, timeout: float, echo: Echo) -> None:
        self.ledger, self.record, self.echo = ledger, record, echo
        self._timeout, self._reconcile = timeout, Reconciler(ledger, record.id)
        self.restart_deadline()

    def restart_deadline(self) -> None:
        """Give all following calls of `wait_for` together `timeout` seconds."""
        self._deadline = time.monotonic() + self._timeout

    def wait_for(self, probe: Callable[[], int | None], what: str) -> int:
        """Return what `probe` finds. DrillError if the job ends before, or the time is over."""
        while time.monotonic() < self._deadline:
            state = self.ledger.get_state(self.record.id)
            found = probe()
            if found is not None:
                return found
            if state.terminal:
                last = self.ledger.list_events(self.record.id)[-1].message
                raise self._error(f"it ended before {what} ({state.short_name}: {last})")
            self._reconcile()
            time.sleep(_POLL_INTERVAL)
        raise self._error(f"{what} did not come within {self._timeout:g} s")

    def list_nodes(self, attempt: int) -> list[NodeHandle]:
        """Return the attempt's nodes on this machine."""
        nodes = open_job_context(self.ledger, self.record).substrate.list_nodes(self.record.id)
        return [node for node in nodes if node.attempt == attempt]

    def list_committed_steps(self, attempt: int) -> list[int]:
        """Return the steps that this attempt committed, in order."""
        parts = [
            (part.committed_at, part.step)
            for one in list_checkpoints(self.ledger.store, self.record.project_id, self.record.id)
            for part in one.manifests
            if part.attempt == attempt and part.step is not None
        ]
        return [step for _, step in sorted(parts)]

    def list_written_steps(self, attempt: int) -> list[int]:
        """Return the steps that this attempt wrote; none before its first commit."""
        place = self.ledger.store, self.record.project_id, self.record.id
        statuses = [one.status for one in UploadStatusReader(*place, attempt).read()]
        if not any(status.committed for status in statuses):
            return []
        names = [name for status in statuses for name in (*status.rewritten, *status.committed)]
        return [step for name in names if (step := parse_step(name)) is not None]

    def newest_attempt(self) -> int:
        attempts = self.ledger.list_attempts(self.record.id)
        return attempts[-1].attempt if attempts else 0

    def _error(self, why: str) -> DrillError:
        return DrillError(
            f"The drill of job {self.record.id} failed: {why}.",
            next_step=f"See: prefect-bt logs --job-id {self.record.id}",
        )


def check_drillable(project: TrainingProject) -> None:
    """Raise DrillError if jobs of the project write no checkpoints."""
    if not project.job.runtime.checkpointing_config.enabled:
        raise DrillError(
            f"Jobs of project {project.name!r} write no checkpoints to resume from: "
            "checkpointing_config is not enabled.",
            next_step="Give the runtime checkpointing_config=CheckpointingConfig(enabled=True).",
        )


def run_drill(  # noqa: PLR0913 (options of the command)
    ledger: Ledger, record: JobRecord, *, rank: int, step: int, timeout: float, echo: Echo
) -> DrillResult:
    """Kill a rank of a job after a committed step, and wait for the next attempt's steps.

    `rank`: counted from the last if negative. `timeout`: seconds to wait for the step, and again
    for the first step after the kill. DrillError if the job ended first, or committed no checkpoint
    with a step in its name.
    """
    watch = _DrillWatch(ledger, record, timeout, echo)
    echo(f"Waiting for a committed checkpoint of step {step} or later")
    attempt = watch.wait_for(lambda: _find_attempt_at_step(watch, step), "a checkpoint with a step")
    before = max(watch.list_committed_steps(attempt))
    rank = _kill(watch, attempt, rank)
    result = DrillResult(record.id, False, "", rank, time.time(), step_before=before)
    watch.restart_deadline()
    echo(f"Killed rank {rank}; the newest committed step is {before}")
    return _observe_resumption(watch, attempt, result)


def _find_attempt_at_step(watch: _DrillWatch, step: int) -> int | None:
    attempt = watch.newest_attempt()
    return attempt if any(found >= step for found in watch.list_committed_steps(attempt)) else None


def _kill(watch: _DrillWatch, attempt: int, rank: int) -> int:
    nodes = watch.list_nodes(attempt)
    if not -len(nodes) <= rank < len(nodes):
        raise DrillError(
            f"Job {watch.record.id} has no rank {rank} on this machine ({len(nodes)} nodes).",
            next_step="Run the drill where the nodes run, or give another --rank.",
        )
    node = nodes[rank]
    if not node.kill_commands():
        raise DrillError(
            f"Rank {node.rank} of job {watch.record.id} had ended before it could be killed.",
            next_step="Give an earlier --step.",
        )
    return node.rank


def _observe_resumption(watch: _DrillWatch, killed: int, result: DrillResult) -> DrillResult:
    before = result.step_before or 0

    def find_running_attempt() -> int | None:
        newest = watch.newest_attempt()
        nodes = watch.list_nodes(newest)
        runs = nodes and all(node.observe().started_at is not None for node in nodes)
        return newest if newest > killed and runs else None

    try:
        attempt = watch.wait_for(find_running_attempt, "the next attempt")
        result = replace(result, attempt=attempt, seconds_to_attempt=time.time() - result.at)
        watch.echo(f"Attempt {attempt} runs, {result.seconds_to_attempt:.1f} s after the kill")
        first = watch.wait_for(
            lambda: min(watch.list_written_steps(attempt), default=None), "its first checkpoint"
        )
    except DrillError as error:
        return replace(result, why=str(error))
    result = replace(result, step_after=first, seconds_to_step=time.time() - result.at)
    if first > before:
        why = f"The job resumed from step {before}: the next step is {first}."
        return replace(result, resumed=True, why=why)
    return replace(
        result,
        why=f"The job did not resume: step {before} was committed, and attempt {attempt} "
        f"started again with step {first}. Does the script look for its newest checkpoint in "
        "BT_CHECKPOINT_DIR?",
    )


def stop_drill(ledger: Ledger, job_id: str, *, echo: Echo, wait: bool) -> None:
    """Stop the job if it has not ended. `wait`: until it has ended."""
    if ledger.get_state(job_id).terminal:
        return
    try:
        echo(stop_job(ledger, job_id, by="the drill"))
    except StateError as error:  # it ended meanwhile, or a stop was requested before
        echo(str(error))
    if wait:
        wait_for_end(ledger, job_id)
