"""Read the progress of a job: its state, and the transfers of weights and checkpoints."""

from __future__ import annotations

from dataclasses import dataclass, field

from prefect_bt.checkpoints.upload.upload_status import (
    RankUpload,
    UploadStatusReader,
    format_trouble,
)
from prefect_bt.ledger.ledger import Ledger
from prefect_bt.ledger.records import JobRecord
from prefect_bt.ledger.states import JobState
from prefect_bt.logs.platform_lines import JobHistory
from prefect_bt.text.progress import Progress


@dataclass(frozen=True)
class JobSnapshot:
    """The progress of a job at one moment. `waiting`: what it waits for; "" while it runs."""

    state: JobState
    url: str = ""
    attempt: int | None = None
    waiting: str = ""
    mirrors: list[Progress] = field(default_factory=list[Progress])
    uploads: list[RankUpload] = field(default_factory=list[RankUpload])

    def format_committed(self) -> str:
        """Return `2 committed, newest checkpoint-20`, and an upload that is tried again."""
        statuses = [one.status for one in self.uploads]
        names = list(dict.fromkeys(name for status in statuses for name in status.committed))
        text = (
            f"{len(names)} committed, newest {names[-1]}" if names else "none in this attempt yet"
        )
        trouble = next((said for one in statuses if (said := format_trouble(one))), "")
        return f"{text}; {trouble}" if trouble else text


def read_snapshot(ledger: Ledger, record: JobRecord) -> JobSnapshot:
    """Read the records of the job. Raise StoreError."""
    history, attempts = JobHistory(ledger, record), ledger.list_attempts(record.id)
    line, runs = history.read_waiting_line(), ledger.runs.list(record.id)
    number = attempts[-1].attempt if attempts else None
    place = ledger.store, record.project_id, record.id
    return JobSnapshot(
        ledger.get_state(record.id),
        url=runs[-1].url if runs else "",
        attempt=number,
        waiting=line.line.message if line else "",
        mirrors=history.list_mirrors() if number is None else [],
        uploads=[] if number is None else UploadStatusReader(*place, number).read(),
    )
