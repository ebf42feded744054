"""Processes that a job left behind are ended, and no others."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator

import pytest

from prefect_bt.gc.findings import OrphanKind
from prefect_bt.host.processes import FLOW_VARIABLE, MARK_VARIABLE
from prefect_bt.host.state_folder import make_mark
from prefect_bt.ledger.ledger import Ledger
from prefect_bt.ledger.states import JobState
from tests.gc.conftest import Site, environ_of
from tests.node_agent.rig import is_alive, wait_running, wait_until


@pytest.fixture
def started() -> Iterator[list[subprocess.Popen[bytes]]]:
    found: list[subprocess.Popen[bytes]] = []
    yield found
    for process in found:
        process.kill()
        process.wait()


def sleeper(**variables: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(["sleep", "300"], env={**os.environ, **variables})


def is_over(process: subprocess.Popen[bytes]) -> bool:
    return process.poll() is not None or not is_alive(process.pid)


def test_a_process_whose_nodes_folder_is_gone_is_ended(
    site: Site, started: list[subprocess.Popen[bytes]]
) -> None:
    site.state.mkdir()
    other = site.root / "another-state"
    other.mkdir()
    mine = make_mark(site.state, job_id="abc1234", attempt=0, rank=3)
    started.append(sleeper(**{MARK_VARIABLE: mine}))
    started.append(
        sleeper(**{MARK_VARIABLE: make_mark(other, job_id="abc1234", attempt=0, rank=3)})
    )
    wait_until(lambda: mine.encode() in environ_of(started[0].pid))
    (found,) = site.look().orphans
    assert (found.kind, found.location) == (OrphanKind.PROCESS, f"pid {started[0].pid}")
    assert site.clear() == []
    assert is_over(started[0])
    assert not is_over(started[1]), "of another state folder"


def test_a_running_nodes_processes_are_no_strays(site: Site) -> None:
    wait_running(site.node(site.job(JobState.RUNNING), "exec sleep 300"))
    assert site.kinds() == []


def test_what_ran_a_job_goes_some_time_after_it(
    site: Site, started: list[subprocess.Popen[bytes]]
) -> None:
    over = site.job(JobState.COMPLETED)
    ended = Ledger(site.ledger.store, clock=lambda: time.time() - 600)
    long_over = site.job(JobState.COMPLETED, ledger=ended)
    site.state.mkdir(exist_ok=True)
    here = {"PREFECT_BT_STATE_DIR": str(site.state), "PREFECT_BT_STORE": site.settings.store}
    for job_id in (over, long_over):
        started.append(sleeper(**here, **{FLOW_VARIABLE: job_id}))
    started.append(
        sleeper(**{**here, "PREFECT_BT_STATE_DIR": "/elsewhere", FLOW_VARIABLE: long_over})
    )
    wait_until(lambda: long_over.encode() in environ_of(started[2].pid))
    (found,) = site.look().orphans
    assert (found.kind, found.job) == (OrphanKind.PROCESS, long_over)
    assert site.clear() == []
    assert [is_over(process) for process in started] == [False, True, False]


def test_what_ran_a_job_without_being_told_a_folder_used_the_usual_one(
    site: Site, started: list[subprocess.Popen[bytes]]
) -> None:
    """As a push starts it where nobody sets PREFECT_BT_STATE_DIR; the home may be a link."""
    ended = Ledger(site.ledger.store, clock=lambda: time.time() - 600)
    long_over = site.job(JobState.COMPLETED, ledger=ended)
    usual = site.state.parent / "home" / ".local" / "state" / "prefect-bt"
    usual.parent.mkdir(parents=True)
    usual.symlink_to(site.state)
    site.state.mkdir(exist_ok=True)
    home = str(site.state.parent / "home")
    started.append(
        sleeper(
            HOME=home,
            XDG_STATE_HOME="",
            PREFECT_BT_STATE_DIR="",
            PREFECT_BT_STORE=site.settings.store,
            **{FLOW_VARIABLE: long_over},
        )
    )
    wait_until(lambda: long_over.encode() in environ_of(started[0].pid))
    assert [found.job for found in site.look().orphans] == [long_over]
