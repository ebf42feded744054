"""`weights prune --store`: the longest unused copies go, never what is needed; uses are noted."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from prefect_bt.cli.app import main
from prefect_bt.definitions import (
    Image,
    Runtime,
    TrainingJob,
    TrainingProject,
    WeightsSource,
    project_document,
)
from prefect_bt.errors import StoreError
from prefect_bt.gc.weights_in_use import find_needed_copies
from prefect_bt.ledger.ledger import Ledger
from prefect_bt.ledger.records import JobRecord
from prefect_bt.ledger.states import JobState
from prefect_bt.object_store import open_store
from prefect_bt.planning.planner import plan_weights, plan_weights_sources
from prefect_bt.serving.deployment_records import NO_REVISION, DeploymentLedger, Revision
from prefect_bt.weights import mirror_source
from prefect_bt.weights.cache.node_cache import NodeCache
from prefect_bt.weights.manifest import FileEntry, WeightsManifest
from prefect_bt.weights.store_copy.copies import StoreMirror, blob_key
from tests.weights.store_copy.publishing import Blobs, digest
from tests.written_jobs import write_job

DAY = 86_400.0


class StoreOfWeights:
    """A store in a folder, with sources of a megabyte each."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.url = folder, str(folder / "store")
        self.ledger = Ledger(open_store(self.url))
        self.mirror = StoreMirror(self.ledger.store)
        self.cache = NodeCache(folder / "state" / "weights")
        self.blobs = Blobs(folder / "blobs")

    def publish(self, source: str, *, days: float) -> str:
        """Used so many days ago; returns its name."""
        (plan,) = plan_weights_sources([source])
        data = os.urandom(1_000_000)
        self.blobs(digest(data)).write_bytes(data)
        made = WeightsManifest(
            source, plan.key, "r1", (FileEntry("a", len(data), digest(data)),), 12.5
        )
        self.mirror.publish(made, self.blobs)
        at = time.time() - days * DAY
        os.utime(Path(self.url, "weights", "manifests", f"{made.name}.json"), (at, at))
        return made.name

    def job(self, source: str, *states: JobState, pin: bool = True) -> JobRecord:
        project = self.ledger.projects.ensure("p")
        job = TrainingJob(
            image=Image(base_image="x"),
            runtime=Runtime(start_commands=["true"]),
            weights=[WeightsSource(source=source, mount_location="/w")],
        )
        definition = project_document(TrainingProject(name="p", job=job))
        job_id = self.ledger.reserve_job_id(project.id)
        record = JobRecord(job_id, "j", project.id, "p", 1.0, definition)
        write_job(self.ledger, record)
        for state in states:
            self.ledger.append_event(job_id, state)
        if pin:
            self.ledger.pins.pin_weights(job_id, plan_weights(job)[0].key, "r1")
        return record

    def needs(self) -> dict[str, str]:
        return find_needed_copies(self.ledger, self.cache, self.mirror.list_names())


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StoreOfWeights:
    monkeypatch.setenv("PREFECT_BT_STORE", str(tmp_path / "store"))
    monkeypatch.setenv("PREFECT_BT_STATE_DIR", str(tmp_path / "state"))
    return StoreOfWeights(tmp_path)


