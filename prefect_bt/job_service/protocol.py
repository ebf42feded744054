"""The protocol of the jobs of a store, as the command line needs it, wherever the store is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    import re

    from prefect_bt.definitions import TrainingProject
    from prefect_bt.job_service.run_options import RunOptions
    from prefect_bt.jobs.starting.launcher import JobLauncher
    from prefect_bt.ledger.ledger import Ledger
    from prefect_bt.ledger.states import JobState
    from prefect_bt.logs.levels import LogLevel
    from prefect_bt.logs.line_filter import JobLine
    from prefect_bt.object_store.protocols import RangeReader

Document = dict[str, Any]


class JobName(NamedTuple):
    """A job that a command works with."""

    id: str
    project_name: str


@dataclass(frozen=True)
class LogQuery:
    """Lines of a log, as the options of `prefect-bt logs` select them.

    `limit`: only the newest lines; with `follow`, of those that exist. `levels`: whether each line
    has its level.
    """

    rank: Sequence[str] = ()
    attempt: Sequence[str] = ()
    since: int = 0
    until: int | None = None
    pattern: re.Pattern[str] | None = None
    min_level: LogLevel | None = None
    levels: bool = False
    limit: int | None = None
    platform: bool = True
    follow: bool = False


class JobService(Protocol):
    """The jobs of one store. Documents are those of `-o json`.

    A job or project that is unknown is a NotFoundError, a store or server that does not answer a
    StoreError or ServerError. Warnings go to the function that the service was made with.
    """

    @property
    def url(self) -> str:
        """The store or server, for messages."""
        ...

    @property
    def option(self) -> str:
        """` --remote NAME` for commands in messages; "" if they need none."""
        ...

    @property
    def ledger(self) -> Ledger | None:
        """The records, for what only a process with access can show; None through a server."""
        ...

    def read_overview(self) -> Document:
        """Return the projects, and the queued and active jobs."""
        ...

    def describe_job(self, job_id: str, project: str | None = None) -> Document:
        """Return the document of a job of the project; with what it does now if it goes on."""
        ...

    def list_jobs(self, project: str | None, limit: int | None) -> Document:
        """Return the newest jobs, oldest first, as `training_jobs`, and `total_jobs`."""
        ...

    def list_unfinished(self, project: str | None) -> list[Document]:
        """Return the documents of the queued and active jobs, oldest first."""
        ...

    def find_job(self, job_id: str | None, project: str | None) -> JobName:
        """Return the job, or the newest of the project; PrefectBtError if there is none."""
        ...

    def read_end(self, job_id: str) -> Document:
        """Return `state`, `message`, `first_failure`, `warnings` and `uncommitted` of a job."""
        ...

    def wait_for_end(self, job_id: str) -> JobState:
        """Return the state in which the job ended."""
        ...

    def stop(self, job_id: str, *, abandoned: bool = False) -> str:
        """Request a stop; return a sentence about what happens next. StateError."""
        ...

    def cancel_runs(self, job_id: str) -> None:
        """Cancel the flow runs of a job that was stopped while it waited."""
        ...

    def push(
        self,
        project: TrainingProject,
        source_dir: Path,
        options: RunOptions,
        launcher: JobLauncher | None = None,
    ) -> Document:
        """Accept and start a job; return its document."""
        ...

    def plan(self, project: TrainingProject, source_dir: Path, options: RunOptions) -> Document:
        """Return the plan of a job and the files of its workspace; start nothing."""
        ...

    def recreate(self, job_id: str, options: RunOptions, env: Mapping[str, str]) -> Document:
        """Submit a copy of a job; return the document of the new job."""
        ...

    def retry(self, job_id: str, max_run_time: str | None, env: Mapping[str, str]) -> Document:
        """Start another attempt of a job that failed or was stopped. StateError."""
        ...

    def read_queue(self, named: int | None) -> Document:
        """Return the waiting `jobs` in order, and `names`: name and project of the first ones.

        `named`: the number of those; None for all.
        """
        ...

    def read_metrics(
        self, job_id: str, form: str, *, since: float | None = None, follow: bool = False
    ) -> Document:
        """Return `ended`, and the metrics as `result`. `form`: an output format of the command."""
        ...

    def list_checkpoints(self, job_id: str, name: str | None, sort: str, order: str) -> Document:
        """Return the committed checkpoints, or one with its files. `location`: their folder."""
        ...

    def list_files(self, job_id: str, names: Sequence[str]) -> Document:
        """Return the manifest entries of checkpoints by target path, as `files`.

        `incomplete`: checkpoint -> the part that is missing. `newest`: the newest complete one.
        """
        ...

    def open_objects(self, job_id: str) -> RangeReader:
        """Return the reader of the objects that manifest entries of the job name."""
        ...

    def read_lines(self, job_id: str, query: LogQuery) -> Iterator[JobLine | None]:
        """Yield the lines; those that follow until the job has ended. None precedes a pause."""
        ...

    def read_first_failure(self, job_id: str, attempt: int | None) -> Document:
        """Return the outcome of a failed attempt, and `lines`: time, text and rank of each."""
        ...
