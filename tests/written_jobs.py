"""Jobs in the ledger as a push would have written them."""

from prefect_bt.ledger.ledger import Ledger
from prefect_bt.ledger.records import JobRecord
from prefect_bt.ledger.states import JobState


def write_job(
    ledger: Ledger, record: JobRecord, *, state: JobState = JobState.CREATED, host: str = ""
) -> None:
    """Create the job in `state`, held by `host` from its first event on; "": by no host."""
    ledger.create_job(record)
    epoch = ledger.claim(record.id, host) if host else 0
    ledger.append_event(record.id, state, message="accepted", epoch=epoch)
