"""The jobs of a store that this process can reach, for the command line and the HTTP API."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from prefect_bt.errors import NotFoundError, PrefectBtError, StoreError
from prefect_bt.job_index.entries import Document, JobEntry, JobIndex
from prefect_bt.job_index.overview import read_overview
from prefect_bt.job_service.protocol import JobName, LogQuery
from prefect_bt.ledger.ledger import Ledger
from prefect_bt.ledger.records import JobRecord, ProjectRecord
from prefect_bt.ledger.states import JobState
from prefect_bt.settings import Settings

if TYPE_CHECKING:
    from prefect_bt.definitions import TrainingProject
    from prefect_bt.job_metrics.job_metrics import JobMetricsReader
    from prefect_bt.job_service.run_options import RunOptions
    from prefect_bt.jobs.starting.launcher import JobLauncher
    from prefect_bt.logs.line_filter import JobLine
    from prefect_bt.object_store.protocols import RangeReader

_THREADS: Final = 16
"""Records of the queue that are read at once."""


def _see_all(_: str) -> bool:
    return True


class StoreJobs:
    """Reads documents of jobs. The state of a job is reconciled before its records are read.

    `sees`: whether lists have the projects of a team, given by its name in the records. `user`: who
    stops a job; "" for the user of this process. `sleep`: pauses while a log is followed.
    """

    option = ""

    def __init__(
        self,
        ledger: Ledger,
        *,
        warn: Callable[[str], object] = lambda _: None,
        sees: Callable[[str], bool] = _see_all,
        user: str = "",
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.ledger, self._warn, self._sees = ledger, warn, sees
        self._user, self._sleep = user, sleep
        self._names = dict[str, Document]()
        self._metrics = dict[str, "JobMetricsReader"]()

    @property
    def url(self) -> str:
        return self.ledger.store.url

    def get_reconciled_state(self, job_id: str) -> JobState:
        """Return the state of the job, after recording the end of a job whose process died."""
        state = self.ledger.get_state(job_id)
        if state.terminal:
            return state
        from prefect_bt.jobs.reconcile import reconcile_job

        try:
            reconcile_job(self.ledger, job_id)
        except PrefectBtError as error:
            # The record can be shown without the substrate that ran the job.
            self._warn(f"Job {job_id} is shown as recorded; its nodes are unreachable: {error}")
        return self.ledger.get_state(job_id)

    def open_index(self) -> JobIndex:
        """Return the jobs of the store as they are now."""
        return JobIndex(self.ledger, self._read_document, sees=self._sees_project)

    def find_project(self, which: str | None) -> ProjectRecord | None:
        """Return the project with this ID or name; None without one. NotFoundError."""
        return self.ledger.projects.get(which) if which else None

    def list_entries(self, project: str | None) -> list[JobEntry]:
        """Return the entries of the project's jobs, oldest first, without reading their records."""
        known = self.find_project(project)
        return self.open_index().list_entries(known.id if known else None)

    def select_jobs(self, job_id: str | None, project: str | None) -> list[JobRecord]:
        """Return the job, or all of the project, oldest first."""
        known = self.find_project(project)
        if job_id is None:
            return self.ledger.list_jobs(project_id=known.id if known else None)
        record = self.ledger.get_job(job_id)
        if known and record.project_id != known.id:
            belongs = f"It belongs to project {record.project_name!r}, not {known.name!r}."
            raise NotFoundError("job", job_id, next_step=belongs)
        return [record]

    def select_job(self, job_id: str | None, project: str | None) -> JobRecord:
        """Return the job with the given ID, or the newest one that matches."""
        if job_id is not None:
            return self.select_jobs(job_id, project)[0]
        known = self.find_project(project)
        entries = self.open_index().list_entries(known.id if known else None)
        for entry in reversed(entries):
            with suppress(NotFoundError):  # deleted meanwhile
                record = self.ledger.get_job(entry.id)
                if len(entries) > 1:
                    self._warn(f"{len(entries)} jobs match; using the newest: {entry.id}.")
                return record
        raise no_jobs_error(self.url, known.name if known else None)

    def find_job(self, job_id: str | None, project: str | None) -> JobName:
        record = self.select_job(job_id, project)
        return JobName(record.id, record.project_name)

    def read_overview(self) -> Document:
        """Return the projects, and the queued and active jobs."""
        return read_overview(self.open_index(), self.get_reconciled_state)

    def describe_job(self, job_id: str, project: str | None = None) -> Document:
        return self.read_job(self.select_jobs(job_id, project)[0])

    def read_job(self, record: JobRecord) -> Document:
        """Return the document of a job; for one that has not ended, with what it does now."""
        job = self.open_index().read(record.id)
        if JobState(job["current_status"]).terminal:
            return job
        from prefect_bt.attempts.live_nodes import live_document
        from prefect_bt.jobs.metrics.run_summary import run_summary
        from prefect_bt.queue.queue_context import queue_context

        state_dir = Settings().state_dir
        live: Any = live_document(self.ledger, record, state_dir)
        queued = queue_context(self.ledger, record.id)
        summary = run_summary(self.ledger, record, state_dir)
        return {**job, "queue_context": queued, "live": live, **summary}

    def list_jobs(self, project: str | None, limit: int | None) -> Document:
        known, jobs = self.find_project(project), self.open_index()
        entries = jobs.list_entries(known.id if known else None)
        newest = entries if limit is None else entries[-limit:]
        return {"training_jobs": jobs.list_documents(newest), "total_jobs": len(entries)}

    def list_unfinished_ids(self, project: str | None) -> list[str]:
        """Return the IDs of the queued and active jobs of the project, oldest first."""
        entries = self.list_entries(project)
        unfinished = self.open_index().list_unfinished(entries, self.get_reconciled_state)
        return [entry.id for entry in unfinished]

    def list_unfinished(self, project: str | None) -> list[Document]:
        return [self._read_document(job_id) for job_id in self.list_unfinished_ids(project)]

    def read_end(self, job_id: str) -> Document:
        last = self.ledger.list_events(job_id)[-1]
        return {
            "state": last.state.value,
            "message": last.message,
            "first_failure": last.state.failed
            and any(outcome.failure for outcome in self.ledger.list_outcomes(job_id)),
            "warnings": self._list_warnings(job_id, last.state),
            "uncommitted": self._list_uncommitted(job_id, last.state),
        }

    def wait_for_end(self, job_id: str) -> JobState:
        from prefect_bt.jobs.stop import wait_for_end

        return wait_for_end(self.ledger, job_id)

    def stop(self, job_id: str, *, abandoned: bool = False) -> str:
        from prefect_bt.jobs.job_json import current_user
        from prefect_bt.jobs.stop import stop_job

        by = self._user or current_user() or "a user"
        return stop_job(self.ledger, job_id, by=by, abandoned=abandoned)

    def cancel_runs(self, job_id: str) -> None:
        """Cancel the flow runs of a job that was stopped while it waited.

        Without this, Prefect shows such a run as late until a worker takes it, or as waiting.
        """
        from prefect_bt.prefect_api.client import cancel_run

        runs, events = self.ledger.runs.list(job_id), self.ledger.list_events(job_id)
        waited = len(events) > 1 and events[-2].state is JobState.PENDING
        if not runs or (self.ledger.list_attempts(job_id) and not waited):
            return
        try:
            for run in runs:
                cancel_run(run.flow_run_id)
        except PrefectBtError as error:
            self._warn(f"The job is stopped, but its flow run cannot be canceled: {error}")

    def push(
        self,
        project: TrainingProject,
        source_dir: Path,
        options: RunOptions,
        launcher: JobLauncher | None = None,
    ) -> Document:
        from prefect_bt.jobs.submit import submit

        submitted = options.to_submit_options()
        return submit(project, source_dir=source_dir, options=submitted, launcher=launcher)

    def plan(self, project: TrainingProject, source_dir: Path, options: RunOptions) -> Document:
        from prefect_bt import codec
        from prefect_bt.jobs.submit import dry_run
        from prefect_bt.workspace.pack_summary import workspace_document

        submitted = options.to_submit_options()
        plan, contents = dry_run(project, source_dir=source_dir, options=submitted)
        return {**codec.encode(plan), **workspace_document(contents)}

    def recreate(self, job_id: str, options: RunOptions, env: Mapping[str, str]) -> Document:
        from prefect_bt.jobs.submit import recreate

        return recreate(job_id, options=options.to_submit_options(), env=env)

    def retry(self, job_id: str, max_run_time: str | None, env: Mapping[str, str]) -> Document:
        from prefect_bt.jobs.resubmit import retry

        return retry(job_id, store=self.url, max_run_time=max_run_time, env=env)

    def put_back_lost_jobs(self) -> None:
        """Put jobs that no process and no queue has into the queue again, if the user may write."""
        from prefect_bt.jobs.starting.lost_jobs import LostJobs

        with suppress(StoreError):
            for sentence in LostJobs(self.ledger, Settings().state_dir).put_back():
                self._warn(f"{sentence[:1].upper()}{sentence[1:]}.")

    def read_queue(self, named: int | None) -> Document:
        from prefect_bt.queue.overview import queue_documents, read_schedule

        rows = queue_documents(read_schedule(self.ledger))
        rows = [one for one in rows if self._sees(one["team"] or "")]
        wanted = [one["id"] for one in rows[:named] if one["id"] not in self._names]
        if wanted:
            from concurrent.futures import ThreadPoolExecutor  # slow to import

            with ThreadPoolExecutor(_THREADS, thread_name_prefix="queue") as pool:
                self._names |= zip(wanted, pool.map(self._find_names, wanted), strict=True)
        return {"jobs": rows, "names": {one["id"]: self._names[one["id"]] for one in rows[:named]}}

    def read_metrics(
        self, job_id: str, form: str, *, since: float | None = None, follow: bool = False
    ) -> Document:
        from prefect_bt.job_metrics.document import list_rows
        from prefect_bt.job_metrics.job_metrics import JobMetricsReader
        from prefect_bt.job_metrics.series import choose_window
        from prefect_bt.jobs.metrics.tables import metrics_tables
        from prefect_bt.jobs.metrics.view import read_cache, read_document

        self.get_reconciled_state(job_id)
        if job_id not in self._metrics:
            record, state_dir = self.ledger.get_job(job_id), Settings().state_dir
            self._metrics[job_id] = JobMetricsReader(self.ledger, record, state_dir)
        metrics = self._metrics[job_id].read(follow=follow)
        if form == "json":
            window = choose_window(metrics, since=since)
            result: Any = read_document(self.ledger, metrics, window=window)
        elif form == "csv":
            result = list(list_rows(metrics, since=since))
        else:
            cache = read_cache(self.ledger, metrics.history.record)
            result = metrics_tables(metrics, cache, since=since)
        return {"ended": metrics.history.ended_at is not None, "result": result}

    def list_checkpoints(self, job_id: str, name: str | None, sort: str, order: str) -> Document:
        from prefect_bt.job_service.checkpoint_lists import list_committed

        return list_committed(self.ledger, self.ledger.get_job(job_id), name, sort, order)

    def list_files(self, job_id: str, names: Sequence[str]) -> Document:
        from prefect_bt.job_service.checkpoint_lists import list_target_files

        return list_target_files(self.ledger, self.ledger.get_job(job_id), names)

    def open_objects(self, job_id: str) -> RangeReader:
        _ = job_id
        return self.ledger.store

    def read_lines(self, job_id: str, query: LogQuery) -> Iterator[JobLine | None]:
        from prefect_bt.job_service.log_lines import read_lines

        self.get_reconciled_state(job_id)
        record = self.ledger.get_job(job_id)
        yield from read_lines(self.ledger, record, query, warn=self._warn, sleep=self._sleep)

    def read_first_failure(self, job_id: str, attempt: int | None) -> Document:
        from prefect_bt.logs.first_failure import read_first_failure

        self.get_reconciled_state(job_id)
        why = read_first_failure(self.ledger, self.ledger.get_job(job_id), attempt)
        outcome = why.outcome
        return {
            "attempt": outcome.attempt,
            "failed_rank": outcome.failed_rank,
            "failure": outcome.failure.value if outcome.failure else None,
            "exit_code": outcome.exit_code,
            "message": outcome.message,
            "lines": why.lines,
        }

    def _sees_project(self, project_id: str) -> bool:
        # For all teams, the team of no project is read.
        return self._sees is _see_all or self._sees(self.ledger.projects.get_team(project_id))

    def _read_document(self, job_id: str) -> Document:
        from prefect_bt.jobs.job_json import job_document  # no list of ended jobs needs it

        self.get_reconciled_state(job_id)
        return job_document(self.ledger, self.ledger.get_job(job_id))

    def _find_names(self, job_id: str) -> Document:
        with suppress(NotFoundError):  # deleted meanwhile
            record = self.ledger.get_job(job_id)
            return {"name": record.name, "project": record.project_name}
        return {}

    def _list_warnings(self, job_id: str, state: JobState) -> list[str]:
        from prefect_bt.attempts.success_summary import list_warnings

        outcomes = self.ledger.list_outcomes(job_id) if state is JobState.COMPLETED else []
        return list_warnings(outcomes[-1].nodes) if outcomes else []

    def _list_uncommitted(self, job_id: str, state: JobState) -> list[str]:
        """Return lines about the checkpoints that the job has left on its nodes."""
        from prefect_bt.checkpoints.committed.catalog import list_checkpoints
        from prefect_bt.checkpoints.sync_status import read_sync_status
        from prefect_bt.checkpoints.uncommitted import format_uncommitted_report

        if not state.terminal:
            return []
        record = self.ledger.get_job(job_id)
        committed = list_checkpoints(self.ledger.store, record.project_id, job_id)
        sync = read_sync_status(self.ledger, record, state, committed, checkpointing=True)
        return format_uncommitted_report(job_id, sync.uncommitted)


def no_jobs_error(url: str, project: str | None, option: str = "") -> PrefectBtError:
    return PrefectBtError(
        f"There is no training job in {f'project {project!r}' if project else url} yet.",
        next_step=f"Start one: prefect-bt push config.py{option}",
    )
