"""Objects that exist once, on a real S3 server behind a proxy that loses answers or headers."""

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from prefect_bt.checkpoints.committed.tombstones import (
    Tombstone,
    create_tombstone,
    iter_tombstones,
)
from prefect_bt.errors import StoreError
from prefect_bt.jobs.options import SubmitOptions
from prefect_bt.jobs.submit import write_job
from prefect_bt.ledger.creation import check_creates_once, try_create
from prefect_bt.ledger.ledger import Ledger
from prefect_bt.ledger.parent_calls import claim_call
from prefect_bt.ledger.records import Outcome
from prefect_bt.ledger.states import JobState
from prefect_bt.object_store import open_store
from prefect_bt.serving.deployment_records import DeploymentLedger, Revision
from tests import written_jobs
from tests.checkpoints.buckets import Bucket, use
from tests.jobs.records import new_record, small_project
from tests.object_store.faulty import Answer, Fault, FaultyServer, LoseAnswer, Request, StripRequest
from tests.s3_server import shared_s3

HOST = "box:0123456789ab"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyServer]:
    with FaultyServer(shared_s3()) as faulty:
        use(monkeypatch, faulty.url)
        yield faulty


@pytest.fixture
def bucket(server: FaultyServer) -> Iterator[Bucket]:
    made = Bucket(server.upstream)
    yield made
    made.empty()


@pytest.fixture
def ledger(bucket: Bucket) -> Ledger:
    return Ledger(open_store(bucket.url))


# -- answers that are lost -------------------------------------------------------------------------


def written(ledger: Ledger) -> str:
    record = new_record(ledger)
    written_jobs.write_job(ledger, record, host=HOST)
    return record.id


def push(ledger: Ledger, job_id: str) -> None:
    record = write_job(ledger, small_project(), SubmitOptions(substrate="local"), None)
    assert ledger.get_job(record.id) == record
    assert {job.id for job in ledger.list_jobs()} == {job_id, record.id}
    assert len(list(ledger.store.list("index/jobs"))) == 2


def new_project(ledger: Ledger, job_id: str) -> None:
    made = ledger.projects.ensure("new")
    assert ledger.projects.ensure("new") == made
    assert {project.id for project in ledger.projects.list()} >= {made.id}


def name(ledger: Ledger, job_id: str) -> None:
    project = ledger.get_job(job_id).project_id
    assert [ledger.reserve_job_name(project) for _ in range(2)] == ["job-2", "job-3"]


def claim(ledger: Ledger, job_id: str) -> None:
    epoch = ledger.claim(job_id, HOST)
    ledger.append_event(job_id, JobState.STOPPED, epoch=epoch)
    assert ledger.claim(job_id, HOST) == epoch + 1
    assert [event.state for event in ledger.list_events(job_id)] == [
        JobState.CREATED,
        JobState.STOPPED,
    ]


def stop(ledger: Ledger, job_id: str) -> None:
    assert ledger.controls.request_stop(job_id, by="me"), "not requested before"
    assert not ledger.controls.request_stop(job_id, by="somebody else")


def bind(ledger: Ledger, job_id: str) -> None:
    assert ledger.runs.bind("run-1", job_id, url="page") == job_id
    (run,) = ledger.runs.list(job_id)
    ledger.runs.bind("run-1", job_id)
    assert ledger.runs.list(job_id) == [run]


def attempt(ledger: Ledger, job_id: str) -> None:
    assert ledger.begin_attempt(job_id) == 0
    ledger.end_attempt(job_id, Outcome(0, JobState.FAILED))
    assert ledger.begin_attempt(job_id) == 1


def call(ledger: Ledger, job_id: str) -> None:
    names = [claim_call(ledger, "parent", {}, life="1").name[-2:] for _ in range(2)]
    assert names == ["-0", "-1"]


def pin(ledger: Ledger, job_id: str) -> None:
    pinned = ledger.pins.pin_weights(job_id, "base", "first")
    assert ledger.pins.pin_weights(job_id, "base", "second") == pinned
    assert ledger.pins.pin_image(job_id, "image:1") == "image:1"
    assert ledger.pins.pin_image(job_id, "image:2") == "image:1"


def deployment(ledger: Ledger, job_id: str) -> None:
    deployments = DeploymentLedger(ledger)
    made = deployments.ensure_deployment("model")
    assert deployments.ensure_deployment("model") == made
    for number in (1, 2):
        assert deployments.add_revision("model", new_revision).number == number
        deployments.set_desired_revision("model", number, why="deployed")
    assert [one.number for one in deployments.list_revisions("model")] == [1, 2]
    assert [one.revision for one in deployments.list_desired_revisions("model")] == [1, 2]


