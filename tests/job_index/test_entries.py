"""Lists of jobs show what the records say, however and whenever the records were changed."""

import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from prefect_bt.errors import NotFoundError, StoreError
from prefect_bt.job_index import entries
from prefect_bt.job_index.entries import JobIndex, ReadDocument, store_document
from prefect_bt.jobs.delete import delete_job
from prefect_bt.jobs.job_json import job_document, store_ended_job
from prefect_bt.jobs.prune_checkpoints import execute_prune, plan_prune
from prefect_bt.ledger.ended_documents import delete_ended_document
from prefect_bt.ledger.ledger import Ledger
from prefect_bt.ledger.records import JobRecord, NodePhase, NodeStatus, Outcome, RetentionPolicy
from prefect_bt.ledger.states import JobState
from prefect_bt.object_keys import INDEX_ENDED
from prefect_bt.object_store import disk
from prefect_bt.object_store.bucket import BucketStore
from prefect_bt.object_store.disk import DiskStore
from prefect_bt.object_store.protocols import ObjectInfo, Store
from prefect_bt.settings import Settings
from tests.cli.conftest import ENDED, Shop

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

    def __init__(self, ledger: Ledger, read: ReadDocument, **given: Any) -> None:
        self.jobs = JobIndex(ledger, read)
        entries = self.jobs.list_entries(**given)
        self.going = [one.id for one in self.jobs.list_unfinished(entries, ledger.get_state)]
        documents = self.jobs.list_documents(entries)
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
def look(shop: Shop, store: Store) -> Look:
    """As a process that begins now; what it sees is compared with the records."""

    def look(read: ReadDocument | None = None, **given: Any) -> Seen:
        ledger = Ledger(store)
        seen = Seen(ledger, read or (lambda job_id: read_records(ledger, job_id)), **given)
        fresh = Ledger(store)
        for job_id, document in seen.documents.items():
            assert document == read_records(fresh, job_id)
        assert seen.going == [i for i in seen.ids if not fresh.get_state(i).terminal]
        return seen

    return look


def read_records(ledger: Ledger, job_id: str) -> dict[str, Any]:
    return job_document(ledger, ledger.get_job(job_id))


def stored(store: Store, job_id: str) -> list[str]:
    """Keys of the job's documents in the index."""
    return [info.key for info in store.list(f"{INDEX_ENDED}/{job_id}")]


def ended(shop: Shop, *, end: JobState = JobState.COMPLETED) -> JobRecord:
    record = shop.job("tiny", *ENDED[:-1])
    shop.ledger.begin_attempt(record.id)
    shop.ledger.append_event(record.id, end)
    return record


def test_an_empty_store(look: Look, store: Store) -> None:
    assert look().ids == []
    assert list(store.list("")) == []


def test_jobs_come_oldest_first_and_by_project(shop: Shop, look: Look) -> None:
    first, other, last = (shop.job(name, *ENDED) for name in ("tiny", "other", "tiny"))
    for _ in range(2):
        assert look().ids == [first.id, other.id, last.id]
        assert look(project_id=first.project_id).ids == [first.id, last.id]
        assert look(project_id="none").ids == []


def test_a_list_reads_only_displayed_documents(shop: Shop, look: Look, store: Any) -> None:
    jobs = [ended(shop) for _ in range(20)]
    shop.checkpoint(jobs[0], "checkpoint-1", size=10, at=1)
    look()
    for count in (0, 3, 20):
        store.reads.clear()
        seen = JobIndex(Ledger(store), read=lambda job_id: {})
        entries = seen.list_entries()
        assert [one.id for one in entries] == [job.id for job in jobs]
        assert seen.list_unfinished(entries, Ledger(store).get_state) == []
        assert len(seen.list_documents(entries[:count])) == count
        assert store.reads.pop("lists") == 2
        assert store.reads.total() == count


def test_the_end_of_a_job_stores_its_document(shop: Shop, look: Look, store: Any) -> None:
    job = ended(shop)
    store_ended_job(shop.ledger, job.id)
    assert len(stored(store, job.id)) == 1
    store.reads.clear()
    assert [one["id"] for one in list_all(JobIndex(Ledger(store), read=lambda _: {}))] == [job.id]
    assert store.reads.total() == 3
    assert look().ids == [job.id]


