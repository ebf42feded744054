"""Whole jobs in a cluster; nothing of them stays in the namespace."""

from __future__ import annotations

import pytest

from prefect_bt.host.job_lock import is_owned
from tests.e2e.conftest import until

from .cluster_site import SAVE, ClusterMachine, ClusterSite

pytestmark = [pytest.mark.integration, pytest.mark.slow]


@pytest.mark.extended
def test_a_failing_rank_is_retried_from_its_checkpoint(machine: ClusterMachine) -> None:
    script = f"""{SAVE}
    echo "attempt $BT_RETRY_COUNT ($BT_RETRY_REASON) finds $(newest)"
    save $(newest)
    sleep 2
    [ $BT_RETRY_COUNT-$BT_NODE_RANK = 0-1 ] && exit 7
    exit 0
    """
    job_id = str(machine.push(machine.job_folder(script, nodes=2), "--retries", "1")["id"])
    machine.wait(job_id, "COMPLETED", seconds=200)
    job, log = machine.view(job_id), machine.logs(job_id)
    assert [one["exit_code"] for one in job["attempts"]] == [7, None]
    assert job["attempts"][0]["failed_rank"] == 1
    assert "(rank-0) attempt 0 () finds 0" in log
    assert "(rank-1) attempt 1 (command_failed) finds 1" in log
    machine.nothing_left_in_cluster(job_id)


@pytest.mark.extended
def test_a_job_that_is_stopped_before_it_starts(machine: ClusterMachine, site: ClusterSite) -> None:
    config = machine.job_folder("echo never", image="localhost/nobody/has:1")
    job_id = str(machine.push(config)["id"])
    site.find_pod(job_id, 0, 0)
    until(
        lambda: "localhost/nobody/has:1" in machine.logs(job_id).partition("waiting for")[2],
        seconds=30,
        what="what it waits for",
    )
    machine.run("stop", "--job-id", job_id)
    machine.wait(job_id, "STOPPED")
    machine.nothing_left_in_cluster(job_id)


@pytest.mark.extended
def test_the_flow_is_killed_and_the_pods_go_on(machine: ClusterMachine) -> None:
    script = f"{SAVE}\nsave 1; i=0; while [ $i -lt 120 ]; do i=$((i+1)); sleep 0.1; done; save 2"
    job_id = str(machine.push(machine.job_folder(script))["id"])
    until(lambda: machine.checkpoints(job_id), seconds=30, what="a checkpoint")
    for process in machine.processes(job_id):
        process.kill()
    until(lambda: not is_owned(machine.state_dir, job_id), seconds=30, what="no owner")
    machine.run("view", "--job-id", job_id)
    machine.wait(job_id, "COMPLETED", seconds=200)
    attempts = machine.view(job_id)["attempts"]
    assert len(attempts) == 1, (attempts, machine.logs(job_id))
    assert machine.checkpoints(job_id) == ["checkpoint-1", "checkpoint-2"]
    machine.nothing_left_in_cluster(job_id)
