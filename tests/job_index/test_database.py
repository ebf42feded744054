"""The file of the catalogue and its faults: none is an error, and each is one sentence at most."""

from __future__ import annotations

import fcntl
import os
import signal
import sqlite3
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from prefect_bt.job_index.database import BUSY_SECONDS, CatalogDatabase

STORE, STAMP = "file:///store", "one"
BODIES = {f"job{number:04d}": f"body {number} " * 40 for number in range(500)}

Open = Callable[..., CatalogDatabase]


@pytest.fixture
def told() -> list[str]:
    return []


@pytest.fixture
def database(tmp_path: Path, told: list[str]) -> Open:
    def open_database(store: str = STORE, stamp: str = STAMP) -> CatalogDatabase:
        folder = tmp_path / "state" / "catalogue"
        return CatalogDatabase(folder, store=store, stamp=stamp, warn=told.append)

    return open_database


@pytest.fixture
def filled(database: Open) -> CatalogDatabase:
    """A file with all bodies."""
    one = database()
    one.write("jobs", BODIES)
    return one


def repairs_itself(database: Open) -> None:
    """The next process finds an empty catalogue or a part of it, and can keep things in it."""
    one = database()
    assert one.read("jobs").items() <= BODIES.items()
    one.write("jobs", BODIES)
    again = database()
    again.write("jobs", BODIES)
    assert again.read("jobs") == BODIES


def test_what_is_written_is_read_by_another_process(database: Open, told: list[str]) -> None:
    one = database()
    assert one.read("jobs") == {}
    assert not one.path.parent.exists()
    one.write("jobs", BODIES)
    one.write("documents", {"job0001": "a document", "job0002": "another"})
    one.write("jobs", {"job0003": "new"}, deleted=["job0001"])
    other = database()
    expected = {**BODIES, "job0003": "new"}
    del expected["job0001"]
    assert other.read("jobs") == expected
    assert other.read("jobs", ["job0003", "job0001", "none"]) == {"job0003": "new"}
    assert other.read("jobs", BODIES) == expected
    assert other.read("documents") == {"job0002": "another"}
    assert told == []


def test_only_this_user_reads_the_file(filled: CatalogDatabase) -> None:
    assert filled.path.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(
    "garbage",
    [b"this is no database " * 300, b"SQLite format 3\0" + bytes(4096)],
    ids=["text", "header"],
)
def test_garbage_is_replaced(
    database: Open, told: list[str], filled: CatalogDatabase, garbage: bytes
) -> None:
    filled.path.write_bytes(garbage)
    assert database().read("jobs") == {}
    assert len(told) == 1
    assert "is damaged" in told[0]
    assert told[0].endswith("it is rebuilt from the store.")
    repairs_itself(database)
    assert len(told) == 1


@pytest.mark.parametrize("part", [0.0, 0.01, 0.3, 0.5, 0.9, 0.999])
def test_a_truncated_file_is_replaced(
    database: Open, told: list[str], filled: CatalogDatabase, part: float
) -> None:
    os.truncate(filled.path, int(filled.path.stat().st_size * part))
    repairs_itself(database)
    assert len(told) <= 1


@pytest.mark.parametrize("seed", range(20))
def test_changed_bytes_are_never_believed(
    database: Open, told: list[str], filled: CatalogDatabase, seed: int
) -> None:
    """Also bytes inside a row, of which SQLite knows nothing."""
    random = Random(seed)
    data = bytearray(filled.path.read_bytes())
    for _ in range(random.choice([1, 20, 500])):
        data[random.randrange(len(data))] = random.randrange(256)
    filled.path.write_bytes(data)
    repairs_itself(database)
    assert len(told) <= 2


def test_another_stores_file_is_replaced(
    database: Open, told: list[str], filled: CatalogDatabase
) -> None:
    other = database("s3://other/store")
    filled.path.rename(other.path)
    assert other.read("jobs") == {}
    assert "is of another store (file:///store)" in told[0]
    other.write("jobs", {"a": "b"})
    assert database("s3://other/store").read("jobs") == {"a": "b"}
    assert len(told) == 1


def test_another_releases_file_is_replaced_silently(
    database: Open, told: list[str], filled: CatalogDatabase
) -> None:
    newer = database(stamp="two")
    assert newer.read("jobs") == {}
    newer.write("jobs", {"a": "b"})
    assert database(stamp="two").read("jobs") == {"a": "b"}
    assert told == []


def test_a_foreign_database_is_replaced(
    database: Open, told: list[str], filled: CatalogDatabase
) -> None:
    filled.path.unlink()
    with sqlite3.connect(filled.path) as foreign:
        foreign.execute("CREATE TABLE jobs (something INTEGER)")
    foreign.close()
    repairs_itself(database)
    assert len(told) == 1


