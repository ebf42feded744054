"""The jobs of a server of the HTTP API: what StoreJobs does, by its routes /prefect-bt/v1."""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from prefect_bt import codec
from prefect_bt.errors import (
    ServerError,
    StoreError,
    UsageError,
)
from prefect_bt.job_service.protocol import Document, JobName, LogQuery
from prefect_bt.job_service.remotes import Server
from prefect_bt.job_service.server_connection import FAILED, Connection
from prefect_bt.ledger.states import JobState
from prefect_bt.logs.follow import MAX_OUTAGE
from prefect_bt.logs.levels import LogLevel
from prefect_bt.logs.line_filter import JobLine
from prefect_bt.logs.line_format import LogLine
from prefect_bt.object_store.protocols import ByteCallback

if TYPE_CHECKING:
    from prefect_bt.definitions import TrainingProject
    from prefect_bt.job_service.run_options import RunOptions
    from prefect_bt.jobs.starting.launcher import JobLauncher

_POLL_INTERVAL: Final = 1.0
_OVERLAP: Final = 10 * 10**9
"""Nanoseconds before the newest line that are read again after a lost connection."""
_CHUNK: Final = 1 << 20
_LOCAL_OPTIONS: Final = {"here": "--here", "deployment": "--deployment"}


def _count_nothing(_: int) -> AbstractContextManager[ByteCallback]:
    return nullcontext(lambda _: None)


