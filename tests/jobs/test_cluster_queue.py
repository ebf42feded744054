"""Jobs of a cluster at the queue of this machine: what the API server answers decides."""

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from prefect_bt.definitions import Compute
from prefect_bt.errors import UsageError
from prefect_bt.host.job_lock import JobLock, host_id
from prefect_bt.jobs.options import SubmitOptions
from prefect_bt.jobs.starting import cluster_reader
from prefect_bt.jobs.starting.acceptance import accept_here, enter_queue, put_back
from prefect_bt.jobs.starting.cluster_reader import RETRY_INTERVAL, find_cluster, report_cluster
from prefect_bt.jobs.starting.start_queued import (
    admit_new_job,
    list_cluster_notes,
    start_waiting_jobs,
)
from prefect_bt.jobs.submit import submit
from prefect_bt.ledger.ledger import Ledger
from prefect_bt.ledger.records import JobRecord, Resources
from prefect_bt.object_store import open_store
from prefect_bt.queue.leases import Leases
from prefect_bt.queue.machines import list_machines, report_machine
from prefect_bt.queue.records import Machine
from prefect_bt.queue.waiting_jobs import list_waiting_jobs
from prefect_bt.settings import Settings
from tests.jobs.records import new_record, small_project
from tests.substrates.kubernetes.api_stub import ApiStub, answer, drop, settings_for
from tests.substrates.kubernetes.test_pod_hosts import node, pod, serve

FORBIDDEN = 'nodes is forbidden: User "u" cannot list resource "nodes" in API group ""'


class Site:
    """A store, and a machine whose cluster is a stub."""

    def __init__(self, folder: Path, api: ApiStub) -> None:
        self.api, self.state_dir, self.locks = api, folder / "state", list[JobLock]()
        self.ledger = Ledger(open_store(str(folder / "store")))

    def record(self, cpus: int = 8, nodes: int = 1) -> JobRecord:
        project = small_project(compute=Compute(cpu_count=cpus, node_count=nodes))
        resources = Resources(cpus=cpus)
        return new_record(self.ledger, project, substrate="kubernetes", resources=resources)

    def admit(self, record: JobRecord) -> str:
        """Ask for room as a push does, which owns the job; return what it waits for."""
        lock = JobLock(self.state_dir)
        lock.acquire(record.id)
        self.ledger.create_job(record)
        reason = admit_new_job(self.ledger, record)
        if reason:
            enter_queue(self.ledger, record, "accepted")
        else:
            accept_here(self.ledger, record, host_id(self.state_dir))
        self.locks.append(lock)
        return reason

    @property
    def leases(self) -> list[str]:
        return [lease.job.id for lease in Leases(self.ledger.store).read()]


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    api = ApiStub()
    made = Site(tmp_path, api)
    monkeypatch.setenv("PREFECT_BT_KUBERNETES", settings_for(api.port).model_dump_json())
    monkeypatch.setenv("PREFECT_BT_STATE_DIR", str(made.state_dir))
    serve(api, [node("a")], [])
    yield made
    for lock in made.locks:
        lock.release_and_remove()
    api.close()


def test_a_job_waits_for_the_resources_of_its_cluster(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_reader, "READ_INTERVAL", 3600.0)
    first, second = site.record(), site.record()
    assert site.admit(first) == ""
    held = f"job {first.id} holds 8.1"
    assert site.admit(second) == f"8.1 CPUs: c/rec has 7.8 of 15.9 free; {held}"
    assert site.leases == [first.id]
    (waiting,) = list_waiting_jobs(site.ledger.store)
    assert (waiting.id, waiting.cluster) == (second.id, find_cluster(Settings()).id)
    lists = [one.path for one in site.api.requests]
    assert lists == ["/api/v1/nodes", "/api/v1/pods"] * 2, "one look for each job"


def test_a_job_with_running_pods_does_not_wait_for_them(site: Site) -> None:
    """The process that watched it died, and its lease with it."""
    record = site.record()
    serve(site.api, [node("a")], [pod("a", "8100m", job=record.id), pod("a", "7")])
    assert site.admit(record) == ""
    assert site.leases == [record.id]


@pytest.mark.parametrize("fault", ["forbidden", "away"])
def test_a_cluster_that_cannot_be_read_decides_itself(site: Site, fault: str) -> None:
    said: dict[str, Any] = {"kind": "Status", "message": FORBIDDEN, "code": 403}
    site.api.on("GET nodes", answer(403, said) if fault == "forbidden" else drop)
    record = site.record()
    assert site.admit(record) == ""
    assert site.leases == []
    (note,) = list_cluster_notes(record)
    assert ("queue-rbac.yaml" in note) == (fault == "forbidden")
    assert "The cluster decides when its pods start" in note


