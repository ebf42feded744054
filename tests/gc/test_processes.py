"""Processes that a job left behind are ended, and no others."""

import subprocess

from prefect_bt.gc.findings import OrphanKind
from prefect_bt.host.processes import MARK_VARIABLE
from prefect_bt.host.state_folder import make_mark
from prefect_bt.ledger.states import JobState
from tests.gc.conftest import Site, Start, flow_of
from tests.node_agent.rig import is_alive, wait_running


def is_over(process: subprocess.Popen[bytes]) -> bool:
    return process.poll() is not None or not is_alive(process.pid)


def test_a_process_of_a_node_without_a_folder_is_ended(site: Site, start: Start) -> None:
    other = site.root / "another-state"
    other.mkdir()
    mine, theirs = (
        start(**{MARK_VARIABLE: make_mark(folder, job_id="abc1234", attempt=0, rank=3)})
        for folder in (site.state, other)
    )
    (found,) = site.look().orphans
    assert (found.kind, found.location) == (OrphanKind.PROCESS, f"pid {mine.pid}")
    assert site.clear() == []
    assert is_over(mine)
    assert not is_over(theirs), "of another state folder"


def test_a_running_nodes_processes_are_no_strays(site: Site) -> None:
    wait_running(site.node(site.job(JobState.RUNNING), "exec sleep 300"))
    assert site.kinds() == []


def test_processes_that_ran_a_job_are_ended_some_time_after_it(site: Site, start: Start) -> None:
    over, long_over = site.job(JobState.COMPLETED), site.long_over()
    started = [
        start(**flow_of(site, over)),
        start(**flow_of(site, long_over)),
        start(**flow_of(site, long_over, PREFECT_BT_STATE_DIR="/elsewhere")),
    ]
    (found,) = site.look().orphans
    assert (found.kind, found.job) == (OrphanKind.PROCESS, long_over)
    assert site.clear() == []
    assert [is_over(process) for process in started] == [False, True, False]


def test_a_process_without_a_configured_folder_used_the_usual_one(site: Site, start: Start) -> None:
    """As a push starts it where nobody sets PREFECT_BT_STATE_DIR; the home may be a link."""
    long_over, home = site.long_over(), site.state.parent / "home"
    usual = home / ".local" / "state" / "prefect-bt"
    usual.parent.mkdir(parents=True)
    usual.symlink_to(site.state)
    unset = {"HOME": str(home), "XDG_STATE_HOME": "", "PREFECT_BT_STATE_DIR": ""}
    start(**flow_of(site, long_over, **unset))
    assert [found.job for found in site.look().orphans] == [long_over]
