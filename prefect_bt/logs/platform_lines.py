"""The platform's own log lines of a job, derived from its records: no second log is kept.

They say what happened outside of the nodes, from the job's events, its attempts and outcomes, and
the weights it pinned; and, while it waits, for what. What happens on a node is in the log of its
rank.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, cast

from prefect_bt import codec
from prefect_bt.errors import ObjectNotFound
from prefect_bt.ledger.ledger import Ledger
from prefect_bt.ledger.node_objects import GangObjects
from prefect_bt.ledger.records import AttemptRecord, JobEvent, JobRecord, Outcome
from prefect_bt.ledger.states import JobState
from prefect_bt.logs.levels import LogLevel
from prefect_bt.logs.line_filter import JobLine
from prefect_bt.logs.line_format import PLATFORM_RANK, LogLine
from prefect_bt.object_keys import mirroring_prefix
from prefect_bt.text.progress import Progress
from prefect_bt.text.quantities import format_size

_LEVELS: Final = {JobState.FAILED: LogLevel.ERROR, JobState.DEPLOY_FAILED: LogLevel.ERROR}
_END_MESSAGES: Final = {
    JobState.COMPLETED: "Job completed",
    JobState.FAILED: "Job failed",
    JobState.DEPLOY_FAILED: "Job could not be deployed",
    JobState.STOPPED: "Job stopped",
}


class JobHistory:
    """The platform's lines of one job. Every call reads the records again. Raises StoreError."""

    def __init__(self, ledger: Ledger, record: JobRecord) -> None:
        self._ledger, self._record = ledger, record
        job: dict[str, Any] = record.definition.get("job", {})
        self._weights = cast("list[Mapping[str, Any]]", job.get("weights") or [])
        compute: dict[str, Any] = job.get("compute") or {}
        self._nodes = int(compute.get("node_count", 1))
        image: dict[str, Any] = job.get("image") or {}
        self._image = str(image.get("base_image", ""))

    def read_lines(self) -> list[JobLine]:
        """Return what happened so far, oldest first."""
        begun = self._ledger.list_attempts(self._record.id)
        outcomes = self._ledger.list_outcomes(self._record.id)
        events = self._ledger.list_events(self._record.id)
        found = [
            *self._iter_weights_entries(),
            *self._iter_stop_entries(),
            *self._iter_event_entries(events, outcomes),
        ]
        found += [_outcome_entry(outcome) for outcome in outcomes if outcome.ended_at]
        lines = (_to_job_line(at, said, level, begun) for at, said, level in found)
        return sorted(lines, key=lambda one: one.line.timestamp)

    def read_waiting_line(self) -> JobLine | None:
        """Return one line that says what the job waits for now; None when it runs or is over."""
        events = self._ledger.list_events(self._record.id)
        last = events[-1] if events else JobEvent(JobState.PENDING, self._record.created_at)
        said = self._format_waiting(last)
        if not said:
            return None
        now = max(self._ledger.now(), last.at)
        return _to_job_line(now, said, LogLevel.INFO, self._ledger.list_attempts(self._record.id))

    # -- what happened ------------------------------------------------------------------------

    def _iter_event_entries(
        self, events: list[JobEvent], outcomes: list[Outcome]
    ) -> Iterator[_HistoryEntry]:
        told = {outcome.message for outcome in outcomes}
        for event in events:
            said = self._format_event(event, told)
            retried = event.state is JobState.CREATED and event.attempt is not None
            level = LogLevel.WARNING if retried else _LEVELS.get(event.state, LogLevel.INFO)
            yield event.at, said, level

    def _format_event(self, event: JobEvent, shown: set[str]) -> str:
        match event.state:
            case JobState.PENDING:
                return "Job submitted; a Prefect flow run will start it."
            case JobState.CREATED if event.attempt is not None and event.message:
                return event.message
            case JobState.CREATED:
                return f"Job {event.message or 'created'}."
            case JobState.DEPLOYING:
                nodes = "1 node" if self._nodes == 1 else f"{self._nodes} nodes"
                return f"Attempt {event.attempt or 0} begins: {nodes}."
            case JobState.RUNNING:
                return f"Attempt {event.attempt or 0} runs."
            case end:
                why = "" if event.message in shown else event.message
                return f"{_END_MESSAGES[end]}: {why}" if why else f"{_END_MESSAGES[end]}."

    def _iter_weights_entries(self) -> Iterator[_HistoryEntry]:
        if not self._weights:
            return
        pins = self._ledger.read_pinned_weights(self._record.id)
        for source, key in self._list_sources():
            if pin := pins.get(key):
                what = (
                    f"{pin.files:,} files, {format_size(pin.bytes)}, revision {pin.revision[:12]}"
                )
                yield pin.at, f"Weights {source} are mirrored: {what}.", LogLevel.INFO

    def _iter_stop_entries(self) -> Iterator[_HistoryEntry]:
        asked = self._ledger.find_stop_request(self._record.id)
        if asked:
            yield asked.at, f"Stop requested by {asked.by}.", LogLevel.WARNING

    # -- what it waits for --------------------------------------------------------------------

    def _format_waiting(self, last: JobEvent) -> str:
        match last.state:
            case JobState.PENDING:
                return "Waiting for a Prefect worker to start the job's run."
            case JobState.CREATED if last.attempt is not None:
                return ""  # the event itself says when the next attempt begins
            case JobState.CREATED:
                return self._format_mirroring() or "Waiting for the job's flow to begin an attempt."
            case JobState.DEPLOYING:
                return self._format_deploying(last.attempt or 0)
            case _:
                return ""

    def _format_deploying(self, attempt: int) -> str:
        if self._record.substrate != "local" and not self._ledger.read_pinned_image(
            self._record.id
        ):
            return f"Attempt {attempt}: pulling the image {self._image}."
        nodes = "its node" if self._nodes == 1 else f"its {self._nodes} nodes"
        return f"Attempt {attempt}: waiting for {nodes} to start{self._format_obstacle(attempt)}."

    def _format_obstacle(self, attempt: int) -> str:
        """Return what a gang in a cluster waits for, where its watcher wrote that down."""
        record = self._record
        objects = GangObjects.of_attempt(self._ledger.store, record.project_id, record.id, attempt)
        said = objects.read_waiting()
        return f" ({said})" if said else ""

    def _format_mirroring(self) -> str:
        if not self._weights:
            return ""
        pins = self._ledger.read_pinned_weights(self._record.id)
        missing = [
            f"{source}{_format_tenths(self._find_mirror_progress(key))}"
            for source, key in self._list_sources()
            if key not in pins
        ]
        return f"Mirroring weights: {'; '.join(missing)}." if missing else ""

    def list_mirrors(self) -> list[Progress]:
        """Return the progress of each source that has no pinned revision yet."""
        if not self._weights:
            return []
        pins = self._ledger.read_pinned_weights(self._record.id)
        return [
            self._find_mirror_progress(key) or Progress(source)
            for source, key in self._list_sources()
            if key not in pins
        ]

    def _find_mirror_progress(self, key: str) -> Progress | None:
        prefix = mirroring_prefix(self._record.project_id, self._record.id)
        try:
            return codec.loads(Progress, self._ledger.store.get(f"{prefix}/{key}"))
        except (ObjectNotFound, ValueError):  # not written yet, or not as a whole
            return None

    def _list_sources(self) -> list[tuple[str, str]]:
        """Return (source as it may be shown, key) of each."""
        from prefect_bt.ledger.opening import load_definition
        from prefect_bt.planning.planner import plan_weights
        from prefect_bt.text.url_redaction import redact_url

        plans = plan_weights(load_definition(self._record).job)
        return [(redact_url(key_of.source), key_of.key) for key_of in plans]


