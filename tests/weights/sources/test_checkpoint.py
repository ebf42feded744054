"""`bt://`: a committed checkpoint of an earlier job as weights."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from prefect_bt.checkpoints.manifest import (
    Manifest,
    ManifestEntry,
    UploadOrigin,
    dump_manifest,
    entry_logical_path,
)
from prefect_bt.errors import WeightsError
from prefect_bt.ledger.ledger import Ledger
from prefect_bt.ledger.records import JobRecord
from prefect_bt.object_store import open_store
from prefect_bt.planning.plan import WeightsPlan
from tests.weights.conftest import mirror, tree

FILES = {"config.json": b"{}", "sub/model.bin": bytes(range(256)) * 50_000}


class Jobs:
    """Jobs of one project in a store on disk, and what they committed."""

    def __init__(self, root: Path) -> None:
        self.ledger = Ledger(open_store(str(root)))
        self.store = self.ledger.store
        self.project = self.ledger.projects.ensure("My Project")
        self.made = 0

    def job(self, name: str) -> str:
        self.made += 1
        job_id = self.ledger.reserve_job_id(self.project.id)
        record = JobRecord(
            id=job_id,
            name=name,
            project_id=self.project.id,
            project_name=self.project.name,
            created_at=float(self.made),
            definition={},
            substrate="local",
        )
        self.ledger.write_job(record)
        return job_id

    def commit(self, job_id: str, name: str, files: dict[str, bytes], *, rank: int = 0) -> Manifest:
        origin = UploadOrigin(self.project.id, job_id, rank, 0)
        entries: list[ManifestEntry] = []
        for path, data in files.items():
            key = f"training_projects/{self.project.id}/jobs/{job_id}/objects/0000/{name}/{path}"
            self.store.put(key, data)
            digest = hashlib.sha256(data).hexdigest()
            entries.append(
                ManifestEntry(path, entry_logical_path(origin, name, path), key, len(data), digest)
            )
        self.made += 1
        manifest = Manifest(
            format=1,
            project_id=self.project.id,
            job_id=job_id,
            rank=rank,
            group_size=1,
            name=name,
            attempt=0,
            version=1,
            committed_at=float(self.made),
            size=sum(map(len, files.values())),
            entries=tuple(entries),
            step=int(name.rpartition("-")[2]),
        )
        self.store.put(manifest.key, dump_manifest(manifest))
        return manifest


@pytest.fixture
def jobs(tmp_path: Path) -> Jobs:
    return Jobs(tmp_path / "store")


def mirrored(jobs: Jobs, source: str, state: Path) -> dict[str, bytes]:
    plan = WeightsPlan(source, "/w", "k1")
    return tree(mirror(plan, state, store=jobs.store))


def refused(jobs: Jobs, source: str, state: Path) -> str:
    with pytest.raises(WeightsError) as caught:
        mirrored(jobs, source, state)
    assert caught.value.source == source
    assert caught.value.next_step
    return str(caught.value)


@pytest.mark.slow
def test_newest_named_and_by_job(jobs: Jobs, tmp_path: Path) -> None:
    first, last, empty = jobs.job("first"), jobs.job("last"), jobs.job("empty")
    jobs.commit(first, "checkpoint-5", {"a": b"5"})
    jobs.commit(last, "checkpoint-10", FILES)
    jobs.commit(last, "checkpoint-10", {"of-rank-1": b"1"}, rank=1)
    for source, expected in {
        "bt://My Project": FILES,
        "bt://My Project@latest": FILES,
        f"bt://My Project@{last}/checkpoint-10": FILES,
        "bt://My Project/checkpoint-5": {"a": b"5"},
        f"bt://My Project@{first}": {"a": b"5"},
        "bt://My Project@first": {"a": b"5"},
        f"bt://{jobs.project.id}@{first}/checkpoint-5": {"a": b"5"},
    }.items():
        assert mirrored(jobs, source, tmp_path / source.replace("/", "_")) == expected
    assert "latest of job empty" in refused(jobs, "bt://My Project@empty", tmp_path)
    assert empty


def test_a_newer_checkpoint_is_mirrored_anew(jobs: Jobs, tmp_path: Path) -> None:
    job = jobs.job("j")
    jobs.commit(job, "checkpoint-5", {"a": b"5"})
    assert mirrored(jobs, "bt://My Project", tmp_path) == {"a": b"5"}
    jobs.commit(job, "checkpoint-6", {"a": b"6"})
    assert mirrored(jobs, "bt://My Project", tmp_path) == {"a": b"6"}


def test_sentences(jobs: Jobs, tmp_path: Path) -> None:
    job = jobs.job("j")
    committed = jobs.commit(job, "checkpoint-5", FILES)
    assert "No project 'other'" in refused(jobs, "bt://other", tmp_path)
    told = refused(jobs, "bt://My Project@none", tmp_path)
    assert "No job 'none'" in told and job in told
    assert "checkpoint-9" in refused(jobs, "bt://My Project/checkpoint-9", tmp_path)
    key = committed.entries[1].key
    jobs.store.put(key, b"x" * committed.entries[1].size)
    assert "sub/model.bin arrived damaged twice" in refused(jobs, "bt://My Project", tmp_path)
    jobs.store.delete(key)
    assert "sub/model.bin is missing" in refused(jobs, "bt://My Project", tmp_path)
    with pytest.raises(WeightsError, match="no store is configured here"):
        mirror(WeightsPlan("bt://My Project", "/w", "k1"), tmp_path)
