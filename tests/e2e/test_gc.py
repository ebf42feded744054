"""`prefect-bt gc` on a machine where one job runs and another's folder came back from the dead."""

import json
import shutil

import pytest

from .conftest import Machine, until

pytestmark = [pytest.mark.integration]


@pytest.mark.extended  # tests/gc/ has the kinds of orphans
def test_what_a_dead_job_left_goes_and_a_running_one_stays(machine: Machine) -> None:
    ready = "echo ready; exec sleep 600\n"
    running, dead = (machine.push(machine.folder(ready))["id"] for _ in range(2))
    for job_id in (running, dead):
        until(lambda job_id=job_id: "ready" in machine.logs(job_id), seconds=90, what="ready")
    folder = machine.state_dir / "jobs" / dead
    half_written = shutil.ignore_patterns(".*")  # such a file is renamed at any moment
    shutil.copytree(folder, machine.root / "kept", symlinks=True, ignore=half_written)
    machine.run("stop", "--job-id", dead)
    machine.wait(dead, "STOPPED")
    machine.nothing_left(dead)
    shutil.move(machine.root / "kept", folder)

    listed = json.loads(machine.run("gc", "--dry-run", "-o", "json").stdout)
    # The tests before this one share the machine, and may have left something.
    assert running not in {one["job"] for one in listed}
    of_the_dead = [one for one in listed if one["job"] == dead]
    assert of_the_dead[0]["kind"] == "node"
    assert all(one["why"] == "the job is stopped" for one in of_the_dead)
    assert folder.exists()
    machine.run("gc", "--yes", "--include-unsaved")
    machine.nothing_left(dead)

    assert machine.ledger.get_state(running).short_name == "running"
    assert machine.job_processes(running)
    machine.run("stop", "--job-id", running)
    machine.wait(running, "STOPPED")
    machine.nothing_left(running)
