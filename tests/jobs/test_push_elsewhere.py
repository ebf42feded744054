"""A push from a machine that cannot run the job: another machine of the store's queue runs it."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from prefect_bt.definitions import Accelerator, AcceleratorSpec, Compute
from prefect_bt.errors import PlanError, SubstrateError, UsageError
from prefect_bt.host.job_lock import JobLock, host_id
from prefect_bt.jobs.options import SubmitOptions
from prefect_bt.jobs.resubmit import retry
from prefect_bt.jobs.starting.acceptance import put_back
from prefect_bt.jobs.starting.start_queued import open_machine_queue
from prefect_bt.jobs.stop import stop_job
from prefect_bt.jobs.submit import dry_run, recreate
from prefect_bt.queue.machines import report_machine
from prefect_bt.queue.overview import change_limit
from prefect_bt.queue.records import Demand, Lease, Machine, QueuedJob
from prefect_bt.queue.waiting_jobs import list_waiting_jobs, remove_waiting_job
from prefect_bt.settings import Settings
from tests.jobs.records import small_project
from tests.jobs.two_machines import TwoMachines

GIB = 1024**3
H100 = Accelerator.H100
Act = Callable[[TwoMachines, str], None]


def gpus(count: int, kind: Accelerator = H100) -> Compute:
    return Compute(memory="64Mi", accelerator=AcceleratorSpec(accelerator=kind, count=count))


NEEDS = {
    "GPUs": gpus(2),
    "CPUs": Compute(memory="64Mi", cpu_count=8),
    "memory": Compute(memory="32Gi"),
    "another type of GPU": gpus(2, Accelerator.H200),
}


@pytest.fixture
def machines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TwoMachines:
    return TwoMachines(tmp_path, monkeypatch)


@pytest.mark.parametrize("need", NEEDS)
def test_a_job_that_only_another_machine_can_run_starts_there(
    machines: TwoMachines, need: str
) -> None:
    machines.report_server()
    job = machines.push(small_project(compute=NEEDS[need]))
    assert job["current_status"] == "TRAINING_JOB_PENDING"
    assert job["waiting_for"] == "nothing: it is about to start"
    assert machines.poll() == [], "also where the laptop runs a worker"
    with machines.server():
        assert machines.poll() == [job["id"]]
    assert machines.started == [("server", job["id"])]


def test_the_plan_is_that_of_the_machine_that_runs_the_job(machines: TwoMachines) -> None:
    machines.report_server()
    project = small_project(compute=gpus(2))
    plan, _ = dry_run(project, source_dir=machines.folder / "work", options=local())
    assert plan.nodes[0].resources.cpus == 32, "two of four GPUs have half of 64 CPUs"
    assert plan.machine
    assert any(plan.machine in note for note in plan.notes)
    job = machines.push(project)
    assert job["resources"]["memory"] == 243 * GIB


REFUSALS = {
    "more GPUs": (gpus(8), ["8 H100", "the largest of the 2 machines is vm with 4 H100"]),
    "more CPUs": (Compute(cpu_count=99), ["99 CPUs", "the 2 machines is vm with 64.", "count 64"]),
    "not together": (
        Compute(memory="1Gi", cpu_count=65, accelerator=gpus(1).accelerator),
        ["65 CPUs", "with 64"],
    ),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_a_job_that_no_machine_can_run_is_refused(
    machines: TwoMachines, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    monkeypatch.setattr("os.uname", lambda: type("Uname", (), {"nodename": "vm"}))
    machines.report_server()
    compute, words = REFUSALS[case]
    with pytest.raises(PlanError) as refused:
        machines.push(small_project(compute=compute, environment_variables={"BT_X": "1"}))
    first, *others = refused.value.problems
    assert all(word in first for word in words), first
    assert ["BT_X" in one for one in others] == [True], "what is wrong in the definition, once"


def test_a_refusal_names_the_machine_that_only_lacks_a_worker(machines: TwoMachines) -> None:
    report_machine(machines.ledger.store, Machine("b1", "gpu2", 8, 16 * GIB, {"H100": 4}))
    with pytest.raises(PlanError, match=r"gpu2 could run it.*run `prefect-bt worker` there"):
        machines.push(small_project(compute=gpus(4)))


def test_a_machine_with_jobs_and_without_a_worker(machines: TwoMachines) -> None:
    with machines.server():
        lock = JobLock(Settings().state_dir)
        lock.acquire("running")
        queue = open_machine_queue(machines.ledger)
        assert isinstance(queue.admit(QueuedJob("running", Demand(1, "H100"), 1.0)), Lease)
    job = machines.push(small_project(compute=gpus(2)))
    assert "starts it when one of its jobs ends: no `prefect-bt worker`" in job["waiting_for"]
    lock.release_and_remove()


@pytest.mark.parametrize("present", [True, False])
def test_a_job_that_must_stay_here_is_refused_as_without_other_machines(
    machines: TwoMachines, present: bool
) -> None:
    if present:
        machines.report_server()
    with pytest.raises(PlanError, match=r"this machine has no GPU.*--accelerator none"):
        machines.push(small_project(compute=gpus(2)), here=present)


def _put_back(machines: TwoMachines, job_id: str) -> None:
    remove_waiting_job(machines.ledger.store, job_id, through=99)
    assert put_back(machines.ledger, machines.ledger.get_job(job_id))


def _retry(machines: TwoMachines, job_id: str) -> None:
    stop_job(machines.ledger, job_id, by="me")
    assert retry(job_id)["only_on"]


@pytest.mark.parametrize("act", [_put_back, _retry])
def test_a_job_of_one_machine_stays_its_own(machines: TwoMachines, act: Act) -> None:
    """Another machine put it back into the queue, or retried it."""
    machines.report_server()
    change_limit(machines.ledger.store, "H100", None, maximum=0)
    with machines.server():
        job = machines.push(small_project(compute=gpus(4)), here=True)
        host = host_id(Settings().state_dir)
    assert machines.ledger.get_job(job["id"]).host == host
    act(machines, job["id"])
    [waiting] = list_waiting_jobs(machines.ledger.store)
    assert waiting.host == host.partition(":")[2]
    assert machines.ledger.get_job(recreate(job["id"])["id"]).host == ""


@pytest.mark.parametrize("engine", ["none", "stopped"])
def test_a_docker_job_of_a_machine_without_an_engine(
    machines: TwoMachines, monkeypatch: pytest.MonkeyPatch, engine: str
) -> None:
    path = machines.folder / "docker.sock"
    if engine == "stopped":
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(path))
    monkeypatch.setenv("PREFECT_BT_DOCKER_HOST", f"unix://{path}")
    project = small_project(compute=Compute(memory="2Gi"))
    with pytest.raises(SubstrateError, match=r"Docker"):
        machines.push(project, substrate="docker")
    report_machine(machines.ledger.store, Machine("b1", "gpu2", 8, 16 * GIB, seen_at=1.0))
    job = machines.push(project, substrate="docker")
    assert (job["machine"], machines.poll()) == ("gpu2", [])


def test_a_deployment_and_this_machine_exclude_each_other(machines: TwoMachines) -> None:
    with pytest.raises(UsageError, match="--here and --deployment"):
        machines.push(small_project(), here=True, deployment="train/gpu")


def local(**facts: Any) -> SubmitOptions:
    return SubmitOptions(substrate="local", **facts)
