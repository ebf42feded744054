"""`prefect-bt logs`: which ranks and attempts, folding, the first failure, damaged logs."""

import json

import pytest

from prefect_bt.definitions import Compute
from prefect_bt.ledger.records import ArchivedLog, FailureClass, Outcome
from prefect_bt.ledger.states import JobState
from prefect_bt.object_keys import log_key
from prefect_bt.text.number_ranges import NumberRanges, parse_number_ranges
from tests.cli.conftest import Cli, Shop


@pytest.fixture
def job(shop: Shop, running):
    """Two attempts of three ranks: rank 1 of the first fails, the second is stopped."""
    record = shop.job("tiny", *running, compute=Compute(node_count=3))
    for attempt in range(2):
        shop.ledger.begin_attempt(record.id)
        for rank in range(3):
            shop.log(record, ["loading", f"loss of {rank}"], attempt=attempt, rank=rank)
    failed = Outcome(
        0,
        JobState.FAILED,
        message="Rank 1 failed first: start command 1 exited with 3.",
        failure=FailureClass.USER,
        failed_rank=1,
        exit_code=3,
        log_tail=("kept line",),
    )
    shop.ledger.end_attempt(record.id, failed)
    shop.ledger.end_attempt(record.id, Outcome(1, JobState.STOPPED))
    shop.ledger.append_event(record.id, JobState.STOPPED)
    return record


def messages(out: str) -> list[str]:
    return [line.partition("]: ")[2] for line in out.splitlines()]


def test_ranks_and_attempts_as_ranges(cli: Cli, job):
    found = cli("logs", "--rank", "0,2-5", "--attempt", "-1")
    assert (found.code, found.err) == (0, "Times are in UTC.\n")
    assert messages(found.out) == [
        "(rank-0) loading",
        "(rank-2) loading",
        "(rank-0) loss of 0",
        "(rank-2) loss of 2",
    ]


def test_first_failure(cli: Cli, job):
    done = cli("logs", "--first-failure")
    assert (done.code, done.err) == (0, "Times are in UTC.\n")
    head, *lines = done.out.splitlines()
    assert head == "Attempt 0: Rank 1 failed first: start command 1 exited with 3."
    assert messages("\n".join(lines)) == ["(rank-1) loading", "(rank-1) loss of 1"]
    for attempt in ("0", "-2"):
        found = cli("logs", "--first-failure", "--attempt", attempt, "-o", "json").json
        assert (found["attempt"], found["failed_rank"], found["failure"]) == (0, 1, "user")
    assert [one["message"] for one in found["logs"]] == ["loading", "loss of 1"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "code", "said"),
    [
        ("--rank x", 2, "'x' is not a number: write for example 3, or 0,2-5"),
        ("--attempt 5-2", 2, "'5-2' is empty: write the smaller number first"),
        ("--grep (", 2, "not a regular expression"),
        ("--first-failure --attempt 0,1", 2, "--first-failure shows one attempt."),
        ("--first-failure --tail --rank 1", 2, "cannot be combined with --tail and --rank."),
        ("--first-failure --attempt -1", 1, "did not fail: TRAINING_JOB_STOPPED. Attempts that "),
        ("--first-failure --attempt 7", 1, "has no attempt 7 that has ended. Attempts that "),
        ("--first-failure --attempt -5", 1, "has no attempt -5 that has ended. Attempts that "),
    ],
)
def test_a_wrong_choice_is_refused_in_one_sentence(cli: Cli, job, line: str, code: int, said: str):
    error = cli("logs", *line.split()).refusal(code)
    assert said in error
    assert code == 2 or "Attempts that failed: 0." in error
    assert "Traceback" not in error


@pytest.mark.parametrize("tail", [[], ["--tail"]])
def test_a_damaged_log_is_shown_and_named(cli: Cli, shop: Shop, running, tail: list[str]):
    record = shop.job("tiny", *running)
    shop.ledger.begin_attempt(record.id)
    shop.log(record, ["a", "b"])
    size = len(shop.ledger.store.get(log_key(record.project_id, record.id, 0, 0)))
    logs = (ArchivedLog(0, size + 7, 3, "0" * 64),)
    shop.ledger.end_attempt(record.id, Outcome(0, JobState.FAILED, logs=logs))
    shop.ledger.append_event(record.id, JobState.FAILED)
    done = cli("logs", "--no-platform", *tail)
    assert messages(done.out) == ["(rank-0) a", "(rank-0) b"]
    said = f"The log of rank 0 of attempt 0 is cut: {size} bytes are there, {size + 7} were sealed."
    assert f"{said} The lines that can be read are shown.\n" in done.err


def test_numbers():
    chosen = parse_number_ranges(["0,2-5", " 9 "])
    assert chosen is not None
    assert [n for n in range(12) if n in chosen] == [0, 2, 3, 4, 5, 9]
    assert parse_number_ranges([]) is None
    huge = parse_number_ranges(["0-999999999"])
    assert huge is not None and 123_456_789 in huge
    assert NumberRanges(((-1, -1), (0, 0))).resolve_negative(3) == NumberRanges(((2, 2), (0, 0)))


@pytest.mark.parametrize("text", ["", ",", "1,", "a", "1-", "-1-2", "1--2", "1.5", "9" * 40])
def test_no_numbers(text: str):
    with pytest.raises(ValueError, match="write"):
        parse_number_ranges([text])


def test_json_is_ascii_and_parses(cli: Cli, shop: Shop, job):
    shop.log(job, ["\x1b[31mrot\x00 ✓ \u2028"], attempt=1)
    found = json.loads(cli("logs", "-o", "json", "--attempt", "1", "--rank", "0").out)
    assert found["logs"][0]["message"] == "\x1b[31mrot\x00 ✓ \u2028"