def new_revision(number: int) -> Revision:
    return Revision(number, float(number), "engine", "full", ("model",), (("job", "checkpoint-1"),))


def tombstone(ledger: Ledger, job_id: str) -> None:
    project = ledger.get_job(job_id).project_id
    names = ("checkpoint-1", "checkpoint-2")
    created = {
        create_tombstone(ledger.store, project, job_id, Tombstone(name, 1.0, (), {})): name
        for name in names
    }
    written = iter_tombstones(ledger.store, project, job_id)
    assert {key: tombstone.name for key, tombstone in written} == created


ACTS: list[Callable[[Ledger, str], None]] = [
    *(push, new_project, name, claim, stop, bind, attempt, call, pin, deployment, tombstone)
]


@pytest.mark.parametrize("fault", [LoseAnswer(), LoseAnswer(500)], ids=["reset", "500"])
@pytest.mark.parametrize("act", ACTS, ids=lambda act: act.__name__)
def test_a_create_whose_answer_is_lost_is_no_failure(
    ledger: Ledger,
    server: FaultyServer,
    act: Callable[[Ledger, str], None],
    fault: LoseAnswer,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """The store has the object, and the library repeats the request."""
    monkeypatch.setenv("PREFECT_BT_STATE_DIR", str(tmp_path / "state"))
    job_id, tried = written(ledger), Counter[str]()
    arrive = server.arrive

    def lose_first_answer(request: Request) -> Fault:
        tried[request.path] += request.method == "PUT"
        arrive(request)
        return fault if tried[request.path] == 1 and request.method == "PUT" else None

    server.arrive = lose_first_answer
    act(Ledger(ledger.store), job_id)
    assert tried.total() > 1


# -- stores that create an object twice ------------------------------------------------------------


def probes(bucket: Bucket) -> list[str]:
    return [info.key for info in open_store(bucket.url).list("queue/probes")]


def test_a_store_is_tested_once(ledger: Ledger, server: FaultyServer, tmp_path: Path) -> None:
    check_creates_once(ledger.store, tmp_path)
    assert server.requests
    before = len(server.requests)
    check_creates_once(ledger.store, tmp_path)
    check_creates_once(open_store(ledger.store.url), tmp_path)
    assert len(server.requests) == before
    check_creates_once(ledger.store, tmp_path / "another")
    assert len(server.requests) > before


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (StripRequest("If-None-Match"), "ignores the header If-None-Match"),
        (Answer(501, "NotImplemented"), "refuses to create an object only if there is none"),
        (Answer(400, "InvalidArgument"), "refuses to create an object only if there is none"),
    ],
    ids=["a proxy takes the header off", "not implemented", "invalid"],
)
def test_a_store_without_conditional_writes_is_refused_before_anything_is_written(
    ledger: Ledger, server: FaultyServer, bucket: Bucket, tmp_path: Path, monkeypatch, fault, words
) -> None:
    monkeypatch.setenv("PREFECT_BT_STATE_DIR", str(tmp_path))
    arrive = server.arrive

    def refuse_conditional(request: Request) -> Fault:
        arrive(request)
        return fault if request.conditional else None

    server.arrive = refuse_conditional
    for _ in range(2):
        with pytest.raises(StoreError, match=words) as raised:
            write_job(ledger, small_project(), SubmitOptions(substrate="local"), None)
        assert "pass the header If-None-Match" in raised.value.next_step
        assert "two machines would run the same job" in raised.value.message
    assert list(open_store(bucket.url).list("")) == []


def test_an_outage_is_no_refusal(ledger: Ledger, server: FaultyServer, tmp_path: Path) -> None:
    server.on(Answer(403, "AccessDenied"), method="PUT", times=None)
    with pytest.raises(StoreError, match="refuses access"):
        check_creates_once(ledger.store, tmp_path)
    server.clear()
    check_creates_once(ledger.store, tmp_path)
    assert list(ledger.store.list("")) == []


@pytest.mark.parametrize("url", ["store", "file://{}/store"])
def test_a_folder_needs_no_test(tmp_path: Path, url: str) -> None:
    store = open_store(url.format(tmp_path) if "://" in url else str(tmp_path / url))
    check_creates_once(store, tmp_path / "state")
    assert not (tmp_path / "state").exists()
    assert try_create(store, "key", b"1")
    assert try_create(store, "key", b"1")
    assert not try_create(store, "key", b"2")
