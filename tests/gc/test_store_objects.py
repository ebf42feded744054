"""What was left in the store: holds, claims and unfinished uploads."""

import os
import time
from collections.abc import Iterator

import pytest

from prefect_bt.checkpoints.retention.holds import Hold
from prefect_bt.codec import dumps
from prefect_bt.gc.findings import OrphanKind
from prefect_bt.gc.liveness import JobStores
from prefect_bt.gc.store_objects import UploadScanner
from prefect_bt.ledger.ledger import Ledger
from prefect_bt.ledger.states import JobState
from prefect_bt.object_store.disk import DiskStore
from prefect_bt.object_store.protocols import ObjectInfo
from tests.gc.conftest import DAY, Site


def test_holds_of_jobs_that_are_over(site: Site) -> None:
    owner = site.ledger.get_job(site.job(JobState.COMPLETED))
    prefix = f"training_projects/{owner.project_id}/jobs/{owner.id}/holds"
    for job_id in (site.job(JobState.COMPLETED), site.job(JobState.RUNNING)):
        hold = Hold(job_id, "job", time.time(), ())
        site.ledger.store.put(f"{prefix}/{job_id}.json", dumps(hold).encode())
    site.ledger.store.put(f"{prefix}/served.json", dumps(Hold("d", "deployment", 1.0, ())).encode())
    (found,) = site.look().orphans
    assert found.kind is OrphanKind.HOLD
    assert site.clear() == []
    assert len(list(site.ledger.store.list(prefix))) == 2


@pytest.mark.parametrize(
    ("kind", "key"),
    [
        (OrphanKind.SHARED_DOWNLOAD, "weights/sharing/k1-r1/0"),
        (OrphanKind.STORE_TEST, "queue/probes/0123"),
        (OrphanKind.API_UPLOAD, "uploads/abc1234-0123/workspace.tgz"),
    ],
)
def test_objects_that_a_dead_process_left(site: Site, kind: OrphanKind, key: str) -> None:
    site.ledger.store.put(key, b"{}")
    assert site.kinds() == []
    path = site.root / "store" / key
    long_ago = time.time() - 30 * DAY
    os.utime(path, (long_ago, long_ago))
    (found,) = site.look().orphans
    assert (found.kind, found.location) == (kind, key)
    assert site.clear() == []
    assert not path.exists()


def test_what_was_being_written_into_a_folder_store(site: Site) -> None:
    temporary = site.root / "store" / ".prefect-bt-tmp" / "deadbeef"
    temporary.parent.mkdir(parents=True, exist_ok=True)
    temporary.write_bytes(b"half")
    assert site.kinds() == []
    long_ago = time.time() - 30 * DAY
    os.utime(temporary, (long_ago, long_ago))
    (found,) = site.look().orphans
    assert (found.kind, found.bytes) == (OrphanKind.UPLOAD, 4)
    assert site.clear() == []
    assert not temporary.exists()


class Begins(DiskStore):
    """A folder store with unfinished uploads."""

    unfinished: tuple[ObjectInfo, ...] = ()

    def list_unfinished_uploads(self, prefix: str = "") -> Iterator[ObjectInfo]:
        yield from self.unfinished


def test_an_upload_belongs_to_its_job_for_as_long_as_that_may_need_it(site: Site) -> None:
    store = Begins(site.root / "store")
    running, over = site.job(JobState.RUNNING), site.job(JobState.COMPLETED)
    ended = Ledger(site.ledger.store, clock=lambda: time.time() - 3600)
    long_over = site.job(JobState.COMPLETED, ledger=ended)

    def unfinished(key: str, age: float) -> ObjectInfo:
        return ObjectInfo(key, 5, time.time() - age, key)

    prefix = "training_projects/p/jobs"
    store.unfinished = (
        unfinished(f"{prefix}/{running}/objects/x", 30 * DAY),
        unfinished(f"{prefix}/{over}/objects/x", 3600),
        unfinished(f"{prefix}/{long_over}/objects/late", 5),
        unfinished(f"{prefix}/{long_over}/objects/x", 3600),
        unfinished(f"{prefix}/unknown/workspace.tar", 3600),
        unfinished(f"{prefix}/unknown/old.tar", 30 * DAY),
        unfinished("weights/blobs/ab/new", 3600),
        unfinished("weights/blobs/ab/old", 30 * DAY),
    )
    stores = JobStores(lambda url: Ledger(store), site.settings.store)
    found = {one.location: one.reason for one in UploadScanner(stores, 7 * DAY).scan()}
    assert list(found) == [store.unfinished[n].key for n in (3, 5, 7)]
    assert found[store.unfinished[3].key] == "the job is completed"