def test_a_kill_in_the_middle_of_a_write(
    database: Open, told: list[str], filled: CatalogDatabase
) -> None:
    child = os.fork()
    if child == 0:
        connection = sqlite3.connect(filled.path, isolation_level=None)
        connection.execute("PRAGMA cache_size = 1")  # pages reach the file before the commit
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("DELETE FROM jobs WHERE id < 'job0400'")
        connection.executemany(
            "INSERT INTO jobs VALUES (?, ?, 0)", [(f"new{n}", "x" * 900) for n in range(500)]
        )
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    assert filled.path.with_name(f"{filled.path.name}-journal").exists()
    assert database().read("jobs") == BODIES
    assert told == []


def test_a_locked_file_is_not_used(
    database: Open, told: list[str], filled: CatalogDatabase
) -> None:
    """Its wait is bounded: once in a process, for less than a second."""
    assert BUSY_SECONDS < 0.5
    holder = sqlite3.connect(filled.path, isolation_level=None)
    holder.execute("BEGIN EXCLUSIVE")
    one = database()
    assert one.read("jobs") == {}
    assert not one.usable
    one.write("jobs", {"a": "b"})
    assert one.read("jobs") == {}
    holder.execute("ROLLBACK")
    holder.close()
    assert database().read("jobs") == BODIES
    assert told == []


def test_a_file_that_another_process_replaces_is_not_used(
    database: Open, told: list[str], filled: CatalogDatabase
) -> None:
    lock = os.open(filled.path.with_suffix(".lock"), os.O_RDWR)
    fcntl.flock(lock, fcntl.LOCK_EX)
    assert database().read("jobs") == {}
    os.close(lock)
    assert database().read("jobs") == BODIES
    assert told == []


def test_a_damaged_file_in_use_is_left_to_a_later_process(
    database: Open, told: list[str], filled: CatalogDatabase
) -> None:
    filled.path.write_bytes(b"no database" * 900)
    lock = os.open(filled.path.with_suffix(".lock"), os.O_RDWR)
    fcntl.flock(lock, fcntl.LOCK_SH)
    late = database()
    assert late.read("jobs") == {}
    assert not late.usable
    assert filled.path.exists()
    os.close(lock)
    repairs_itself(database)


def test_processes_write_at_once(database: Open, told: list[str]) -> None:
    """Every one of them succeeds or gives up; what was written is whole."""
    children: list[int] = []
    for number in range(4):
        child = os.fork()
        if child == 0:
            status = 1
            try:
                for turn in range(25):
                    one = database()
                    one.write("jobs", {f"{number}-{turn}": f"body {number} {turn}"})
                status = len(told)
            finally:
                os._exit(status)
        children.append(child)
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * 4
    found = database().read("jobs")
    assert found
    assert all(body == f"body {key.replace('-', ' ')}" for key, body in found.items())


# --- folders that cannot be written ----------------------------------------------------------


def test_a_state_folder_that_cannot_be_made(told: list[str], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file" / "catalogue", Path("/proc/no-such-folder/catalogue")):
        one = CatalogDatabase(folder, store=STORE, stamp=STAMP, warn=told.append)
        assert one.read("jobs") == {}
        one.write("jobs", BODIES)
        assert one.read("jobs") == {}
    assert told == []


def test_a_folder_in_the_files_place(
    database: Open, told: list[str], filled: CatalogDatabase
) -> None:
    filled.path.unlink()
    filled.path.mkdir()
    one = database()
    one.write("jobs", BODIES)
    assert one.read("jobs") == {}
    assert told == []


@pytest.mark.parametrize(("folder", "file"), [(0o555, 0o444), (0o555, 0o600), (0o755, 0o000)])
def test_permissions_that_forbid_it(
    database: Open, told: list[str], filled: CatalogDatabase, folder: int, file: int
) -> None:
    """In a child without root's rights, which ignore permissions."""
    one = filled.path
    one.parent.chmod(folder)
    one.chmod(file)
    for parent in one.parents:
        if parent.stat().st_uid == os.geteuid() and parent != one.parent:
            parent.chmod(parent.stat().st_mode | 0o011)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            if os.geteuid() == 0:
                os.setresuid(65534, 65534, 65534)
            mine = database()
            mine.write("jobs", {"a": "b"})
            found = mine.read("jobs")
            status = 0 if found in ({}, BODIES, {**BODIES, "a": "b"}) and not told else 2
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    one.parent.chmod(0o755)
    one.chmod(0o600)
    assert database().read("jobs").items() >= BODIES.items()
