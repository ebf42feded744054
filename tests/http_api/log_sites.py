"""A server of the API on a free port, jobs with logs in its store, and truss's way to read them."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from prefect_bt.http_api.access import ApiSite
from prefect_bt.http_api.keys import ApiKeys
from prefect_bt.http_api.uploads.staging import Uploads
from prefect_bt.ledger.ledger import Ledger
from prefect_bt.ledger.records import JobRecord, Outcome
from prefect_bt.ledger.states import JobState
from prefect_bt.logs.line_format import format_line
from prefect_bt.object_keys import log_key
from prefect_bt.object_store import open_store
from prefect_bt.settings import Settings
from tests.http_api.served import serving
from tests.jobs.records import new_record
from tests.ports import free_port
from tests.written_jobs import write_job

Line = dict[str, Any]


@dataclass
class LogSite:
    """A site whose ledger has the time `at`, in epoch seconds."""

    folder: Path
    at: float = field(default_factory=time.time)
    url: str = ""

    def __post_init__(self) -> None:
        self.ledger = Ledger(open_store(str(self.folder / "store")), clock=lambda: self.at)
        keys = ApiKeys(self.ledger.store)
        settings = Settings(state_dir=self.folder / "state", store=str(self.folder / "store"))
        self.site = ApiSite(self.ledger, settings, keys, Uploads(settings.state_dir))
        key, _ = keys.create("tests")
        headers = {"Authorization": f"Api-Key {key}"}
        self.client = httpx.Client(headers=headers, trust_env=False, timeout=30)

    @contextmanager
    def serving(self) -> Iterator[LogSite]:
        with serving(self.site) as self.url, self.client:
            yield self

    @contextmanager
    def serving_in_a_process(self) -> Iterator[subprocess.Popen[bytes]]:
        code = (
            "import uvicorn; from prefect_bt.http_api.app import create_app, open_site;"
            f"uvicorn.run(create_app(open_site()), port={(port := free_port())}, http='h11')"
        )
        settings = self.site.settings
        store, state = settings.store, str(settings.state_dir)
        env = {**os.environ, "PREFECT_BT_STORE": store, "PREFECT_BT_STATE_DIR": state}
        with subprocess.Popen([sys.executable, "-c", code], env=env) as server:
            self.url = f"http://127.0.0.1:{port}"
            while True:
                with suppress(httpx.ConnectError):
                    self.client.get(self.url)
                    break
                time.sleep(0.05)
            yield server
            server.terminate()

    def job(self, *, ago: float = 0, state: JobState = JobState.CREATED) -> JobRecord:
        self.at = time.time() - ago
        record = new_record(self.ledger)
        write_job(self.ledger, record, state=state)
        return record

    def begin(self, record: JobRecord) -> int:
        attempt = self.ledger.begin_attempt(record.id)
        if self.ledger.get_state(record.id) is JobState.PENDING:
            self.ledger.append_event(record.id, JobState.CREATED)
        for state in (JobState.DEPLOYING, JobState.RUNNING):
            self.ledger.append_event(record.id, state, attempt=attempt)
        return attempt

    def archive(self, record: JobRecord, data: bytes, *, attempt: int = 0, rank: int = 0) -> None:
        self.ledger.store.put(log_key(record.project_id, record.id, attempt, rank), data)

    def end(self, record: JobRecord, *, attempt: int = 0, state=JobState.COMPLETED) -> None:
        self.ledger.end_attempt(record.id, Outcome(attempt, state, ended_at=self.at))
        self.at += 1
        self.ledger.append_event(record.id, state)

    def path(self, record: JobRecord, name: str) -> str:
        return f"{self.url}/v1/training_projects/{record.project_id}/jobs/{record.id}/{name}"

    def post(self, record: JobRecord, name: str = "logs", **body: Any) -> httpx.Response:
        return self.client.post(self.path(record, name), json=body)

    def logs(self, record: JobRecord, **body: Any) -> list[Line]:
        answer = self.post(record, **body)
        assert answer.status_code == 200, answer.text
        return answer.json()["logs"]

    def read_pages(self, record: JobRecord, *, limit: int = 1000) -> list[Line]:
        """Read as `truss train logs` does: windows of two hours until one is empty."""
        lines, start = list[Line](), int(record.created_at * 1000)
        while True:
            window = {"start_epoch_millis": start, "end_epoch_millis": start + 2 * 3_600_000}
            page = self.logs(record, **window, limit=limit, direction="asc")
            if not page:
                return lines
            lines += page
            start = int(page[-1]["timestamp"]) // 10**6 + 1


class Tail:
    """Polls as `truss train logs --tail` does, and drops the lines that it has."""

    def __init__(self, site: LogSite, record: JobRecord) -> None:
        self._site, self._record = site, record
        self._seen, self._polled = set[str](), 0
        self.lines = list[Line]()

    def poll(self) -> None:
        now = int(time.time() * 1000)
        window = {"end_epoch_millis": now + 60_000}
        if self._polled:
            window["start_epoch_millis"] = self._polled - 60_000
        for line in reversed(self._site.logs(self._record, **window)):
            text = f"{line['timestamp']}-{line['message']}-{line['replica']}"
            digest = hashlib.sha256(text.encode()).hexdigest()
            if digest not in self._seen:
                self._seen.add(digest)
                self.lines.append(line)
        self._polled = now


def stamped(times: Sequence[float], text: Callable[[int], str] = "line {}".format) -> bytes:
    """Return stored lines with these times in epoch seconds."""
    return b"".join(format_line(int(at * 1e9), text(i)) for i, at in enumerate(times))


def own(lines: list[Line]) -> list[str]:
    """Return the messages of the job's own lines."""
    return [line["message"] for line in lines if line["replica"] != "prefect-bt"]
