"""What the catalogue says of a store is what the store says, however the store was changed."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from prefect_bt.job_index.entries import JobCatalog, document_stamp, iter_document_sources
from prefect_bt.jobs.delete import delete_job
from prefect_bt.jobs.job_json import job_document
from prefect_bt.ledger.ledger import Ledger
from prefect_bt.ledger.records import JobRecord
from prefect_bt.ledger.states import JobState
from prefect_bt.object_keys import INDEX_REOPENED, job_prefix, manifests_prefix
from prefect_bt.object_store.bucket import BucketStore
from prefect_bt.object_store.disk import DiskStore
from prefect_bt.object_store.protocols import ObjectInfo, Store
from prefect_bt.settings import Settings
from tests.architecture.sources import PACKAGE, ROOT, our_imports, reachable, read_sources, top
from tests.cli.conftest import ENDED, Shop

READING_BYTES = {"credentials", "filesystem", "host", "object_store", "registries", "substrates"}
Look = Callable[..., "Seen"]


class Counting:
    """Beside a store: how often each of its records was read."""

    reads: Counter[str]

    def get(self, key: str) -> bytes:
        data: bytes = super().get(key)  # type: ignore[misc]
        self.reads[key.rpartition("/")[2]] += 1
        return data

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        self.reads["lists"] += 1
        return super().list(prefix)  # type: ignore[misc]


class CountingDisk(Counting, DiskStore):
    pass


class CountingBucket(Counting, BucketStore):
    pass


class Seen:
    """What a process sees that has just begun: documents, and the jobs that are not over."""

    def __init__(self, ledger: Ledger, folder: Path, told: list[str], **given: Any) -> None:
        self.catalogue = JobCatalog(ledger, folder, stamp=given.pop("stamp", "x"), warn=told.append)
        entries = self.catalogue.list_entries(**given)
        self.going = [one.id for one in self.catalogue.list_unfinished(entries, ledger.get_state)]
        documents = self.catalogue.list_documents(
            entries, lambda job_id: job_document(ledger, ledger.get_job(job_id))
        )
        self.ids = [one["id"] for one in documents]
        self.documents = dict(zip(self.ids, documents, strict=True))


@pytest.fixture(params=["disk", "bucket"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    is_disk = request.param == "disk"
    made = CountingDisk(tmp_path / "store") if is_disk else CountingBucket("memory://")
    made.reads = Counter()
    return made


@pytest.fixture
def shop(store: Store, tmp_path: Path) -> Shop:
    made = Shop(str(tmp_path / "unused"))
    made.ledger = Ledger(store, clock=made._tick)
    return made


@pytest.fixture
def told() -> list[str]:
    return []


@pytest.fixture
def look(shop: Shop, store: Store, tmp_path: Path, told: list[str]) -> Look:
    """As a process that begins now; what it sees is compared with the store itself."""

    def look(**given: Any) -> Seen:
        seen = Seen(Ledger(store), tmp_path / "state" / "catalogue", told, **given)
        fresh = Ledger(store)
        for job_id, document in seen.documents.items():
            assert document == job_document(fresh, fresh.get_job(job_id))
        assert seen.going == [i for i in seen.ids if not fresh.get_state(i).terminal]
        return seen

    return look


def ended(shop: Shop, *, end: JobState = JobState.COMPLETED) -> JobRecord:
    record = shop.job("tiny", *ENDED[:-1])
    shop.ledger.begin_attempt(record.id)
    shop.ledger.append_event(record.id, end)
    return record


def test_an_empty_store(look: Look, tmp_path: Path) -> None:
    assert look().ids == []
    assert not (tmp_path / "state").exists()


def test_jobs_come_oldest_first_and_by_project(shop: Shop, look: Look) -> None:
    first, other, last = (shop.job(name, *ENDED) for name in ("tiny", "other", "tiny"))
    for _ in range(2):
        assert look().ids == [first.id, other.id, last.id]
        assert look(project_id=first.project_id).ids == [first.id, last.id]
        assert look(project_id="none").ids == []


@pytest.mark.slow
def test_of_ended_jobs_no_record_is_read_twice(
    shop: Shop, look: Look, store: Any, told: list[str], tmp_path: Path
) -> None:
    jobs = [ended(shop) for _ in range(30)]
    shop.checkpoint(jobs[0], "checkpoint-1", size=10, at=1)
    look()
    folder = tmp_path / "state" / "catalogue"
    store.reads.clear()
    lists = {}
    for count in (0, 3):
        catalogue = JobCatalog(Ledger(store), folder, stamp="x", warn=told.append)
        entries = catalogue.list_entries()
        assert catalogue.list_unfinished(entries, Ledger(store).get_state) == []
        assert len(catalogue.list_documents(entries[:count], lambda _: {})) == count
        lists[count] = store.reads.pop("lists")
    assert store.reads == {}
    assert lists[0] <= 2
    assert lists[3] <= lists[0] + 3 * 5
    assert told == []


def test_a_retried_job(shop: Shop, look: Look) -> None:
    jobs = [ended(shop, end=JobState.FAILED) for _ in range(3)]
    assert look().going == []
    shop.ledger.append_event(jobs[1].id, JobState.CREATED)
    assert look().going == [jobs[1].id]
    for state in (JobState.DEPLOYING, JobState.RUNNING, JobState.FAILED):
        shop.ledger.append_event(jobs[1].id, state)
    assert look().going == []
    assert look().documents[jobs[1].id]["current_status"] == JobState.FAILED
    shop.ledger.append_event(jobs[1].id, JobState.CREATED)
    assert look().going == [jobs[1].id]


def test_a_kill_between_the_mark_and_the_event(shop: Shop, look: Look, store: Store) -> None:
    job = ended(shop, end=JobState.STOPPED)
    look()
    store.put(f"{INDEX_REOPENED}/{job.id}/000004", b"{}")
    assert look().going == look().going == []
    shop.ledger.append_event(job.id, JobState.CREATED)
    assert look().going == [job.id]


def test_a_deleted_job(shop: Shop, look: Look, store: Store, tmp_path: Path) -> None:
    kept, retried, gone = ended(shop), ended(shop, end=JobState.FAILED), ended(shop)
    shop.ledger.append_event(retried.id, JobState.CREATED)
    shop.ledger.append_event(retried.id, JobState.FAILED)
    assert len(look().ids) == 3
    settings = Settings(state_dir=tmp_path / "state")
    for job in (gone, retried):
        delete_job(Ledger(store), job.id, settings=settings)
    assert look().ids == look().ids == [kept.id]
    assert list(store.list(f"{INDEX_REOPENED}/{retried.id}")) == []


def test_records_removed_by_hand(shop: Shop, look: Look, store: Store) -> None:
    kept, gone = ended(shop), ended(shop)
    look()
    for info in list(store.list(job_prefix(gone.project_id, gone.id))):
        store.delete(info.key)
    assert look().ids == look().ids == [kept.id]


def test_what_changes_after_a_jobs_end(shop: Shop, look: Look, store: Store) -> None:
    """A prune and a run that is bound late are in the next document."""
    job = ended(shop)
    shop.checkpoint(job, "checkpoint-1", size=10, at=1)
    shop.checkpoint(job, "checkpoint-2", size=10, at=2)
    assert len(look().documents[job.id]["checkpoints"]) == 2
    store.delete(next(iter(store.list(manifests_prefix(job.project_id, job.id)))).key)
    assert len(look().documents[job.id]["checkpoints"]) == 1
    shop.ledger.bind_run("a-run", job.id, url="https://one")
    assert look().documents[job.id]["flow_run_url"] == "https://one"


def test_a_job_that_another_machine_runs_and_ends(shop: Shop, look: Look, store: Store) -> None:
    job = shop.job("tiny", *ENDED[:-1])
    assert look().going == [job.id]
    elsewhere = Ledger(store)
    elsewhere.append_event(job.id, JobState.FAILED, message="it broke")
    assert look().going == []
    elsewhere.append_event(job.id, JobState.CREATED)
    assert look().going == [job.id]


def test_an_id_without_a_job_becomes_one(shop: Shop, look: Look) -> None:
    project = shop.ledger.ensure_project("tiny")
    shop.ledger.reserve_job_id(project.id, preferred="abc1234")
    assert look().ids == look().ids == []
    record = ended(shop)
    assert look().ids == [record.id]


def test_clocks_that_go_back(shop: Shop, look: Look) -> None:
    job = ended(shop, end=JobState.FAILED)
    look()
    shop.at -= 10_000_000
    shop.ledger.append_event(job.id, JobState.CREATED)
    assert look().going == [job.id]
    shop.ledger.append_event(job.id, JobState.STOPPED)
    older = ended(shop)
    assert look().ids == [older.id, job.id]


def test_another_release_makes_other_documents(shop: Shop, look: Look, tmp_path: Path) -> None:
    ended(shop)
    old = look(stamp="old").catalogue
    [path] = (tmp_path / "state" / "catalogue").glob("*.sqlite3")
    before = path.read_bytes()
    assert look(stamp="new").ids == [old.list_entries()[0].id]
    assert path.read_bytes() != before
    assert document_stamp() == document_stamp() != ""


def test_the_stamp_covers_every_module_that_makes_documents() -> None:
    """All that jobs.job_json imports, but for packages that only find and read bytes."""
    sources = read_sources()
    graph = {m: our_imports(m, sources, deferred=False) & set(sources) for m in sources}
    made_by = reachable(graph, {"jobs.job_json"} | our_imports("jobs.job_json", sources))
    made_by = {m for m in made_by if top(m) not in READING_BYTES and m in sources}
    assert {top(m) for m in made_by} >= {"attempts", "checkpoints", "definitions", "ledger"}
    stamped = {path.relative_to(ROOT / PACKAGE) for path in iter_document_sources()}
    missing = {m for m in made_by if not stamped & {file_of(m), file_of(f"{m}.__init__")}}
    assert not missing


def file_of(module: str) -> Path:
    return Path(f"{module.replace('.', '/')}.py")


def test_a_file_that_is_damaged_costs_a_sentence_and_nothing_else(
    shop: Shop, look: Look, told: list[str], tmp_path: Path
) -> None:
    job = ended(shop)
    look()
    [path] = (tmp_path / "state" / "catalogue").glob("*.sqlite3")
    path.write_bytes(b"garbage " * 1000)
    assert look().ids == [job.id]
    assert len(told) == 1
    assert look().ids == [job.id]
    assert len(told) == 1


# --- stores in folders ------------------------------------------------------------------------


def copied(shop: Shop, folder: Path) -> Path:
    return Path(shutil.copytree(folder, folder.with_name("copy")))


@pytest.mark.parametrize("store", ["disk"], indirect=True)
def test_another_store_at_the_same_address(shop: Shop, look: Look, tmp_path: Path) -> None:
    """The same ids name other jobs there."""
    project = shop.ledger.ensure_project("tiny")
    shop.ledger.reserve_job_id(project.id, preferred="abc1234")
    old = ended(shop)
    look()
    shutil.rmtree(tmp_path / "store")
    other = Shop(str(tmp_path / "store"))
    made = other.ledger.ensure_project("tiny")
    other.ledger.reserve_job_id(made.id, preferred=old.id)
    new = ended(other, end=JobState.FAILED)
    assert look().ids == [new.id]


@pytest.mark.parametrize("store", ["disk"], indirect=True)
def test_an_older_copy_of_the_store_put_back(shop: Shop, look: Look, tmp_path: Path) -> None:
    """With the times of its files, as a backup is: a job runs again that was over."""
    job = shop.job("tiny", *ENDED[:-1])
    older = copied(shop, tmp_path / "store")
    shop.ledger.append_event(job.id, JobState.COMPLETED)
    assert look().going == []
    shutil.rmtree(tmp_path / "store")
    shutil.copytree(older, tmp_path / "store")
    assert look().going == [job.id]


@pytest.mark.parametrize("store", ["disk"], indirect=True)
def test_a_release_that_marks_nothing_reopens_a_job(shop: Shop, look: Look, store: Store) -> None:
    job = ended(shop, end=JobState.FAILED)
    look()
    shop.ledger.append_event(job.id, JobState.CREATED)
    for info in list(store.list(INDEX_REOPENED)):
        store.delete(info.key)
    assert look().going == [job.id]
