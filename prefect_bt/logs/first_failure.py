"""Why an attempt failed, in its own words: the end of the log of the rank that failed first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from prefect_bt.errors import ObjectNotFound, PrefectBtError
from prefect_bt.ledger.ledger import Ledger
from prefect_bt.ledger.records import JobRecord, Outcome
from prefect_bt.logs.job_reader import read_archived_sizes
from prefect_bt.logs.line_format import LogLine, parse_lines
from prefect_bt.object_keys import attempt_prefix, log_key
from prefect_bt.object_store.protocols import Store

LINES: Final = 50
READ_BYTES: Final = 64 * 1024
MAX_BYTES: Final = 8 << 20
"""Of very long lines fewer are shown."""


@dataclass(frozen=True)
class FirstFailure:
    """`lines` are the rank's last; without a stamp (0) where its sealed log is gone.

    None are there when no rank ran: the attempt could not be launched, or nobody saw its end.
    """

    outcome: Outcome
    lines: tuple[LogLine, ...] = ()


def read_first_failure(
    ledger: Ledger, record: JobRecord, attempt: int | None = None
) -> FirstFailure:
    """Return why the newest failed attempt failed, or the given one.

    `attempt` counts from 0, a negative one from the end. PrefectBtError if it did not fail.
    """
    outcome = _select_outcome(ledger, record, attempt)
    rank = outcome.failed_rank
    if rank is None:
        return FirstFailure(outcome)
    prefix = attempt_prefix(record.project_id, record.id, outcome.attempt)
    key = log_key(record.project_id, record.id, outcome.attempt, rank)
    size = read_archived_sizes(ledger.store, prefix).get(rank, 0)
    try:
        lines = read_last_lines(ledger.store, key, size=size, rank=rank)
    except ObjectNotFound:
        lines = []
    sealed = next((one for one in outcome.logs if one.rank == rank), None)
    if sealed is not None and size < sealed.bytes and outcome.log_tail:
        lines = []  # it was cut since: the outcome has its end
    kept = [LogLine(0, text, rank) for text in outcome.log_tail]
    return FirstFailure(outcome, tuple(lines or kept)[-LINES:])


def read_last_lines(store: Store, key: str, *, size: int, rank: int = 0) -> list[LogLine]:
    """At most `LINES` of a log of `size` bytes, read from its end; ObjectNotFound."""
    data = b""
    start = size
    while start > 0 and data.count(b"\n") <= LINES and size - start < MAX_BYTES:
        before, start = start, max(0, start - READ_BYTES)
        data = store.get_range(key, start=start, length=before - start) + data
    if start > 0:
        # The first line is cut, unless nothing else is there.
        data = data.partition(b"\n")[2] or data
    return list(parse_lines(data, rank=rank))[-LINES:]


def _select_outcome(ledger: Ledger, record: JobRecord, attempt: int | None) -> Outcome:
    outcomes = ledger.list_outcomes(record.id)
    failed = [outcome for outcome in outcomes if outcome.failure is not None]
    if attempt is None:
        if not failed:
            state = ledger.get_state(record.id).value
            raise _not_found_error(
                f"No attempt of job {record.id} ({state}) has failed.", record, failed
            )
        return failed[-1]
    meant = attempt if attempt >= 0 else len(ledger.list_attempts(record.id)) + attempt
    outcome = next((one for one in outcomes if one.attempt == meant), None)
    if outcome is None:
        what = f"Job {record.id} has no attempt {attempt} that has ended."
        raise _not_found_error(what, record, failed)
    if outcome.failure is None:
        what = f"Attempt {meant} of job {record.id} did not fail: {outcome.state.value}."
        raise _not_found_error(what, record, failed)
    return outcome


def _not_found_error(subject: str, record: JobRecord, failed: Sequence[Outcome]) -> PrefectBtError:
    numbers = ", ".join(str(one.attempt) for one in failed)
    hint = f"Attempts that failed: {numbers}." if failed else ""
    hint = hint or f"All lines: prefect-bt logs --job-id {record.id}"
    return PrefectBtError(subject, next_step=hint)
