"""Return why an attempt failed: its outcome and the last lines of the rank that failed first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from prefect_bt.errors import PrefectBtError
from prefect_bt.ledger.ledger import Ledger
from prefect_bt.ledger.records import JobRecord, Outcome
from prefect_bt.logs.line_format import LogLine
from prefect_bt.logs.rank_reader import list_stored_logs, read_last_lines


@dataclass(frozen=True)
class FirstFailure:
    """`lines`: the last of the failed rank, without times (0) if its archived log is gone.

    There are none if no rank ran.
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
    stored = list_stored_logs(ledger.store, record.project_id, record.id, outcome.attempt)
    log, tail = stored.get(rank), [LogLine(0, text, rank) for text in outcome.log_tail]
    archived = next((one.bytes for one in outcome.logs if one.rank == rank), 0)
    # The outcome has the end of a log that was removed or cut.
    lines = read_last_lines(log) if log and (log.size >= archived or not tail) else []
    return FirstFailure(outcome, tuple(lines or tail))


def _select_outcome(ledger: Ledger, record: JobRecord, attempt: int | None) -> Outcome:
    outcomes = ledger.list_outcomes(record.id)
    failed = [outcome for outcome in outcomes if outcome.failure is not None]
    if attempt is None:
        if failed:
            return failed[-1]
        state = ledger.get_state(record.id).value
        raise _not_found_error(f"No attempt of job {record.id} ({state}) has failed.", record, [])
    number = attempt if attempt >= 0 else len(ledger.list_attempts(record.id)) + attempt
    outcome = next((one for one in outcomes if one.attempt == number), None)
    if outcome is None:
        problem = f"Job {record.id} has no attempt {attempt} that has ended."
        raise _not_found_error(problem, record, failed)
    if outcome.failure is None:
        problem = f"Attempt {number} of job {record.id} did not fail: {outcome.state.value}."
        raise _not_found_error(problem, record, failed)
    return outcome


def _not_found_error(problem: str, record: JobRecord, failed: Sequence[Outcome]) -> PrefectBtError:
    numbers = ", ".join(str(one.attempt) for one in failed)
    all_lines = f"All lines: prefect-bt logs --job-id {record.id}"
    hint = f"Attempts that failed: {numbers}." if failed else all_lines
    return PrefectBtError(problem, next_step=hint)
