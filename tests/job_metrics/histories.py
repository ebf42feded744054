"""Jobs as their records and metrics tell; all times are seconds since the job was created."""

from collections.abc import Callable, Iterable, Sequence

from prefect_bt.checkpoints.committed.catalog import CommittedCheckpoint
from prefect_bt.checkpoints.manifest import Manifest, ManifestEntry
from prefect_bt.job_metrics.goodput import Goodput
from prefect_bt.job_metrics.job_metrics import JobHistory, JobMetrics
from prefect_bt.job_metrics.node_metrics import (
    GPU_COLUMNS,
    GpuFacts,
    NodeFacts,
    NodeMetrics,
    TrainingPoint,
)
from prefect_bt.ledger.records import (
    AttemptRecord,
    Cause,
    FailureClass,
    JobEvent,
    JobRecord,
    NodePhase,
    NodeStatus,
    Outcome,
)
from prefect_bt.ledger.states import JobState

CREATED_AT = 1_700_000_000.0
RECORD = JobRecord(
    "job1234", "one", "proj1", "tiny", CREATED_AT, {"job": {"weights": ["hf://a/b"]}}
)
STATES = {state.short_name: state for state in JobState}


def event(state: str, at: float, attempt: int | None = None) -> JobEvent:
    return JobEvent(STATES[state], CREATED_AT + at, attempt=attempt)


def status(
    rank: int,
    started: float | None,
    ended: float | None,
    *,
    clock_error: float = 0.0,
    phase: NodePhase = NodePhase.DONE,
    active: float | None = None,
) -> NodeStatus:
    def at(time: float | None) -> float | None:
        return None if time is None else CREATED_AT + time + clock_error

    return NodeStatus(rank, phase, started_at=at(started), ended_at=at(ended), active_at=at(active))


def outcome(
    attempt: int,
    state: str,
    ended: float,
    *nodes: NodeStatus,
    newest: CommittedCheckpoint | None = None,
    cause: Cause | None = None,
) -> Outcome:
    return Outcome(
        attempt,
        STATES[state],
        failure=FailureClass.INFRASTRUCTURE if state == "failed" else None,
        nodes=nodes,
        ended_at=CREATED_AT + ended,
        newest_checkpoint=newest.newest_manifest if newest else "",
        cause=cause,
    )


def checkpoint(
    attempt: int, name: str, written: float, *, step: int | None = None
) -> CommittedCheckpoint:
    at = CREATED_AT + written
    entry = ManifestEntry("w", "w", "key", 1, "0" * 64, mtime_ns=int(at * 1e9))
    manifest = Manifest(
        2, RECORD.project_id, RECORD.id, 0, 1, name, attempt, 1, at + 1, 1, (entry,), step=step
    )
    return CommittedCheckpoint(
        "id", name, RECORD.project_id, RECORD.id, at + 1, "", None, None, 1, step, attempt,
        {0: manifest.key}, manifests=(manifest,),
    )  # fmt: skip


def points(steps: Iterable[int], first: float, step_time: float) -> list[TrainingPoint]:
    """Reports of these steps; the first at `first`, `step_time` seconds a step."""
    steps = list(steps)
    return [
        TrainingPoint(CREATED_AT + first + (step - steps[0]) * step_time, step, {"loss": 1.0})
        for step in steps
    ]


BUSY = {
    "cpu": 1.0,
    "memory": 1e9,
    "memory_available": 8e9,
    "disk_free": 50e9,
    "disk_size": 100e9,
    "received": 0.0,
    "sent": 0.0,
    "read": 0.0,
    "written": 0.0,
    "lines": 1.0,
    "stopped": 0.0,
    "blocked": 0.0,
    "utilization": 0.9,
}
IDLE = {"cpu": 0.0, "lines": 0.0, "utilization": 0.0}
"""Changes of BUSY for a node that does nothing."""


def node(
    attempt: int,
    rank: int,
    start: float,
    end: float,
    *,
    values: Callable[[float], dict[str, float]] = lambda at: {},
    training: Sequence[TrainingPoint] = (),
    gpus: int = 0,
    cpus: float = 4,
    interval: float = 5.0,
    clock_error: float = 0.0,
) -> NodeMetrics:
    """Samples of a busy node; `values`: what differs from BUSY at a time of the job."""
    facts = NodeFacts(
        cpus, int(16e9), interval, tuple(GpuFacts(i, "H200", int(141e9)) for i in range(gpus))
    )
    metrics = NodeMetrics(attempt, rank, facts)
    number = 0
    while (at := start + number * interval) <= end:
        number += 1
        metrics.times.append(CREATED_AT + at + clock_error)
        for name, value in {**BUSY, **values(at)}.items():
            names = [name]
            if name in GPU_COLUMNS and name != "memory":
                names = [f"gpu{i}_{name}" for i in range(gpus)]
            for column in names:
                metrics.columns.setdefault(column, []).append(value)
    metrics.training[:] = [
        TrainingPoint(point.at + clock_error, point.step, point.values) for point in training
    ]
    return metrics


def job(
    events: Sequence[JobEvent],
    outcomes: Sequence[Outcome] = (),
    nodes: Sequence[NodeMetrics] = (),
    checkpoints: Sequence[CommittedCheckpoint] = (),
    *,
    now: float = 0.0,
) -> JobMetrics:
    numbers = sorted({one.attempt for one in events if one.attempt is not None})
    attempts = [AttemptRecord(number, CREATED_AT) for number in numbers]
    history = JobHistory(RECORD, events, attempts, outcomes, checkpoints, CREATED_AT + now)
    return JobMetrics(history, nodes)


def seconds(goodput: Goodput) -> dict[str, float]:
    """The classes that have time, rounded."""
    return {
        name.value: round(value, 3) for name, value in goodput.seconds.items() if value > 0.0005
    }
