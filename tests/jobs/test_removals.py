"""Nodes of ended jobs whose cluster was away at the end: other processes remove them, once."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("kubernetes_validate", reason="kubernetes-validate is not installed")

from prefect.logging import disable_run_logger

from prefect_bt.attempts.job_context import JobContext, open_job_context
from prefect_bt.attempts.lifecycle import remove_nodes
from prefect_bt.errors import SubstrateError
from prefect_bt.flows.reconcile import reconcile
from prefect_bt.flows.tasks.reporting import report
from prefect_bt.flows.tasks.reporting.report import transition_job
from prefect_bt.jobs import stale_nodes
from prefect_bt.jobs.delete import delete_job
from prefect_bt.jobs.reconcile import finalize_abandoned_job
from prefect_bt.jobs.stale_nodes import UnfinishedRemovals
from prefect_bt.jobs.starting.poller import QueuePoller
from prefect_bt.ledger.ledger import Ledger
from prefect_bt.ledger.open_ledger import open_ledger
from prefect_bt.ledger.states import JobState
from prefect_bt.object_keys import INDEX_REMOVALS, job_nodes_prefix
from prefect_bt.settings import Settings
from prefect_bt.substrates.kubernetes import job_objects
from prefect_bt.substrates.kubernetes.client import ClusterClient
from tests.cluster.api_server import ADMIN, ApiServer
from tests.cluster.controllers import collect_garbage
from tests.cluster.resources import BY_NAME
from tests.cluster.store import Store
from tests.jobs.records import new_record
from tests.node_agent.rig import make_gang, make_plan
from tests.substrates.kubernetes.api_stub import settings_for
from tests.written_jobs import write_job

DONE = "the nodes of its ended attempts are removed"


class Site:
    """A store, and a cluster that has an API server and a garbage collector."""

    def __init__(self, folder: Path) -> None:
        self.api, self.folder = ApiServer(Store()), folder
        self.api.start()
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "rec"}}
        self.api.verbs.create(BY_NAME["", "namespaces"], "", namespace)
        given = settings_for(self.api.port)
        login = str(given.kubeconfig).replace("t0ken", self.api.token(ADMIN))
        self.settings = given.model_copy(update={"kubeconfig": login}).model_dump_json()
        self.ledger: Ledger = open_ledger(str(folder / "store"))

    def job(self) -> JobContext:
        """Return a job whose first attempt runs in the cluster."""
        record = new_record(self.ledger, substrate="kubernetes")
        write_job(self.ledger, record)
        site = open_job_context(self.ledger, record)
        self.launch(site, attempt=0)
        return site

    def launch(self, site: JobContext, attempt: int) -> None:
        ids = {"job_id": site.job_id, "project_id": site.record.project_id}
        plan = make_plan(self.folder / "state", ("true",), attempt=attempt, **ids)
        site.substrate.launch(make_gang(plan), secrets={})

    def end(self, site: JobContext, how: str = "its flow was killed") -> None:
        """End the job while the API server is away."""
        self.api.stop()
        if how == "its flow was killed":
            transition_job(site, JobState.FAILED)
        else:
            with pytest.raises(SubstrateError):
                if how == "its flow ends":
                    transition_job(site, JobState.FAILED)
                    remove_nodes(site)
                else:
                    finalize_abandoned_job(site, JobState.FAILED, how)
        self.api.start()

    def finish(self) -> list[tuple[str, str]]:
        return list(UnfinishedRemovals(self.ledger, Settings()).finish())

    def left(self) -> list[str]:
        """Return what is left of all jobs in the cluster."""
        collect_garbage(self.api.verbs)
        kinds = (("batch", "jobs"), ("", "secrets"), ("", "services"))
        listed = [obj for kind in kinds for obj in self.api.store.all(BY_NAME[kind], "rec")]
        return [f"{obj['kind']} {obj['metadata']['name']}" for obj in listed]

    def entries(self) -> list[str]:
        return [info.key for info in self.ledger.store.list(INDEX_REMOVALS)]


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    made = Site(tmp_path)
    monkeypatch.setenv("PREFECT_BT_KUBERNETES", made.settings)
    monkeypatch.setenv("PREFECT_BT_SUBSTRATE", "kubernetes")
    monkeypatch.setenv("PREFECT_BT_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("PREFECT_BT_STORE", str(tmp_path / "store"))
    monkeypatch.setitem(ClusterClient.__init__.__kwdefaults__, "retry_delays", ())
    monkeypatch.setattr(report, "emit_event", lambda **_: None)  # it starts a Prefect server
    monkeypatch.setattr(job_objects, "REMOVAL_TIMEOUT", 0.1)
    monkeypatch.setattr(stale_nodes, "REMOVAL_GRACE", -1.0)
    yield made
    made.api.stop()


@pytest.mark.parametrize("how", ["its flow ends", "its flow was killed", "its process died"])
def test_the_nodes_of_an_ended_job_are_removed_when_the_cluster_answers_again(
    site: Site, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    job = site.job()
    site.end(job, how)
    assert len(site.left()) == 3
    monkeypatch.setattr(stale_nodes, "REMOVAL_GRACE", 60.0)
    assert site.finish() == [], "the process that ended it may be at it"
    monkeypatch.setattr(stale_nodes, "REMOVAL_GRACE", -1.0)
    assert site.finish() == [(job.job_id, DONE)]
    assert (site.left(), site.entries(), site.finish()) == ([], [], [])
    assert list(site.ledger.store.list(job_nodes_prefix(job.record.project_id, job.job_id))) == []


def test_an_end_with_a_cluster_leaves_no_entry(site: Site) -> None:
    job = site.job()
    transition_job(job, JobState.STOPPED)
    assert len(site.entries()) == 1
    remove_nodes(job)
    assert (site.left(), site.entries()) == ([], [])
    local = new_record(site.ledger, substrate="local")
    write_job(site.ledger, local)
    transition_job(open_job_context(site.ledger, local), JobState.STOPPED)
    assert site.entries() == [], "its machine has its files"


def _run_reconcile(_: Site) -> list[str]:
    with disable_run_logger():
        done: Any = reconcile.fn(substrate="kubernetes")
    return [f"job {job_id}: {what}" for job_id, what in done.items()]


def _poll(_: Site) -> list[str]:
    poller, end = QueuePoller(), time.monotonic() + 30
    while time.monotonic() < end:
        if news := poller.poll():
            return news
        time.sleep(0.1)
    return []


@pytest.mark.parametrize("act", [_run_reconcile, _poll])
def test_the_processes_of_every_machine_look_for_them(
    site: Site, act: Callable[[Site], list[str]]
) -> None:
    job = site.job()
    site.end(job)
    assert act(site) == [f"job {job.job_id}: {DONE}"]
    assert site.left() == []


def test_a_job_that_is_retried_keeps_its_nodes(site: Site) -> None:
    job = site.job()
    site.end(job)
    site.ledger.append_event(job.job_id, JobState.CREATED)
    assert site.finish() == []
    assert len(site.left()) == 3
    assert len(site.entries()) == 1
    transition_job(job, JobState.STOPPED)
    remove_nodes(job)
    assert (site.left(), site.entries()) == ([], [])


def test_a_job_that_is_retried_during_the_removal_keeps_its_new_nodes(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It even ends again meanwhile, with a removal of its own."""
    job, get_state, states = site.job(), site.ledger.get_state, list[JobState]()
    site.end(job)

    def retry_then(job_id: str) -> JobState:
        states.append(state := get_state(job_id))
        if len(states) == 1:
            site.ledger.append_event(job_id, JobState.CREATED)
            site.launch(job, attempt=1)
            transition_job(job, JobState.FAILED)
        return state

    monkeypatch.setattr(site.ledger, "get_state", retry_then)
    site.finish()
    assert sorted(site.left()) == [
        f"{kind} prefect-bt-{job.job_id}-1" for kind in ("Job", "Secret", "Service")
    ]
    assert len(site.entries()) == 1, "of the second end"
    assert site.finish() == [(job.job_id, DONE)]
    assert (site.left(), site.entries()) == ([], [])