def test_a_job_of_kueue_is_not_queued_here(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFECT_BT_KUBERNETES_QUEUE_NAME", "team-a")
    given = json.loads(settings_for(site.api.port).model_dump_json())
    monkeypatch.setenv("PREFECT_BT_KUBERNETES", json.dumps({**given, "queue_name": "team-a"}))
    record = site.record()
    assert site.admit(record) == ""
    assert (site.leases, site.api.requests, list_cluster_notes(record)) == ([], [], [])


def test_a_job_that_waits_stays_in_the_queue_while_the_api_server_is_away(site: Site) -> None:
    serve(site.api, [node("a")], [pod("a", "15")])
    record = site.record()
    assert site.admit(record) == "8.1 CPUs: c/rec has 0.9 of 15.9 free"
    site.locks.pop().release_and_remove()
    find_cluster(Settings()).forget()
    site.api.on("GET nodes", drop)
    assert start_waiting_jobs(site.ledger) == []
    before = len(site.api.requests)
    assert start_waiting_jobs(site.ledger) == []
    assert len(site.api.requests) == before, f"not asked again for {RETRY_INTERVAL:.0f} s"
    assert [one.id for one in list_waiting_jobs(site.ledger.store)] == [record.id]


def test_a_silent_api_server_delays_a_local_job_by_seconds(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes the request and does not answer; the client of a gang waits for 30 s."""
    serve(site.api, [node("a")], [pod("a", "15")])
    waiting = site.record()
    assert site.admit(waiting) == "8.1 CPUs: c/rec has 0.9 of 15.9 free"
    site.locks.pop().release_and_remove()
    find_cluster(Settings()).forget()
    answered = Event()

    def hang(handler: BaseHTTPRequestHandler) -> None:
        answered.wait(60)
        handler.close_connection = True

    site.api.on("GET nodes", hang)
    monkeypatch.setattr(cluster_reader, "TIMEOUT", 0.1)
    cluster_reader._open.cache_clear()  # with the short time limit
    project = small_project("local")
    local = new_record(site.ledger, project, substrate="local", resources=Resources())
    assert site.admit(local) == ""
    assert not answered.is_set()
    assert local.id in site.leases
    answered.set()


@pytest.mark.parametrize("used", ["no", "by a job", "by the settings"])
def test_an_idle_worker_reports_the_cluster_that_jobs_use(
    site: Site, monkeypatch: pytest.MonkeyPatch, used: str
) -> None:
    """So that a machine without a kubeconfig finds it; a cluster of other work is left alone."""
    cluster = find_cluster(Settings())
    if used == "by a job":
        _report(site, cluster.id)
    if used == "by the settings":
        monkeypatch.setenv("PREFECT_BT_SUBSTRATE", "kubernetes")
    report_cluster(site.ledger, Settings())
    reported = {one.name for one in list_machines(site.ledger.store)}
    assert (reported, bool(site.api.requests)) == (({"c/rec"}, True), (set(), False))[used == "no"]


def _report(site: Site, *names: str) -> None:
    for name in names:
        offered = Machine(name, f"{name}/ml", 64, 2**39, {"H100": 8}, 1.0, ("kubernetes",))
        report_machine(site.ledger.store, offered)


def _push(site: Site) -> dict[str, Any]:
    folder = site.state_dir.with_name("work")
    folder.mkdir(exist_ok=True)
    (folder / "run.sh").touch()
    options = SubmitOptions(substrate="kubernetes", store=site.ledger.store.url)
    return submit(small_project(), source_dir=folder, options=options)


@pytest.fixture
def laptop(site: Site, monkeypatch: pytest.MonkeyPatch) -> Site:
    """A machine without a kubeconfig, beside which others reach clusters."""
    monkeypatch.setenv("PREFECT_BT_KUBERNETES", json.dumps({"store_claim": "jobs"}))
    monkeypatch.setenv("KUBECONFIG", str(site.state_dir / "none"))
    monkeypatch.setattr("os.getuid", lambda: 65532)
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    return site


def test_a_machine_without_a_cluster_leaves_its_job_to_those_that_have_one(laptop: Site) -> None:
    _report(laptop, "c1")
    job = _push(laptop)
    assert job["current_status"] == "TRAINING_JOB_PENDING"
    assert start_waiting_jobs(laptop.ledger) == []
    _report(laptop, "c2")
    assert put_back(laptop.ledger, laptop.ledger.get_job(job["id"]))
    [waiting] = list_waiting_jobs(laptop.ledger.store)
    assert waiting.cluster == "c1", "that of its push, although there are two by now"


def test_of_several_clusters_none_is_guessed(laptop: Site) -> None:
    _report(laptop, "c1", "c2")
    with pytest.raises(UsageError, match=r"2 clusters: c1/ml, c2/ml"):
        _push(laptop)