def list_all(jobs: JobIndex) -> list[dict[str, Any]]:
    return jobs.list_documents(jobs.list_entries())


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


def test_a_kill_between_claim_and_event_of_a_retry(shop: Shop, look: Look, store: Store) -> None:
    """The job is still ended, but its document is not stored before that claim has ended."""
    job = ended(shop, end=JobState.STOPPED)
    epoch = shop.ledger.claim(job.id, "a:id-a")
    delete_ended_document(store, job.id)
    for _ in range(2):
        assert look().going == []
        assert stored(store, job.id) == []
    shop.ledger.append_event(job.id, JobState.CREATED, epoch=epoch)
    assert look().going == [job.id]
    shop.ledger.append_event(job.id, JobState.FAILED, epoch=epoch)
    assert look().going == []
    assert len(stored(store, job.id)) == 1


@pytest.mark.parametrize("change", ["retry", "claim", "checkpoint", "delete", "run"])
def test_a_document_made_while_the_job_changes_is_not_kept(
    shop: Shop, look: Look, store: Store, tmp_path: Path, change: str
) -> None:
    job, elsewhere = ended(shop, end=JobState.FAILED), Ledger(store)
    changes: dict[str, Callable[[], object]] = {
        "retry": lambda: elsewhere.append_event(job.id, JobState.CREATED),
        "claim": lambda: elsewhere.claim(job.id, "a:id-a"),
        "checkpoint": lambda: shop.checkpoint(job, "checkpoint-1", size=10, at=1),
        "delete": lambda: delete_job(elsewhere, job.id, settings=Settings(state_dir=tmp_path)),
        "run": lambda: elsewhere.runs.bind("a-run", job.id, url="https://one"),
    }

    def read(job_id: str) -> dict[str, Any]:
        document = read_records(Ledger(store), job_id)
        changes[change]()
        return document

    with suppress(NotFoundError):
        store_document(Ledger(store), job.id, read)
    assert stored(store, job.id) == []
    assert look().ids == ([] if change == "delete" else [job.id])


def test_a_job_with_a_lost_node_is_not_stored(shop: Shop, look: Look, store: Store) -> None:
    """Its uploader may still commit a checkpoint."""
    job = shop.job("tiny", *ENDED[:-1])
    shop.ledger.begin_attempt(job.id)
    lost = NodeStatus(phase=NodePhase.RUNNING, rank=0)
    shop.ledger.end_attempt(job.id, Outcome(0, JobState.FAILED, "lost", nodes=(lost,)))
    shop.ledger.append_event(job.id, JobState.FAILED)
    assert look().ids == [job.id]
    assert stored(store, job.id) == []
    shop.checkpoint(job, "checkpoint-1", size=10, at=1)
    assert len(look().documents[job.id]["checkpoints"]) == 1


def test_a_deleted_job(shop: Shop, look: Look, store: Store, tmp_path: Path) -> None:
    kept, retried, gone = ended(shop), ended(shop, end=JobState.FAILED), ended(shop)
    shop.ledger.append_event(retried.id, JobState.CREATED)
    shop.ledger.append_event(retried.id, JobState.FAILED)
    assert len(look().ids) == 3
    settings = Settings(state_dir=tmp_path / "state")
    for job in (gone, retried):
        delete_job(Ledger(store), job.id, settings=settings)
    assert look().ids == look().ids == [kept.id]
    assert stored(store, retried.id) == []


def test_a_prune_renews_the_document(shop: Shop, look: Look, store: Store, tmp_path: Path) -> None:
    job = ended(shop)
    for step in (1, 2):
        shop.checkpoint(job, f"checkpoint-{step}", size=10, at=step)
    assert len(look().documents[job.id]["checkpoints"]) == 2
    ledger = Ledger(store)
    plan = plan_prune(ledger, job, RetentionPolicy(keep_last=1), (), is_running=False)
    execute_prune(ledger, plan, settings=Settings(state_dir=tmp_path / "state"))
    assert len(look().documents[job.id]["checkpoints"]) == 1
    shop.ledger.runs.bind("a-run", job.id, url="https://one")
    assert look().documents[job.id]["flow_run_url"] == "https://one"