class HttpJobs:
    """A JobService. `upload`: returns a context with a counter of the bytes of a push."""

    ledger = None

    def __init__(
        self,
        server: Server,
        *,
        warn: Callable[[str], object] = lambda _: None,
        upload: Callable[[int], AbstractContextManager[ByteCallback]] = _count_nothing,
    ) -> None:
        self._server, self._print_warning, self._upload = server, warn, upload
        self._connection = Connection(server)

    @property
    def url(self) -> str:
        return self._server.url

    @property
    def option(self) -> str:
        return self._server.option

    def read_overview(self) -> Document:
        return self._get("overview")

    def describe_job(self, job_id: str, project: str | None = None) -> Document:
        return self._get(_job_path(job_id), project=project)

    def list_jobs(self, project: str | None, limit: int | None) -> Document:
        return self._get("jobs", project=project, limit=limit)

    def list_unfinished(self, project: str | None) -> list[Document]:
        return self._get("unfinished_jobs", project=project)

    def find_job(self, job_id: str | None, project: str | None) -> JobName:
        return JobName(*self._get("job_name", job_id=job_id, project=project))

    def read_end(self, job_id: str) -> Document:
        end: Document = self._get(f"{_job_path(job_id)}/end")
        return {**end, "message": self._server.add_option(end["message"])}

    def wait_for_end(self, job_id: str) -> JobState:
        outage = _Outage(self._warn)
        while True:
            with outage.outlast():
                state = JobState(self.read_end(job_id)["state"])
                if state.terminal:
                    return state
            time.sleep(_POLL_INTERVAL)

    def stop(self, job_id: str, *, abandoned: bool = False) -> str:
        sentence: str = self._post(f"{_job_path(job_id)}/stop", {"abandoned": abandoned})
        return self._server.add_option(sentence)

    def cancel_runs(self, job_id: str) -> None:
        self._post(f"{_job_path(job_id)}/cancel_runs", {})

    def push(
        self,
        project: TrainingProject,
        source_dir: Path,
        options: RunOptions,
        launcher: JobLauncher | None = None,
    ) -> Document:
        from prefect_bt.jobs.submit import open_packed_workspace
        from prefect_bt.workspace.pack_summary import workspace_document

        body = self._submission(project, options)
        self._post("plan", body)  # a job that is refused is not uploaded
        with open_packed_workspace(project, source_dir) as packed:
            body["artifact"] = self._send_archive(packed.path)
        return {**self._post("jobs", body), **workspace_document(packed.contents)}

    def plan(self, project: TrainingProject, source_dir: Path, options: RunOptions) -> Document:
        from prefect_bt.jobs.submit import open_packed_workspace
        from prefect_bt.workspace.pack_summary import workspace_document

        with open_packed_workspace(project, source_dir) as packed:
            contents = workspace_document(packed.contents)
        return {**self._post("plan", self._submission(project, options)), **contents}

    def recreate(self, job_id: str, options: RunOptions, env: Mapping[str, str]) -> Document:
        body = {"options": self._encode(options), "env": dict(env)}
        return self._post(f"{_job_path(job_id)}/recreate", body)

    def retry(self, job_id: str, max_run_time: str | None, env: Mapping[str, str]) -> Document:
        body = {"max_run_time": max_run_time, "env": dict(env)}
        return self._post(f"{_job_path(job_id)}/retry", body)

    def read_queue(self, named: int | None) -> Document:
        return self._get("queue", named=named)

    def read_metrics(
        self, job_id: str, form: str, *, since: float | None = None, follow: bool = False
    ) -> Document:
        return self._get(f"{_job_path(job_id)}/metrics", form=form, since=since, follow=follow)

    def list_checkpoints(self, job_id: str, name: str | None, sort: str, order: str) -> Document:
        return self._get(f"{_job_path(job_id)}/checkpoints", name=name, sort=sort, order=order)

    def list_files(self, job_id: str, names: Sequence[str]) -> Document:
        return self._get(f"{_job_path(job_id)}/files", name=list(names))

    def open_objects(self, job_id: str) -> HttpObjects:
        return HttpObjects(self, job_id)

    def read_lines(self, job_id: str, query: LogQuery) -> Iterator[JobLine | None]:
        # A pattern of the user is not run on the server, where it could take forever.
        limit = query.limit if query.pattern is None else None
        params: Document = {
            "rank": list(query.rank),
            "attempt": list(query.attempt),
            "since": query.since,
            "until": query.until,
            "min_level": query.min_level.name if query.min_level else None,
            "levels": query.levels,
            "platform": query.platform,
        }
        if query.follow:
            lines = self._follow(job_id, {**params, "follow": True}, limit)
        else:
            lines = self._stream(job_id, {**params, "limit": limit})
        if query.pattern is None:
            return lines
        search = query.pattern.search
        matching = (one for one in lines if one is None or search(one.line.message))
        return matching if query.limit is None else _keep_newest(matching, query.limit)

    def read_first_failure(self, job_id: str, attempt: int | None) -> Document:
        return self._get(f"{_job_path(job_id)}/first_failure", attempt=attempt)

    def fetch(self, path: str, **params: Any) -> bytes:
        """Return the bytes of an answer."""
        return self._connection.send("GET", path, params)

    def _follow(self, job_id: str, params: Document, limit: int | None) -> Iterator[JobLine | None]:
        """Yield lines to the end of the job, also over lost connections."""
        recent, newest, outage = dict[JobLine, None](), 0, _Outage(self._warn)
        while True:
            since = max(params["since"], newest - _OVERLAP)
            with outage.outlast():
                for line in self._stream(job_id, {**params, "since": since, "limit": limit}):
                    outage.end()
                    if line is None:
                        yield None
                    elif line not in recent:
                        newest, recent[line] = max(newest, line.at), None
                        while (oldest := next(iter(recent))).at < newest - _OVERLAP:
                            del recent[oldest]
                        yield line
                return
            limit = limit if not newest else None
            time.sleep(_POLL_INTERVAL)

    def _stream(self, job_id: str, params: Document) -> Iterator[JobLine | None]:
        """Yield the lines of one answer. StoreError if it is cut."""
        rest = b""
        try:
            answer = self._connection.open("GET", f"{_job_path(job_id)}/lines", params)
            while data := answer.read1(_CHUNK):
                *texts, rest = (rest + data).split(b"\n")
                for text in texts:
                    event: Any = json.loads(text) if text else None
                    if event is None:
                        yield None
                    elif isinstance(event, list):
                        yield _decode_line(*cast("list[Any]", event))
                    else:
                        for sentence in event["warnings"]:
                            self._warn(sentence)
                        if event["is_last"]:
                            return
        except FAILED as error:
            raise self._connection.unreachable(error) from error
        finally:
            self._connection.close()
        raise StoreError(f"The log of {self.url} ended in the middle.", url=self.url)

    def _warn(self, sentence: str) -> None:
        self._print_warning(self._server.add_option(sentence))

    def _submission(self, project: TrainingProject, options: RunOptions) -> Document:
        from prefect_bt.definitions import project_document

        return {"training_project": project_document(project), "options": self._encode(options)}

    def _encode(self, options: RunOptions) -> Document:
        for name, option in _LOCAL_OPTIONS.items():
            if getattr(options, name):
                raise UsageError(f"{option} does not work through {self._server.origin}.")
        return codec.encode(options)

    def _send_archive(self, path: Path) -> Document:
        def read(tick: ByteCallback) -> Iterator[bytes]:
            with path.open("rb") as stream:
                while data := stream.read(_CHUNK):
                    tick(len(data))
                    yield data

        size = path.stat().st_size
        with self._upload(size) as tick:
            return self._call("PUT", "workspaces", body=read(tick), size=size)

    def _get(self, path: str, **params: Any) -> Any:
        return self._call("GET", path, params)

    def _post(self, path: str, body: Document) -> Any:
        data = json.dumps(body).encode()
        return self._call("POST", path, body=data, size=len(data))

    def _call(self, method: str, path: str, params: Document | None = None, **sent: Any) -> Any:
        data = self._connection.send(method, path, params or {}, **sent)
        try:
            document: Document = json.loads(data)
            result, warnings = document["result"], document["warnings"]
        except (ValueError, LookupError, TypeError):
            raise ServerError(f"{self.url} does not answer as a server of prefect-bt.") from None
        for sentence in warnings:
            self._warn(sentence)
        return result