def prune(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert main(["weights", "prune", "--store", "--yes", "-o", "json", *arguments]) == 0
    return json.loads(capsys.readouterr().out)


def test_the_longest_unused_go_first(
    kept: StoreOfWeights, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    names = [kept.publish(f"hf://o/m{n}", days=10 - n) for n in range(5)]
    record = kept.job("hf://o/m0", JobState.DEPLOYING, JobState.RUNNING)
    kept.mirror.record_use(names[1])
    old = digest(b"left")
    kept.ledger.store.put(blob_key(old), b"left")
    os.utime(Path(kept.url, blob_key(old)), (0, 0))
    kept.ledger.store.put(blob_key(digest(b"on its way")), b"on its way")

    dry = prune(capsys, "--max-bytes", "3MB", "--dry-run")
    assert [row["name"] for row in dry["removed"]] == names[2:4]
    assert (dry["freed_bytes"], dry["leftover_bytes"]) == (2_000_004, 4)
    assert len(kept.mirror.list_names()) == 5
    why = {row["name"]: row["why"] for row in dry["kept"]}
    assert why[names[0]] == f"job {record.id} needs it"
    assert why[names[1]] == "within the size limit"

    monkeypatch.setenv("PREFECT_BT_STORE_WEIGHTS_BYTES", "3MB")
    done = prune(capsys)
    assert (done["removed"], done["freed_bytes"]) == (dry["removed"], dry["freed_bytes"])
    assert sorted(kept.mirror.list_names()) == sorted([names[0], names[1], names[4]])
    left = {info.key.rpartition("/")[2] for info in kept.ledger.store.list("weights/blobs")}
    assert len(left) == 4
    assert digest(b"on its way") in left
    assert prune(capsys)["removed"] == []
    # Even then what is needed stays.
    assert [row["name"] for row in prune(capsys, "--all")["kept"]] == [names[0]]
    assert kept.mirror.list_names() == [names[0]]


def test_which_copies_are_needed(kept: StoreOfWeights, monkeypatch: pytest.MonkeyPatch):
    name = kept.publish("hf://o/m", days=100)
    assert kept.needs() == {}
    job = kept.job("hf://o/m", pin=False)
    assert kept.needs() == {name: f"job {job.id} needs it"}
    kept.ledger.append_event(job.id, JobState.FAILED)
    assert kept.needs() == {name: f"job {job.id} (failed) may be retried"}
    monkeypatch.setattr("prefect_bt.gc.weights_in_use.RESUMABLE_SECONDS", -60.0)  # a week later
    assert kept.needs() == {}
    done = kept.job("hf://o/m", JobState.DEPLOYING, JobState.RUNNING, JobState.COMPLETED)
    other = kept.job("hf://o/other", JobState.DEPLOYING)
    assert kept.needs() == {}
    assert done.id != other.id


def test_every_revision_of_a_deployment_that_serves_is_needed(kept: StoreOfWeights):
    name = kept.publish("hf://o/m", days=100)
    job = kept.job("hf://o/m", JobState.DEPLOYING, JobState.RUNNING, JobState.COMPLETED)
    deployments = DeploymentLedger(kept.ledger)
    deployments.ensure_deployment("stories")
    deployments.add_revision("stories", lambda n: Revision(n, 1.0, "vllm", "full", ("m",), ()))
    deployments.bind_job("stories", 1, job.id)
    assert kept.needs() == {}
    deployments.set_desired_revision("stories", 1, why="deployed")
    assert kept.needs() == {name: "deployment stories serves it"}
    deployments.set_desired_revision("stories", NO_REVISION, why="stopped")
    assert kept.needs() == {}


def test_a_removal_that_fails_leaves_no_half_a_copy(
    kept: StoreOfWeights, monkeypatch: pytest.MonkeyPatch
):
    name = kept.publish("hf://o/m", days=1)

    def refuse(sha256: str) -> None:
        raise StoreError("the store is away", url=kept.url)

    with monkeypatch.context() as away:
        away.setattr(kept.mirror, "delete_blob", refuse)
        with pytest.raises(StoreError):
            kept.mirror.delete(name)
    assert (kept.mirror.list_names(), sum(kept.mirror.list_unreferenced().values())) == (
        [],
        1_000_000,
    )
    assert kept.mirror.delete_unreferenced() == 1_000_000
    running = [info.key for info in kept.ledger.store.list("weights/pruning")]
    assert [key for key in running if "/last-" not in key] == []


def test_uses_are_noted_at_most_hourly_and_a_pruned_copy_is_made_again(kept: StoreOfWeights):
    folder = kept.folder / "source"
    folder.mkdir()
    (folder / "a").write_bytes(b"weights")
    (plan,) = plan_weights_sources([f"file://{folder}"])
    store, noted = kept.ledger.store, lambda: [i.key for i in store.list("weights/used")]

    def mirror(machine: str) -> Path:
        cache = NodeCache(kept.folder / machine / "weights")
        return mirror_source(plan, cache=cache, store=store).folder.parent / "stored"

    stamp = mirror("one")
    mirror("one")
    assert noted() == []
    os.utime(stamp, (0, 0))
    mirror("one")
    (name,) = kept.mirror.list_names()
    assert noted() == [f"weights/used/{name}"]
    assert mirror("two").exists()  # reads the store's copy, which is a use

    kept.mirror.delete(name)
    mirror("one")
    assert (kept.mirror.list_names(), noted()) == ([], [])
    os.utime(stamp, (0, 0))
    mirror("one")
    assert kept.mirror.list_names() == [name]
    assert store.get(blob_key(digest(b"weights"))) == b"weights"
