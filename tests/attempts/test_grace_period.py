"""What a last checkpoint takes, and what a stop gives for it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from prefect_bt.attempts.grace_period import (
    MAX_GRACE,
    PriorFiles,
    choose_grace,
    estimate_save,
    find_save_estimate,
)
from prefect_bt.checkpoints.committed.catalog import CommittedCheckpoint
from prefect_bt.checkpoints.manifest import FORMAT, Manifest, ManifestEntry, dump_manifest
from prefect_bt.ledger.ledger import Ledger
from prefect_bt.ledger.records import JobRecord
from prefect_bt.object_keys import job_objects_prefix
from prefect_bt.object_store import open_store

OBJECTS = job_objects_prefix("p", "j")


def part(rank: int, size: int, *seconds: float) -> Manifest:
    """A rank's part whose files were last written at these seconds."""
    entries = tuple(
        ManifestEntry(
            f"{n}.bin", f"{n}.bin", f"{OBJECTS}/{rank}-{n}", 1, "0" * 64, mtime_ns=int(at * 1e9)
        )
        for n, at in enumerate(seconds)
    )
    return Manifest(FORMAT, "p", "j", rank, 2, "checkpoint-8", 0, 1, 2000.0, size, entries, step=8)


def checkpoint(*parts: Manifest) -> CommittedCheckpoint:
    keys = {one.rank: one.key for one in parts}
    size = sum(one.size for one in parts)
    return CommittedCheckpoint(
        *("i", "checkpoint-8", "p", "j", 2000.0, "full", None, None, size, 8, 0, keys),
        manifests=parts,
    )


def test_the_slowest_rank_counts() -> None:
    parts = part(0, 4_000, 1000.0, 1004.0), part(1, 9_000, 1000.0, 1012.0, 1003.0)
    found = estimate_save(checkpoint(*parts), {0: 1_000.0, 1: 3_000.0}, grace=30.0)
    assert (found.write, found.upload, found.size) == (12.0, 4.0, 9_000)
    assert found.total_seconds == 16.0
    assert found.warning == ""


def test_one_file_and_no_rate_tell_nothing() -> None:
    found = estimate_save(checkpoint(part(0, 100, 1000.0)), {}, grace=5.0)
    assert (found.write, found.upload, found.grace, found.warning) == (0.0, None, 5.0, "")


def test_what_stayed_or_was_copied_was_not_written() -> None:
    """An args.json kept beside weights written anew, and a tokenizer copied with its old time."""
    one = checkpoint(part(0, 100, 1500.0, 8200.0, 8203.0, 20.0))
    before = PriorFiles(1000.0, frozenset({(0, "0.bin", 1_500_000_000_000)}))
    assert estimate_save(one, {}, grace=30.0, prior=before).write == 3.0


def written(*files: tuple[str, float], version: int) -> Manifest:
    entries = tuple(
        ManifestEntry(path, path, f"{OBJECTS}/{path}-{at}", 1, "0" * 64, mtime_ns=int(at * 1e9))
        for path, at in files
    )
    one = part(0, 100)
    return replace(one, name="last", version=version, entries=entries)


@pytest.mark.parametrize(
    ("versions", "took"),
    [
        ([[("a", 1000.0)], [("a", 1000.0), ("b", 1006.0)]], 6.0),
        (
            [[("args", 1000.0), ("w", 1001.0)], [("args", 1000.0), ("w", 5000.0), ("x", 5003.0)]],
            3.0,
        ),
        (
            [
                [("args", 1000.0), ("w", 1001.0)],
                [("args", 1000.0), ("w", 5000.0)],
                [("args", 1000.0), ("w", 5000.0), ("x", 5003.0)],
            ],
            3.0,
        ),
    ],
    ids=["slow", "rewritten", "rewritten slowly"],
)
def test_a_save_is_told_from_the_one_before_it(
    versions: list[list[tuple[str, float]]], took: float, tmp_path: Path
) -> None:
    ledger = Ledger(open_store(str(tmp_path)), clock=lambda: 500.0)
    project = ledger.ensure_project("p")
    job_id = ledger.reserve_job_id(project.id)
    record = JobRecord(job_id, "training-job", project.id, "p", 1.0, definition={})
    ledger.write_job(record)
    ledger.begin_attempt(job_id)
    for number, files in enumerate(versions):
        one = replace(written(*files, version=number), project_id=project.id, job_id=job_id)
        own = f"{job_objects_prefix(project.id, job_id)}/"
        entries = tuple(replace(e, key=e.key.replace(f"{OBJECTS}/", own)) for e in one.entries)
        one = replace(one, entries=entries)
        ledger.store.put(one.key, dump_manifest(one))
    found = find_save_estimate(ledger, record, grace=30.0, notice=None)
    assert found is not None
    assert found.write == took


@pytest.mark.parametrize(
    ("write", "grace", "notice", "chosen"),
    [
        (0.0, 30.0, None, 30.0),
        (10.0, 30.0, None, 30.0),
        (40.0, 30.0, None, 60.0),
        (40.0, 30.0, 45.0, 45.0),
        (5_000.0, 30.0, None, MAX_GRACE),
        (0.0, 30.0, 10.0, 10.0),
    ],
)
def test_the_grace_is_what_a_checkpoint_needs(
    write: float, grace: float, notice: float | None, chosen: float
) -> None:
    assert choose_grace(write, grace=grace, notice=notice) == chosen


def test_a_notice_that_is_too_short_is_said() -> None:
    one = checkpoint(part(0, 60_000, 1000.0, 1020.0))
    found = estimate_save(one, {0: 1_000.0}, grace=30.0, notice=70.0)
    assert "took 20 s to write and 60 s to upload" in found.warning
    assert "gives 70 s" in found.warning
    assert not estimate_save(one, {0: 1_000.0}, grace=30.0, notice=90.0).warning


def test_a_write_that_no_grace_covers_is_said() -> None:
    one = checkpoint(part(0, 1, 0.001, 900.0))
    assert "a stop gives 600 s" in estimate_save(one, {}, grace=30.0).warning
