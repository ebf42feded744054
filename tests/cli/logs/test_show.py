"""`prefect-bt logs`: lines, filters, following, and leaving."""

import json
import signal
from datetime import UTC, datetime

import pytest

from prefect_bt.ledger.records import Outcome
from prefect_bt.ledger.states import JobState
from prefect_bt.text.durations import parse_since
from tests.cli.conftest import Cli, Shop, Within


@pytest.fixture
def job(shop: Shop, running):
    record = shop.job("tiny", *running)
    for attempt, word in enumerate(["first", "second"]):
        shop.ledger.begin_attempt(record.id)
        shop.log(record, [f"{word} try", "loss [1.0]"], attempt=attempt)
        shop.log(record, [f"{word} try, other node"], attempt=attempt, rank=1)
        shop.ledger.end_attempt(record.id, Outcome(attempt, JobState.FAILED))
    return record


@pytest.fixture
def over(shop: Shop, job):
    shop.ledger.append_event(
        job.id, JobState.FAILED, message="Rank 0 failed first: it exited with 3."
    )
    return job


ZONE = "Times are in UTC.\n"
ALL = """\
[2023-11-15 12:00:00]: (rank-0) first try
[2023-11-15 12:00:00]: (rank-1) first try, other node
[2023-11-15 12:00:01]: (rank-0) loss [1.0]
[2023-11-15 12:00:00]: (rank-0) second try
[2023-11-15 12:00:00]: (rank-1) second try, other node
[2023-11-15 12:00:01]: (rank-0) loss [1.0]
"""


def test_all_lines(cli: Cli, over):
    for arguments in ([], ["--job-id", over.id], ["--project", "tiny"]):
        done = cli("logs", "--no-platform", *arguments)
        assert (done.code, done.out, done.err) == (0, ALL, ZONE)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--rank", "1"], [1, 4]),
        (["--rank", "0", "--rank", "1"], [0, 1, 2, 3, 4, 5]),
        (["--attempt", "1"], [3, 4, 5]),
        (["--attempt", "1", "--rank", "0", "--grep", "l.ss"], [5]),
        (["--since", "2023-11-15T12:00:01"], [2, 5]),
        (["--since", "30d"], []),
        (["--start", "2023-11-15T12:00:01", "--end", "2023-11-15T12:00:01"], [2, 5]),
        (["--end", "2023-11-15T12:00:00", "--rank", "0"], [0, 3]),
        (["--limit", "4"], [2, 3, 4, 5]),
        (["--limit", "2", "--attempt", "0", "--rank", "0"], [0, 2]),
        (["--min-level", "debug"], []),
    ],
)
def test_filters(cli: Cli, over, arguments: list[str], expected: list[int]):
    lines = ALL.splitlines()
    done = cli("logs", "--no-platform", *arguments)
    assert done.code == 0
    assert done.out.splitlines() == [lines[i] for i in expected]
    assert ("No log lines" in done.err) == (not expected)


def test_json_is_one_document(cli: Cli, over):
    found = cli("logs", "-o", "json", "--no-platform").json
    assert found["job_id"] == over.id
    assert len(found["logs"]) == 6
    assert found["logs"][0] == {
        "timestamp": "1700049600000000000",
        "message": "first try",
        "replica": "rank-0",
        "level": None,
        "attempt": 0,
    }
    empty = cli("logs", "-o", "json", "--grep", "nothing like it")
    assert empty.json == {"job_id": over.id, "logs": []}


def test_tail_of_a_job_that_is_over_ends_with_how_it_ended(cli: Cli, over):
    done = cli("logs", "--tail", "--no-platform")
    assert (done.code, done.out) == (0, ALL)
    assert done.err == (
        f"{ZONE}Training job {over.id} failed.\nRank 0 failed first: it exited with 3.\n"
        f"  Log: prefect-bt logs --job-id {over.id}\n"
    )


def test_tail_as_json_is_one_object_a_line(cli: Cli, over):
    lines = cli("logs", "--tail", "-o", "json", "--no-platform").out.splitlines()
    assert [json.loads(line)["attempt"] for line in lines] == [0, 0, 0, 1, 1, 1]


@pytest.mark.slow
@pytest.mark.parametrize("state", ["COMPLETED", "STOPPED", "DEPLOY_FAILED"])
def test_tail_of_a_silent_job_ends(cli: Cli, shop: Shop, running, state: str):
    job = shop.job("tiny", *running, JobState[state])
    done = cli("logs", "--job-id", job.id, "--tail")
    assert done.code == 0
    assert all("]: (prefect-bt) " in line for line in done.out.splitlines())
    assert done.out.splitlines()[-1].partition("(prefect-bt) ")[2].startswith("Job ")
    assert job.id in done.err
    silent = cli("logs", "--job-id", job.id, "--tail", "--no-platform")
    assert (silent.code, silent.out) == (0, "")


