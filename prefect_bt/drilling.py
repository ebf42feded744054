"""A drill: a job whose rank is killed on purpose, to see it go on from its checkpoint.

A resume that was never tried fails on the day it is needed: a script that does not look for its
checkpoint, or starts counting anew, is found out here, in the time of two checkpoints.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from prefect_bt.checkpoints.announcing import Uploads
from prefect_bt.checkpoints.catalogue import list_checkpoints
from prefect_bt.checkpoints.layout import step_of_name
from prefect_bt.control import open_site, settle
from prefect_bt.definitions import TrainingProject
from prefect_bt.drills import DrillResult, save_drill
from prefect_bt.errors import DrillError
from prefect_bt.ledger import Ledger
from prefect_bt.records import JobRecord

LOOK_SECONDS = 0.2
SETTLE_SECONDS = 5.0
Say = Callable[[str], None]


@dataclass(frozen=True)
class Drill:
    """Which rank is killed (negative: from the last), and after which committed step.

    `patience`, in seconds: until the kill, and as long again from the kill on.
    """

    rank: int = -1
    step: int = 0
    patience: float = 600.0


@dataclass
class _Watch:
    ledger: Ledger
    record: JobRecord
    patience: float
    say: Say
    _settled: float = field(default_factory=time.monotonic)
    _deadline: float = field(default_factory=time.monotonic)

    def begin_half(self) -> None:
        """From now on `patience` seconds are left for all that `until` waits for."""
        self._deadline = time.monotonic() + self.patience

    def until(self, seen: Callable[[], int | None], what: str) -> int:
        """What was seen; DrillError when the job ends before, or the half takes too long."""
        while time.monotonic() < self._deadline:
            over = self.ledger.state(self.record.id)
            found = seen()
            if found is not None:
                return found
            if over.terminal:
                last = self.ledger.events(self.record.id)[-1].message
                raise self._error(f"it ended before {what} ({over.short}: {last})")
            if time.monotonic() - self._settled > SETTLE_SECONDS:
                settle(self.ledger, self.record.id)
                self._settled = time.monotonic()
            time.sleep(LOOK_SECONDS)
        raise self._error(f"{what} did not come within {self.patience:g} s")

    def steps(self, attempt: int) -> list[int]:
        """Committed by this attempt, in the order in which they were."""
        parts = [
            (part.committed_at, part.step)
            for one in list_checkpoints(self.ledger.store, self.record.project_id, self.record.id)
            for part in one.manifests
            if part.attempt == attempt and part.step is not None
        ]
        return [step for _, step in sorted(parts)]

    def touched(self, attempt: int) -> list[int]:
        """Steps that this attempt wrote, those included that were committed before; none before its
        first commit is announced, which is made known at once."""
        told = Uploads(self.ledger.store, self.record.project_id, self.record.id, attempt).look()
        names = [name for one in told for name in (*one.status.rewritten, *one.status.committed)]
        steps = [step for name in names if (step := step_of_name(name)) is not None]
        return steps if any(one.status.committed for one in told) else []

    def newest_attempt(self) -> int:
        attempts = self.ledger.attempts(self.record.id)
        return attempts[-1].attempt if attempts else 0

    def _error(self, why: str) -> DrillError:
        return DrillError(
            f"The drill of job {self.record.id} came to nothing: {why}.",
            next_step=f"See: prefect-bt logs --job-id {self.record.id}",
        )


def refuse_pointless(project: TrainingProject) -> None:
    """DrillError for a project whose jobs could not go on from anything."""
    if not project.job.runtime.checkpointing_config.enabled:
        raise DrillError(
            f"Jobs of project {project.name!r} write no checkpoints to go on from: "
            "checkpointing_config is not enabled.",
            next_step="Give the runtime checkpointing_config=CheckpointingConfig(enabled=True).",
        )


def run_drill(ledger: Ledger, record: JobRecord, drill: Drill, *, say: Say) -> DrillResult:
    """Kill a rank of a job that has begun, and watch; the result is kept on the job.

    DrillError when the job gave no occasion: it ended first, or committed no checkpoint with a step
    in its name.
    """
    watch = _Watch(ledger, record, drill.patience, say)
    say(f"Waiting for a committed checkpoint of step {drill.step} or later")
    watch.begin_half()
    attempt = watch.until(lambda: _reached(watch, drill.step), "a checkpoint with a step")
    before = max(watch.steps(attempt))
    rank = _kill(watch, attempt, drill.rank)
    result = DrillResult(record.id, False, "", rank, time.time(), step_before=before)
    watch.begin_half()
    say(f"Killed rank {rank}; the newest committed step is {before}")
    result = _resumption(watch, attempt, result)
    save_drill(ledger, record, result)
    return result


def _reached(watch: _Watch, step: int) -> int | None:
    attempt = watch.newest_attempt()
    return attempt if any(found >= step for found in watch.steps(attempt)) else None


def _kill(watch: _Watch, attempt: int, rank: int) -> int:
    site = open_site(watch.ledger, watch.record)
    nodes = [node for node in site.substrate.find(watch.record.id) if node.attempt == attempt]
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


def _resumption(watch: _Watch, killed: int, result: DrillResult) -> DrillResult:
    before = result.step_before or 0

    def began() -> int | None:
        newest = watch.newest_attempt()
        site = open_site(watch.ledger, watch.record)
        nodes = [node for node in site.substrate.find(watch.record.id) if node.attempt == newest]
        ran = nodes and all(node.observe().started_at is not None for node in nodes)
        return newest if newest > killed and ran else None

    try:
        attempt = watch.until(began, "the next attempt")
        result = replace(result, attempt=attempt, seconds_to_attempt=time.time() - result.at)
        watch.say(f"Attempt {attempt} runs, {result.seconds_to_attempt:.1f} s after the kill")
        first = watch.until(
            lambda: min(watch.touched(attempt), default=None), "its first checkpoint"
        )
    except DrillError as error:
        return replace(result, why=str(error))
    result = replace(result, step_after=first, seconds_to_step=time.time() - result.at)
    if first > before:
        why = f"It went on from step {before}: the next one it wrote is {first}."
        return replace(result, resumed=True, why=why)
    return replace(
        result,
        why=f"It did not go on: step {before} was committed, and attempt {attempt} "
        f"began again with step {first}. Does the script look for its newest checkpoint in "
        "BT_CHECKPOINT_DIR?",
    )
