"""What a drill found out about a job: whether it goes on from its checkpoint when a rank dies.

<job>/drill.json      the newest drill's result, replaced by the next
"""

from __future__ import annotations

from dataclasses import dataclass

from prefect_bt import codec
from prefect_bt.errors import ObjectNotFound
from prefect_bt.ledger.ledger import Ledger
from prefect_bt.ledger.records import JobRecord
from prefect_bt.object_keys import job_prefix


@dataclass(frozen=True)
class DrillResult:
    """Steps are those of committed checkpoints; seconds are counted from the kill."""

    job_id: str
    resumed: bool
    why: str
    """One sentence: what was seen, and what to do when it did not go on."""
    rank: int
    at: float
    """When the rank was killed, epoch seconds."""
    step_before: int | None = None
    """The newest committed step when the rank was killed."""
    step_after: int | None = None
    """The lowest step that the next attempt wrote by its first commit."""
    attempt: int | None = None
    """Which attempt that was."""
    seconds_to_attempt: float | None = None
    """Until the commands of the next attempt ran."""
    seconds_to_step: float | None = None
    """Until its first commit; the start-up of the user's own code is in it."""


def save_drill(ledger: Ledger, record: JobRecord, result: DrillResult) -> None:
    ledger.store.put(_key(record), codec.dumps(result).encode())


def find_drill(ledger: Ledger, record: JobRecord) -> DrillResult | None:
    try:
        return codec.loads(DrillResult, ledger.store.get(_key(record)))
    except ObjectNotFound:
        return None


def _key(record: JobRecord) -> str:
    return f"{job_prefix(record.project_id, record.id)}/drill.json"