@pytest.mark.slow
def test_levels_and_the_platforms_lines(within: Within, shop: Shop, running):
    job = shop.job("tiny", *running)
    shop.ledger.begin_attempt(job.id)
    shop.log(job, ["hello", "INFO:a:b", "WARNING:a:b", "Traceback (most recent call last):", "  x"])
    shop.ledger.end_attempt(job.id, Outcome(0, JobState.FAILED, message="It failed."))
    shop.ledger.append_event(job.id, JobState.FAILED, message="It failed.")
    found = within("logs", "-o", "json").json["logs"]
    ours = [one for one in found if one["replica"] == "prefect-bt"]
    assert [(one["message"], one["level"], one["attempt"]) for one in ours] == [
        ("Job accepted.", "INFO", None),
        ("Attempt 0 begins: 1 node.", "INFO", None),
        ("Attempt 0 runs.", "INFO", None),
        ("Job failed.", "ERROR", 0),
    ]
    levels = {one["message"]: one["level"] for one in found if one["replica"] == "rank-0"}
    assert list(levels.values()) == [None, "INFO", "WARNING", "ERROR", "ERROR"]
    said = within("logs", "--min-level", "warn", "--limit", "3").out.splitlines()
    assert [line.partition("]: ")[2] for line in said] == [
        "(rank-0) WARNING:a:b",
        "(rank-0) Traceback (most recent call last):",
        "(rank-0)   x",
    ]
    assert "(prefect-bt) Job failed." in within("logs", "--min-level", "error").out
    newest = within("logs", "--tail", "--limit", "2", "--rank", "0").out.splitlines()
    assert [line.partition("]: ")[2] for line in newest] == [
        "(rank-0) Traceback (most recent call last):",
        "(rank-0)   x",
    ]
    for wrong in (["--min-level", "loud"], ["--limit", "0"], ["--end", "soon"]):
        assert within("logs", *wrong).code == 2
    assert "exclude each other" in within("logs", "--tail", "--end", "1m").err
    both = within("logs", "--first-failure", "--limit", "1", "--min-level", "info").err
    assert "--limit and --min-level" in both


def test_a_queued_job_shows_the_reason_of_its_wait(within: Within, shop: Shop):
    job = shop.job("tiny")
    (last, *_) = reversed(within("logs", "--job-id", job.id).out.splitlines())
    assert last.endswith("(prefect-bt) Waiting for the job's flow to begin an attempt.")


def test_several_jobs_match(cli: Cli, shop: Shop, over, ended):
    newest = shop.job("tiny", *ended)
    done = cli("logs")
    assert f"using the newest: {newest.id}" in done.err


@pytest.mark.slow
def test_tail_follows_until_the_end(cli: Cli, shop: Shop, job):
    process = cli.start("logs", "--tail", "--job-id", job.id, "--no-platform")
    assert process.stdout and process.stderr
    assert process.stdout.readline() == ALL.splitlines(keepends=True)[0]
    shop.ledger.begin_attempt(job.id)
    shop.log(job, ["third try"], attempt=2)
    shop.ledger.end_attempt(job.id, Outcome(2, JobState.COMPLETED))
    shop.ledger.append_event(job.id, JobState.COMPLETED)
    out, err = process.communicate(timeout=200)
    assert out.splitlines()[-1] == "[2023-11-15 12:00:00]: (rank-0) third try"
    assert err == f"{ZONE}Training job {job.id} completed successfully.\n"
    assert process.returncode == 0


@pytest.mark.slow
def test_ctrl_c_leaves_the_job_alone(cli: Cli, shop: Shop, job):
    process = cli.start("logs", "--tail", "--job-id", job.id, "--no-platform")
    assert process.stdout
    for _ in range(6):
        process.stdout.readline()
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=200)
    assert process.returncode == 130
    assert out == ""
    assert err == (
        f"{ZONE}\nDetached. Training job {job.id} continues.\n"
        f"  Follow it again:  prefect-bt logs --job-id {job.id} --tail\n"
        f"  Stop it:          prefect-bt stop --job-id {job.id}\n"
    )
    assert shop.ledger.get_state(job.id) is JobState.RUNNING
    assert shop.ledger.controls.find_stop_request(job.id) is None


@pytest.mark.parametrize(
    ("text", "seconds_ago"), [("45s", 45), ("30m", 1800), ("2h", 7200), ("1.5d", 129600)]
)
def test_ages(text: str, seconds_ago: float):
    assert parse_since(text, now=1_000_000.0) == int((1_000_000 - seconds_ago) * 1e9)


def test_iso_times():
    text = "2026-11-20T14:00:00+00:00"
    expected = datetime(2026, 11, 20, 14, tzinfo=UTC).timestamp() * 1e9
    assert parse_since(text, now=0.0) == expected


@pytest.mark.parametrize("text", ["", "30", "m", "30 minutes", "yesterday", "-5m", f"{'9' * 400}d"])
def test_no_time(text: str):
    with pytest.raises(ValueError, match="for example"):
        parse_since(text, now=0.0)