_HistoryEntry = tuple[float, str, LogLevel]


def _outcome_entry(outcome: Outcome) -> _HistoryEntry:
    level = _LEVELS.get(outcome.state, LogLevel.INFO)
    why = f": {outcome.message}" if outcome.message else "."
    return (
        outcome.ended_at or 0.0,
        f"Attempt {outcome.attempt} {_PAST_TENSE[outcome.state]}{why}",
        level,
    )


_PAST_TENSE: Final = {
    JobState.COMPLETED: "completed",
    JobState.FAILED: "failed",
    JobState.DEPLOY_FAILED: "could not be deployed",
    JobState.STOPPED: "was stopped",
}


def _to_job_line(at: float, message: str, level: LogLevel, started: list[AttemptRecord]) -> JobLine:
    attempt = max((one.attempt for one in started if one.at <= at), default=None)
    line = LogLine(int(at * 1e9), message.replace("\n", " "), PLATFORM_RANK)
    return JobLine(attempt, line, level, line.timestamp)


def _format_tenths(progress: Progress | None) -> str:
    """Return ` 40 % of 2.0 GB`, in steps of ten percent: each step is a line of the log."""
    if progress is None:
        return ""
    return f" {progress.percent // 10 * 10:.0f} % of {format_size(progress.bytes_total)}"
