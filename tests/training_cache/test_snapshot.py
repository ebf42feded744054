"""Snapshots of a project's cache in the store, and what another machine shows of them."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from prefect_bt.attempts.job_context import JobContext
from prefect_bt.attempts.lifecycle import record_outcome
from prefect_bt.cli.app import main
from prefect_bt.definitions import (
    CacheConfig,
    Image,
    Runtime,
    TrainingJob,
    TrainingProject,
    project_document,
)
from prefect_bt.ledger.ledger import Ledger
from prefect_bt.ledger.records import JobRecord, Outcome
from prefect_bt.ledger.states import JobState
from prefect_bt.object_store import open_store
from prefect_bt.settings import Settings
from prefect_bt.training_cache.snapshot import read_snapshots, write_snapshot
from prefect_bt.training_cache.usage import summarize_cache
from tests.written_jobs import write_job


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(open_store(str(tmp_path / "store")))


def fill(state: Path, project_id: str) -> Path:
    top = state / "cache" / "projects" / project_id
    for n in range(30):
        file = top / f"d{n % 3}" / "deep" / f"{n}.bin"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"x" * 100)
    (top / "top.bin").write_bytes(b"x" * 7)
    (top / "link").symlink_to("/")
    return top


def test_a_bounded_listing_keeps_the_totals(ledger: Ledger, tmp_path: Path):
    project = ledger.projects.ensure("p")
    fill(tmp_path / "state", project.id)
    whole = summarize_cache(tmp_path / "state", project.id)
    assert (len(whole.entries), whole.total_entries) == (38, 38)
    few = summarize_cache(tmp_path / "state", project.id, max_entries=5)
    assert [entry.path for entry in few.entries] == ["d0", "d1", "d2", "link", "top.bin"]
    assert few.entries == [entry for entry in whole.entries if "/" not in entry.path]
    assert (few.total_entries, few.total_size) == (38, whole.total_size)
    assert [entry.size for entry in few.entries[:3]] == [1000, 1000, 1000]
    none = summarize_cache(tmp_path / "state", project.id, max_entries=0)
    assert (none.entries, none.total_entries) == ([], 38)


def test_a_listing_that_takes_too_long_says_so(
    ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    project = ledger.projects.ensure("p")
    fill(tmp_path / "state", project.id)
    monkeypatch.setattr("prefect_bt.training_cache.usage._PROGRESS_INTERVAL", 1)
    found = summarize_cache(tmp_path / "state", project.id, max_seconds=0.0)
    assert not found.complete
    assert 0 < found.total_entries < 38


@contextmanager
def folder_of_a_plain_user() -> Generator[Path]:
    """A folder, and nothing but the rights of the user whose it is: modes do not bind root."""
    is_root = os.geteuid() == 0
    if is_root:
        os.seteuid(65534)
    try:
        with tempfile.TemporaryDirectory() as folder:
            yield Path(folder)
    finally:
        if is_root:
            os.seteuid(0)


@pytest.mark.parametrize("place", ["a", "a/below", "a/below/folder"])
@pytest.mark.parametrize("closed", ["", "a", "a/below"])
@pytest.mark.parametrize("moment", [1, 2, 3])
def test_a_folder_that_becomes_a_link_is_not_followed(
    place: str, closed: str, moment: int, monkeypatch: pytest.MonkeyPatch
):
    """Whatever a job does between two looks, nothing outside of the cache is listed.

    Of what is in a folder that may be listed and not searched (`closed`), only the names are known.
    """
    monkeypatch.setattr("prefect_bt.training_cache.usage._PROGRESS_INTERVAL", 1)
    with folder_of_a_plain_user() as folder:
        top, outside = folder / "state" / "cache" / "projects" / "p", folder / "outside"
        for root in (top, outside):
            (root / "a/below/folder/deeper").mkdir(parents=True)
        for name in ("a", "a/below", "a/below/folder", "a/below/folder/deeper"):
            (outside / name / "secret").write_bytes(b"x")
        if closed:
            (top / closed).chmod(0o444)

        def swap(count: int) -> None:
            if count == moment:
                (top / closed).chmod(0o755)
                (top / place).rename(folder / "moved")
                (top / place).symlink_to(outside / place)

        found = summarize_cache(folder / "state", "p", on_progress=swap)
        (top / closed).chmod(0o755)
    assert not [entry.path for entry in found.entries if "secret" in entry.path]


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], int]:
    """The command on a machine with the same store and another state folder."""
    monkeypatch.setenv("PREFECT_BT_STORE", str(tmp_path / "store"))
    monkeypatch.setenv("PREFECT_BT_STATE_DIR", str(tmp_path / "other"))
    return lambda output: main(["cache", "summarize", "p", "-o", output])


def test_another_machine_shows_the_newest_snapshot(
    ledger: Ledger,
    tmp_path: Path,
    elsewhere: Callable[[str], int],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
):
    project, state = ledger.projects.ensure("p"), tmp_path / "state"
    assert elsewhere("json") == 0
    assert json.loads(capsys.readouterr().out)["total_files"] == 0
    assert not write_snapshot(ledger.store, state, project.id, host="alpha:1")

    top = fill(state, project.id)
    write_snapshot(ledger.store, state, project.id, host="beta:2")
    (top / "top.bin").unlink()
    for _ in range(2):  # replaced, not added
        monkeypatch.setattr("prefect_bt.training_cache.snapshot.MAX_ENTRIES", 4)
        write_snapshot(ledger.store, state, project.id, host="alpha:1")
    ledger.store.put(f"training_projects/{project.id}/cache/bad.json", b"{")
    assert [one.host for one in read_snapshots(ledger.store, project.id)] == ["alpha", "beta"]

    assert elsewhere("json") == 0
    told = capsys.readouterr()
    found = json.loads(told.out)
    assert (found["host"], found["complete"], found["total_files"]) == ("alpha", True, 37)
    assert [file["path"] for file in found["files"]] == ["d0", "d1", "d2", "link"]
    assert f"the snapshot of host alpha, captured at {found['timestamp']}." in told.err
    assert "33 entries in deep folders are not listed" in told.err
    assert "Hosts with older snapshots: beta." in told.err
    assert elsewhere("cli-table") == 0
    assert "Host: alpha" in capsys.readouterr().out

    monkeypatch.setenv("PREFECT_BT_STATE_DIR", str(state))
    assert elsewhere("json") == 0
    told = capsys.readouterr()
    assert "host" not in json.loads(told.out)
    assert told.err == ""


class NoNodes:
    """A substrate that knows no node any more."""

    def list_nodes(self, job_id: str) -> list[object]:
        _ = job_id
        return []


@pytest.mark.parametrize("enabled", [True, False])
def test_the_end_of_an_attempt_writes_one(ledger: Ledger, tmp_path: Path, enabled: bool):
    project = ledger.projects.ensure("p")
    fill(tmp_path / "state", project.id)
    runtime = Runtime(start_commands=["true"], cache_config=CacheConfig(enabled=enabled))
    job = TrainingJob(image=Image(base_image="x"), runtime=runtime)
    definition = project_document(TrainingProject(name="p", job=job))
    job_id = ledger.reserve_job_id(project.id)
    record = JobRecord(job_id, "job-1", project.id, "p", 1.0, definition)
    write_job(ledger, record)
    ledger.begin_attempt(job_id)
    substrate: Any = NoNodes()
    site = JobContext(ledger, substrate, record, settings=Settings(state_dir=tmp_path / "state"))
    record_outcome(site, Outcome(0, JobState.FAILED))
    assert [one.total_entries for one in read_snapshots(ledger.store, project.id)] == [38] * enabled
