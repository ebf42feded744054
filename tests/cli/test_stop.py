"""`prefect-bt stop`: which job is meant, who is asked, and what a second stop says."""

from __future__ import annotations

import os
import pty
import subprocess

import pytest

from prefect_bt.records import JobState

from .conftest import COMMAND, Cli, Shop


def test_nothing_to_stop(cli: Cli, shop: Shop, ended):
    shop.job("tiny", *ended)
    done = cli("stop")
    assert (done.code, done.out) == (1, "")
    assert done.err == "error: No queued or active training jobs.\n"
    assert cli("stop", "--all").code == 0


def test_the_only_active_job(cli: Cli, shop: Shop, running):
    job = shop.job("tiny", *running)
    done = cli("stop")
    assert done.code == 0, done.err
    assert done.out == f"Training job {job.id} stopped successfully.\n"
    assert shop.ledger.state(job.id) is JobState.STOPPED
    assert shop.ledger.stop_request(job.id) is not None


def test_a_second_stop(cli: Cli, shop: Shop, running):
    job = shop.job("tiny", *running)
    assert cli("stop", "--job-id", job.id).code == 0
    done = cli("stop", "--job-id", job.id)
    assert (done.code, done.out) == (1, "")
    assert done.err.startswith(f"error: Job {job.id} is already over (TRAINING_JOB_STOPPED).")


def test_several_active_jobs_are_listed(cli: Cli, shop: Shop, running):
    jobs = [shop.job("tiny", *running) for _ in range(2)]
    done = cli("stop")
    assert done.code == 1
    assert all(job.id in done.out for job in jobs)
    assert done.err.startswith("error: 2 training jobs are queued or active. Say which one")
    assert {shop.ledger.state(job.id) for job in jobs} == {JobState.RUNNING}


def test_all_of_a_project(cli: Cli, shop: Shop, running):
    mine = [shop.job("tiny", *running) for _ in range(2)]
    other = shop.job("other", *running)
    assert cli("stop", "--all", "--project", "tiny").code == 0
    assert {shop.ledger.state(job.id) for job in mine} == {JobState.STOPPED}
    assert shop.ledger.state(other.id) is JobState.RUNNING


def test_one_that_ended_does_not_keep_the_others(cli: Cli, shop: Shop, running, ended):
    shop.job("tiny", *ended)
    job = shop.job("tiny", *running)
    assert cli("stop", "--all").code == 0
    assert shop.ledger.state(job.id) is JobState.STOPPED


@pytest.mark.slow
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
    process = subprocess.Popen(
        [*COMMAND, "stop", *(job.id if word == "JOB" else word for word in arguments)],
        stdin=theirs,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=cli.env,
        text=True,
    )
    os.close(theirs)
    if answer is not None:
        os.write(ours, answer.encode())
    _, err = process.communicate(timeout=200)
    os.close(ours)
    assert ("[y/N]" in err) == (answer is not None)
    assert (process.returncode == 0) == stopped
    assert (shop.ledger.state(job.id) is JobState.STOPPED) == stopped
    assert ("Nothing was stopped." in err) == (not stopped)