def test_a_job_that_ends_in_a_prune(shop: Shop, look: Look, store: Store, tmp_path: Path) -> None:
    job, ledger = shop.job("tiny", *ENDED[:-1]), Ledger(store)
    for step in (1, 2):
        shop.checkpoint(job, f"checkpoint-{step}", size=10, at=step)
    plan = plan_prune(ledger, job, RetentionPolicy(keep_last=1), (), is_running=True)
    shop.ledger.append_event(job.id, JobState.COMPLETED)
    assert len(look().documents[job.id]["checkpoints"]) == 2
    execute_prune(ledger, plan, settings=Settings(state_dir=tmp_path / "state"))
    assert len(look().documents[job.id]["checkpoints"]) == 1


def test_a_job_that_another_machine_runs_and_ends(shop: Shop, look: Look, store: Store) -> None:
    job = shop.job("tiny", *ENDED[:-1])
    assert look().going == [job.id]
    elsewhere = Ledger(store)
    elsewhere.append_event(job.id, JobState.FAILED, message="it broke")
    assert look().going == []
    elsewhere.append_event(job.id, JobState.CREATED)
    assert look().going == [job.id]


def test_an_id_without_a_job_becomes_one(shop: Shop, look: Look) -> None:
    project = shop.ledger.projects.ensure("tiny")
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


def test_a_document_of_another_format_is_made_again(
    shop: Shop, look: Look, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = ended(shop)
    look()
    [key] = stored(store, job.id)
    before = store.get(key)
    monkeypatch.setattr(entries, "FORMAT", entries.FORMAT + 1)
    assert look().ids == [job.id]
    assert store.get(key) != before


DAMAGED = [b"", b"garbage", b"[]", b'{"format": 2}', b'{"format": 1, "document": []}', b"\xff"]


@pytest.mark.parametrize("data", [*DAMAGED, b"[" * 100_000])
def test_a_damaged_document_is_replaced(shop: Shop, look: Look, store: Store, data: bytes) -> None:
    job, other = ended(shop), ended(shop)
    look()
    [key], [foreign] = stored(store, job.id), stored(store, other.id)
    before = store.get(key)
    for broken in (data, store.get(foreign)):
        store.put(key, broken)
        assert look().ids == [job.id, other.id]
        assert store.get(key) == before


def test_other_objects_in_the_index_are_ignored(shop: Shop, look: Look, store: Store) -> None:
    job = ended(shop)
    look()
    for name in ("x", "abc1234/x", f"{job.id}/x", f"{job.id}/1-p/x", "abc1234/1.0-nobody.json"):
        store.put(f"{INDEX_ENDED}/{name}", b"{}")
    assert look().ids == [job.id]


def test_a_store_that_cannot_be_written(shop: Shop, look: Look, store: Any) -> None:
    jobs = [ended(shop) for _ in range(3)]

    def refuse(key: str, data: bytes) -> None:
        raise StoreError(f"{store.url} refuses access to {key}.", url=store.url, key=key)

    store.put = refuse
    for _ in range(2):
        assert look().ids == [job.id for job in jobs]
        assert list(store.list(INDEX_ENDED)) == []


# --- stores in folders ------------------------------------------------------------------------


def copied(shop: Shop, folder: Path) -> Path:
    return Path(shutil.copytree(folder, folder.with_name("copy")))


@pytest.mark.parametrize("store", ["disk"], indirect=True)
def test_another_store_at_the_same_address(
    shop: Shop, look: Look, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same ids name other jobs there."""
    project = shop.ledger.projects.ensure("tiny")
    shop.ledger.reserve_job_id(project.id, preferred="abc1234")
    old = ended(shop)
    look()
    shutil.rmtree(tmp_path / "store")
    monkeypatch.setattr(disk, "_KNOWN", {})  # as in a new process
    other = Shop(str(tmp_path / "store"))
    made = other.ledger.projects.ensure("tiny")
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
def test_a_store_at_another_address(shop: Shop, look: Look, tmp_path: Path) -> None:
    """A document names the store as its reader does."""
    job = ended(shop)
    look()
    other = Ledger(DiskStore(copied(shop, tmp_path / "store")))
    [found] = list_all(JobIndex(other, read=lambda _: {}))
    assert found == read_records(other, job.id)
    assert found["store"] == other.store.url