def test_several_processes_at_once(site: Site) -> None:
    jobs = [site.job() for _ in range(3)]
    for job in jobs:
        site.end(job)
    results = list[tuple[str, str]]()
    threads = [threading.Thread(target=lambda: results.extend(site.finish())) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {job_id for job_id, _ in results} == {job.job_id for job in jobs}
    assert {what for _, what in results} == {DONE}
    assert (site.left(), site.entries()) == ([], [])


def test_a_cluster_that_stays_away_costs_one_removal_a_turn(site: Site) -> None:
    for job in [site.job() for _ in range(3)]:
        site.end(job)
    site.api.stop()
    ((_, what),) = site.finish()
    assert what.startswith("its nodes could not be removed yet: ")
    assert len(site.entries()) == 3


@pytest.mark.parametrize("lacks", ["cluster", "context"])
def test_a_machine_without_the_cluster_leaves_the_job_to_others(
    site: Site, monkeypatch: pytest.MonkeyPatch, lacks: str
) -> None:
    site.end(site.job())
    other = json.loads(site.settings)
    text = "{}" if lacks == "cluster" else other["kubeconfig"].replace('"c"', '"d"')
    monkeypatch.setenv("PREFECT_BT_KUBERNETES", json.dumps({**other, "kubeconfig": text}))
    assert site.finish() == []
    assert len(site.entries()) == 1


def test_a_job_that_was_deleted(site: Site) -> None:
    job = site.job()
    site.end(job)
    entry = site.entries()[0]
    delete_job(site.ledger, job.job_id, settings=Settings())
    assert (site.left(), site.entries()) == ([], [])
    site.ledger.store.put(entry, b"")  # another process ended it meanwhile
    assert (site.finish(), site.entries()) == ([], [])
