"""Lines of the platform in the log of a job, derived from the records of the job.

They say what happened outside of the nodes (events, attempts, outcomes, pinned weights), and what
the job waits for. What happens on a node is in the log of its rank.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Final

from prefect_bt.ledger.job_objects import PinnedWeights, find_object
from prefect_bt.ledger.ledger import Ledger
from prefect_bt.ledger.node_objects import GangObjects
from prefect_bt.ledger.records import AttemptRecord, JobEvent, JobRecord, Outcome
from prefect_bt.ledger.states import JobState
from prefect_bt.logs.levels import LogLevel
from prefect_bt.logs.line_filter import JobLine
from prefect_bt.logs.line_format import PLATFORM_RANK, LogLine
from prefect_bt.logs.logins import LoginReader
from prefect_bt.object_keys import mirroring_prefix
from prefect_bt.text.progress import Progress
from prefect_bt.text.quantities import format_size

_Entry = tuple[float, str, LogLevel]
"""Time in epoch seconds, message, level."""

_PAST_TENSE: Final = {
    JobState.COMPLETED: "completed",
    JobState.FAILED: "failed",
    JobState.DEPLOY_FAILED: "could not be deployed",
    JobState.STOPPED: "stopped",
}


class JobHistory:
    """The platform lines of one job. Every call reads the records again. StoreError."""

    def __init__(self, ledger: Ledger, record: JobRecord) -> None:
        self._ledger, self._record = ledger, record
        self._logins = LoginReader(ledger, record)
        job: dict[str, Any] = record.definition.get("job", {})
        compute: dict[str, Any] = job.get("compute") or {}
        image: dict[str, Any] = job.get("image") or {}
        count = int(compute.get("node_count", 1))
        self._nodes = "1 node" if count == 1 else f"{count} nodes"
        self._its_nodes = "its node" if count == 1 else f"its {count} nodes"
        self._image = str(image.get("base_image", ""))
        self._has_weights = bool(job.get("weights"))

    def read_lines(self) -> list[JobLine]:
        """Return what has happened, oldest first."""
        begun = self._ledger.list_attempts(self._record.id)
        outcomes = self._ledger.list_outcomes(self._record.id)
        found = [
            *self._iter_weights_entries(),
            *self._iter_stop_entries(),
            *((login.at, login.message, LogLevel.WARNING) for login in self._logins.read()),
            *self._iter_event_entries({outcome.message for outcome in outcomes}),
            *(_format_outcome(outcome) for outcome in outcomes if outcome.ended_at),
        ]
        lines = (_to_job_line(entry, begun) for entry in found)
        return sorted(lines, key=lambda one: one.at)

    def read_waiting_line(self) -> JobLine | None:
        """Return a line that says what the job waits for; None while it runs or if it is over."""
        events = self._ledger.list_events(self._record.id)
        last = events[-1] if events else JobEvent(JobState.PENDING, self._record.created_at)
        message = self._format_waiting(last)
        if not message:
            return None
        entry = (max(self._ledger.now(), last.at), message, LogLevel.INFO)
        return _to_job_line(entry, self._ledger.list_attempts(self._record.id))

    def list_mirrors(self) -> list[Progress]:
        """Return the progress of each source that has no pinned revision yet."""
        return [progress or Progress(source) for source, progress in self._list_mirrors()]

    def _iter_event_entries(self, shown: set[str]) -> Iterator[_Entry]:
        """Yield the events of the job, without a message that is `shown` with an outcome."""
        for event in self._ledger.list_events(self._record.id):
            retried = event.state is JobState.CREATED and event.attempt is not None
            level = LogLevel.WARNING if retried else _get_level(event.state)
            yield event.at, self._format_event(event, shown), level

    def _format_event(self, event: JobEvent, shown: set[str]) -> str:
        match event.state:
            case JobState.PENDING if event.message.startswith("waits for "):
                return f"Job {event.message}."
            case JobState.PENDING:
                starter = "a Prefect flow run" if event.deployment else "a machine of the queue"
                return f"Job submitted; {starter} will start it."
            case JobState.CREATED if event.attempt is not None and event.message:
                return event.message
            case JobState.CREATED:
                return f"Job {event.message or 'created'}."
            case JobState.DEPLOYING | JobState.RUNNING as state:
                begins = f"begins: {self._nodes}" if state is JobState.DEPLOYING else "runs"
                return f"Attempt {event.attempt or 0} {begins}."
            case end:
                reason = "" if event.message in shown else event.message
                return f"Job {_PAST_TENSE[end]}{f': {reason}' if reason else '.'}"

    def _iter_weights_entries(self) -> Iterator[_Entry]:
        for source, _, pin in self._list_sources():
            if pin:
                size = f"{pin.files:,} files, {format_size(pin.bytes)}"
                message = f"Weights {source} are mirrored: {size}, revision {pin.revision[:12]}."
                yield pin.at, message, LogLevel.INFO

    def _iter_stop_entries(self) -> Iterator[_Entry]:
        request = self._ledger.controls.find_stop_request(self._record.id)
        if request:
            yield request.at, f"Stop requested by {request.by}.", LogLevel.WARNING

    def _format_waiting(self, last: JobEvent) -> str:
        match last.state:
            case JobState.PENDING if last.deployment:
                return "Waiting for a Prefect worker to start the job's run."
            case JobState.PENDING:
                return "Waiting in the queue; `prefect-bt queue` says what for."
            case JobState.CREATED if last.attempt is None:
                return self._format_mirroring() or "Waiting for the job's flow to begin an attempt."
            case JobState.DEPLOYING:
                return self._format_deploying(last.attempt or 0)
            case _:  # the event of a retry has the time of the next attempt
                return ""

    def _format_deploying(self, attempt: int) -> str:
        record, ledger = self._record, self._ledger
        if record.substrate != "local" and not ledger.pins.read_image(record.id):
            return f"Attempt {attempt}: pulling the image {self._image}."
        gang = GangObjects.of_attempt(ledger.store, record.project_id, record.id, attempt)
        reason = gang.read_waiting()
        obstacle = f" ({reason})" if reason else ""
        return f"Attempt {attempt}: waiting for {self._its_nodes} to start{obstacle}."

    def _format_mirroring(self) -> str:
        mirrors = [f"{source}{_format_tenths(found)}" for source, found in self._list_mirrors()]
        return f"Mirroring weights: {'; '.join(mirrors)}." if mirrors else ""

    def _list_mirrors(self) -> list[tuple[str, Progress | None]]:
        """Return (source, progress) of each source that has no pinned revision yet."""
        sources = self._list_sources()
        return [(source, self._find_progress(key)) for source, key, pin in sources if not pin]

    def _find_progress(self, key: str) -> Progress | None:
        prefix = mirroring_prefix(self._record.project_id, self._record.id)
        with suppress(ValueError):  # unreadable
            return find_object(self._ledger.store, f"{prefix}/{key}", Progress)
        return None

    def _list_sources(self) -> list[tuple[str, str, PinnedWeights | None]]:
        """Return (redacted source, key, pinned revision) of each source of weights."""
        if not self._has_weights:
            return []
        from prefect_bt.ledger.open_ledger import load_definition
        from prefect_bt.planning.planner import plan_weights
        from prefect_bt.text.url_redaction import redact_url

        pins = self._ledger.pins.read_weights(self._record.id)
        plans = plan_weights(load_definition(self._record).job)
        return [(redact_url(plan.source), plan.key, pins.get(plan.key)) for plan in plans]


def _get_level(state: JobState) -> LogLevel:
    return LogLevel.ERROR if state.failed else LogLevel.INFO


def _format_outcome(outcome: Outcome) -> _Entry:
    was = "was " if outcome.state is JobState.STOPPED else ""
    reason = f": {outcome.message}" if outcome.message else "."
    message = f"Attempt {outcome.attempt} {was}{_PAST_TENSE[outcome.state]}{reason}"
    return outcome.ended_at or 0.0, message, _get_level(outcome.state)


def _to_job_line(entry: _Entry, begun: list[AttemptRecord]) -> JobLine:
    at, message, level = entry
    attempt = max((one.attempt for one in begun if one.at <= at), default=None)
    line = LogLine(int(at * 1e9), message.replace("\n", " "), PLATFORM_RANK)
    return JobLine(attempt, line, level, line.timestamp)


def _format_tenths(progress: Progress | None) -> str:
    """Return ` 40 % of 2.0 GB` in steps of ten percent, because each step is a line of the log."""
    if progress is None:
        return ""
    return f" {progress.percent // 10 * 10:.0f} % of {format_size(progress.bytes_total)}"