class HttpObjects:
    """The objects of a job on a server, for a download."""

    def __init__(self, jobs: HttpJobs, job_id: str) -> None:
        self._jobs, self._job_id, self.url = jobs, job_id, jobs.url

    def get_range(self, key: str, *, start: int, length: int) -> bytes:
        path = f"{_job_path(self._job_id)}/object"
        return self._jobs.fetch(path, key=key, start=start, length=length)


class _Outage:
    """A time in which the server does not answer: the first error is a warning."""

    def __init__(self, warn: Callable[[str], object]) -> None:
        self._warn, self._since = warn, 0.0

    def end(self) -> None:
        self._since = 0.0

    @contextmanager
    def outlast(self) -> Generator[None]:
        """Suppress StoreError in the block; raise it after MAX_OUTAGE."""
        try:
            yield
        except StoreError as error:
            now = time.monotonic()
            if not self._since:
                self._since = now
                self._warn(f"This continues when the server answers again: {error}")
            if now - self._since > MAX_OUTAGE:
                raise
        else:
            self.end()


def _job_path(job_id: str) -> str:
    """Return the path of a job; refuse an ID that would be another path. NotFoundError."""
    if job_id.isascii() and job_id.isalnum():
        return f"jobs/{job_id}"
    from prefect_bt.ledger.ledger import unknown_job_error  # slow to import

    raise unknown_job_error(job_id)


def _decode_line(  # noqa: PLR0913, PLR0917 (the parts of a line)
    attempt: int | None, timestamp: int, message: str, rank: int, level: int | None, at: int
) -> JobLine:
    known = None if level is None else LogLevel(level)
    return JobLine(attempt, LogLine(timestamp, message, rank), known, at)


def _keep_newest(lines: Iterable[JobLine | None], limit: int) -> Iterator[JobLine | None]:
    """Yield the newest of the lines before the first pause, then all that follow."""
    lines = iter(lines)
    newest = deque[JobLine](maxlen=limit)
    for line in lines:
        if line is None:
            break
        newest.append(line)
    yield from newest
    yield from lines
