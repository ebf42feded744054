"""`prefect-bt stop`: which job is meant, who is asked, and what a second stop says."""

import os
import pty
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest

from prefect_bt.host.job_lock import lock_job
from prefect_bt.ledger.job_objects import JobControls
from prefect_bt.ledger.ledger import Ledger
from prefect_bt.ledger.states import JobState
from tests.cli.conftest import Cli, Shop


def test_nothing_to_stop(cli: Cli, shop: Shop, ended):
    shop.job("tiny", *ended)
    assert cli("stop", "--yes").refusal() == "error: No queued or active training jobs.\n"
    assert cli("stop", "--all", "--yes").code == 0


def test_the_only_active_job(cli: Cli, shop: Shop, running):
    job = shop.job("tiny", *running)
    done = cli("stop", "--yes")
    assert done.code == 0, done.err
    assert done.out == f"Training job {job.id} stopped successfully.\n"
    assert shop.ledger.get_state(job.id) is JobState.STOPPED
    assert shop.ledger.controls.find_stop_request(job.id) is not None


def test_a_second_stop(cli: Cli, shop: Shop, running):
    job = shop.job("tiny", *running)
    assert cli("stop", "--job-id", job.id).code == 0
    error = cli("stop", "--job-id", job.id).refusal()
    assert error.startswith(f"error: Job {job.id} has already ended (TRAINING_JOB_STOPPED).")


def test_several_active_jobs_are_listed(cli: Cli, shop: Shop, running):
    jobs = [shop.job("tiny", *running) for _ in range(2)]
    done = cli("stop", "--yes")
    assert done.code == 1
    assert all(job.id in done.out for job in jobs)
    assert done.err.startswith("error: 2 training jobs are queued or active. Give --job-id")
    assert {shop.ledger.get_state(job.id) for job in jobs} == {JobState.RUNNING}


def test_all_of_a_project(cli: Cli, shop: Shop, running):
    mine = [shop.job("tiny", *running) for _ in range(2)]
    other = shop.job("other", *running)
    assert cli("stop", "--all", "--yes", "--project", "tiny").code == 0
    assert {shop.ledger.get_state(job.id) for job in mine} == {JobState.STOPPED}
    assert shop.ledger.get_state(other.id) is JobState.RUNNING


def test_one_that_ended_does_not_keep_the_others(cli: Cli, shop: Shop, running, ended):
    shop.job("tiny", *ended)
    job = shop.job("tiny", *running)
    assert cli("stop", "--all", "--yes").code == 0
    assert shop.ledger.get_state(job.id) is JobState.STOPPED


@pytest.mark.parametrize(
    ("arguments", "answer", "stopped"),
    [
        ([], "n\n", False),
        ([], "\n", False),
        ([], "y\n", True),
        (["--all"], "yes\n", True),
        (["--all"], "no\n", False),
        (["--yes"], None, True),
        (["--non-interactive"], None, True),
        (["--job-id", "JOB"], None, True),
    ],
)
def test_on_a_terminal(cli: Cli, shop: Shop, running, arguments, answer, stopped: bool):
    """Asked unless the job was named or the question forbidden."""
    job = shop.job("tiny", *running)
    ours, theirs = pty.openpty()
    if answer is not None:
        os.write(ours, answer.encode())
    words = (job.id if word == "JOB" else word for word in arguments)
    with os.fdopen(theirs) as terminal:
        done = cli("stop", *words, stdin=terminal)
    os.close(ours)
    assert ("[y/N]" in done.err) == (answer is not None)
    assert (done.code == 0) == stopped
    assert (shop.ledger.get_state(job.id) is JobState.STOPPED) == stopped
    assert ("Canceled." in done.err) == (not stopped)


Moment = Callable[[Ledger, str], object]


def placed(
    monkeypatch: pytest.MonkeyPatch, method: str, then: Moment, *, after: bool = False
) -> None:
    """Have `then` happen once, right before (or after) the ledger does this for the first time."""
    kind = Ledger if hasattr(Ledger, method) else JobControls
    original, left = getattr(kind, method), [then]

    def hooked(ledger: object, job_id: str, *args: object, **options: object) -> object:
        moments = [left.pop()] if left else []
        for moment in moments if not after else []:
            moment(ledger, job_id)
        done = original(ledger, job_id, *args, **options)
        for moment in moments if after else []:
            moment(ledger, job_id)
        return done

    monkeypatch.setattr(kind, method, hooked)


ENDS = {
    JobState.COMPLETED: (0, "completed successfully"),
    JobState.FAILED: (1, "failed"),
    JobState.DEPLOY_FAILED: (1, "could not be deployed"),
}


@pytest.mark.parametrize("state", ENDS)
@pytest.mark.parametrize(
    ("method", "after", "owned", "options"),
    [
        ("request_stop", False, False, []),
        ("request_stop", False, True, []),
        ("request_stop", True, False, []),
        ("request_stop", True, True, []),
        ("get_host", True, False, []),
        ("get_host", True, True, []),
        ("claim", True, False, []),  # it is claimed only where nobody owns it
        ("append_event", False, False, []),
        ("claim", False, False, ["--abandoned"]),
        ("request_stop", False, False, ["--abandoned"]),
        ("append_event", False, False, ["--abandoned"]),
    ],
)
def test_a_job_that_ends_in_that_moment(
    cli: Cli, shop: Shop, running, monkeypatch, state: JobState, method, after, owned, options
):
    """Before the request is there, after it, and once the asker has the job itself."""
    job = shop.job("tiny", *running)
    state_dir = Path(cli.env["PREFECT_BT_STATE_DIR"])
    placed(
        monkeypatch, method, lambda _, job_id: shop.ledger.append_event(job_id, state), after=after
    )
    with lock_job(state_dir, job.id) if owned else nullcontext():
        done = cli("stop", "--job-id", job.id, *options)
    code, words = ENDS[state]
    assert done.code == code, done.err
    assert words in done.err
    assert "stopped successfully" not in done.out
    assert "is stopped" not in done.out + done.err
    assert "is being stopped" not in done.err
    assert shop.ledger.get_state(job.id) is state


@pytest.mark.parametrize("state", ENDS)
def test_one_of_all_jobs_ends_first(cli: Cli, shop: Shop, running, monkeypatch, state: JobState):
    first, second = shop.job("tiny", *running), shop.job("tiny", *running)
    from prefect_bt.jobs import stop

    stop_job = stop.stop_job

    def late(ledger: Ledger, job_id: str, **options: object) -> str:
        if job_id == first.id:
            shop.ledger.append_event(first.id, state)
        return stop_job(ledger, job_id, **options)

    monkeypatch.setattr(stop, "stop_job", late)
    done = cli("stop", "--all", "--yes")
    assert done.code == ENDS[state][0], done.err
    assert f"Training job {first.id} {ENDS[state][1]}." in done.err
    assert done.out == f"Training job {second.id} stopped successfully.\n"
    assert shop.ledger.controls.find_stop_request(first.id) is None


@pytest.mark.parametrize("state", ENDS)
def test_a_job_that_ends_at_a_second_stop(
    cli: Cli, shop: Shop, running, monkeypatch, state: JobState
):
    job = shop.job("tiny", *running)
    shop.ledger.controls.request_stop(job.id, by="ann")
    placed(monkeypatch, "request_stop", lambda _, job_id: shop.ledger.append_event(job_id, state))
    done = cli("stop", "--job-id", job.id)
    assert done.code == ENDS[state][0], done.err
    assert "is stopped" not in done.err
    assert f"it is {state.short_name}" in done.err
