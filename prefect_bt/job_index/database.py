"""The file of the job index: one SQLite database per store, which may be lost at any time.

    <state dir>/catalogue/<digest of the store's URL>.sqlite3      tables of (id, body, digest)
    <state dir>/catalogue/<digest of the store's URL>.lock         see below

No fault of the file is an error of a command. A file that is damaged, or that another store wrote,
is replaced, with one sentence. A file that is locked or not accessible is not used by this process.

The file is open during one read or write only, under a shared flock on the lock file. The process
that replaces the file holds the lock exclusively: SQLite must not see a database replaced under an
open connection.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import sqlite3
import zlib
from collections.abc import Callable, Collection, Generator, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Literal

from prefect_bt.filesystem.permissions import ensure_private_folder

Table = Literal["jobs", "documents"]

BUSY_SECONDS: Final = 0.2
"""Seconds to wait for another process's transaction, once in a process."""
TABLES: Final[tuple[Table, ...]] = ("jobs", "documents")
_BATCH: Final = 500
_INACCESSIBLE_CODES: Final = frozenset({3, 5, 6, 8, 10, 13, 14, 15, 23})
"""SQLite's codes for a file that is busy, read-only, full or not accessible, but not damaged."""

_log = logging.getLogger(__name__)


class _IncompatibleDatabase(Exception):
    """The file is a database, but not this job index of this store. `reason` is empty for a file of
    another release, which is no fault."""

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)
        self.reason = reason


class CatalogDatabase:
    """Bodies by table and id. `stamp` names the format; another format is replaced silently.

    Nothing is created before the first write.
    """

    def __init__(
        self, folder: Path, *, store: str, stamp: str, warn: Callable[[str], object]
    ) -> None:
        name = hashlib.sha256(store.encode()).hexdigest()[:16]
        self.path = folder / f"{name}.sqlite3"
        self._lock = folder / f"{name}.lock"
        self._about = {"store": store, "stamp": stamp}
        self._warn = warn
        self.usable = True
        """False once the file was out of reach: it is not asked again by this process."""

    def read(self, table: Table, ids: Collection[str] | None = None) -> dict[str, str]:
        """Return the bodies of these ids, or of all. Rows whose digest is wrong are left out."""
        found: dict[str, str] = {}
        with self._handle_errors(), self._connect(create=False) as connection:
            for key, body, digest in _select(connection, table, ids) if connection else ():
                if isinstance(body, str) and digest == _checksum(key, body):
                    found[key] = body
        return found

    def write(
        self, table: Table, bodies: Mapping[str, str], *, deleted: Collection[str] = ()
    ) -> None:
        """Replace these bodies and remove `deleted` ids from every table, in one transaction."""
        if not bodies and not deleted:
            return
        rows = [(key, body, _checksum(key, body)) for key, body in bodies.items()]
        with self._handle_errors(), self._connect(create=True) as connection:
            if connection is None:
                return
            with _transaction(connection):
                for one in TABLES:
                    removed = [(key,) for key in deleted]
                    connection.executemany(f"DELETE FROM {one} WHERE id = ?", removed)  # noqa: S608
                connection.executemany(f"INSERT OR REPLACE INTO {table} VALUES (?, ?, ?)", rows)  # noqa: S608

    # -- faults -------------------------------------------------------------------------------

    @contextmanager
    def _handle_errors(self) -> Generator[None]:
        """Turn every fault of the file into a job index that is empty, or not used."""
        try:
            yield
        except OSError as error:
            self._disable(error)
        except _IncompatibleDatabase as unfit:
            self._delete_file(unfit.reason)
        except sqlite3.Error as error:
            code = getattr(error, "sqlite_errorcode", None)
            if code is not None and code & 0xFF in _INACCESSIBLE_CODES:
                self._disable(error)
            else:
                self._delete_file(f"is damaged ({error})")

    def _disable(self, error: Exception) -> None:
        _log.info("The catalogue %s is not used: %s", self.path, error)
        self.usable = False

    def _delete_file(self, why: str) -> None:
        """Remove the file, unless another process uses it: then a later one removes it."""
        try:
            with _hold_lock(self._lock, fcntl.LOCK_EX):
                for ending in ("", "-journal", "-wal", "-shm"):
                    self.path.with_name(self.path.name + ending).unlink(missing_ok=True)
        except OSError as error:
            self._disable(error)
        else:
            if why:
                self._warn(f"The catalogue {self.path} {why}; it is rebuilt from the store.")

    # -- the file -----------------------------------------------------------------------------

    @contextmanager
    def _connect(self, *, create: bool) -> Generator[sqlite3.Connection | None]:
        """Yield the open database; None where there is none, or none that can be used."""
        if not self.usable or not (create or self.path.exists()):
            yield None
            return
        ensure_private_folder(self.path.parent)
        with _hold_lock(self._lock, fcntl.LOCK_SH):
            os.close(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
            connection = sqlite3.connect(self.path, timeout=BUSY_SECONDS, isolation_level=None)
            try:
                connection.execute("PRAGMA synchronous = NORMAL")
                self._check(connection)
                yield connection
            finally:
                connection.close()

    def _check(self, connection: sqlite3.Connection) -> None:
        """Raise _Unfit for another job index; make the tables in an empty file."""
        tables = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        if not tables.fetchall():
            self._create_tables(connection)
        about = dict(connection.execute("SELECT key, value FROM about").fetchall())
        if about.get("store") != self._about["store"]:
            raise _IncompatibleDatabase(f"is of another store ({about.get('store')})")
        if about != self._about:
            raise _IncompatibleDatabase

    def _create_tables(self, connection: sqlite3.Connection) -> None:
        with _transaction(connection):
            connection.execute("CREATE TABLE IF NOT EXISTS about (key TEXT PRIMARY KEY, value)")
            for table in TABLES:
                connection.execute(
                    f"CREATE TABLE IF NOT EXISTS {table} (id TEXT PRIMARY KEY, body, digest)"
                )
            about = list(self._about.items())
            connection.executemany("INSERT OR REPLACE INTO about VALUES (?, ?)", about)


def _select(
    connection: sqlite3.Connection, table: Table, ids: Collection[str] | None
) -> Iterator[tuple[str, object, object]]:
    if ids is None:
        yield from connection.execute(f"SELECT id, body, digest FROM {table}")  # noqa: S608
        return
    wanted = list(ids)
    for start in range(0, len(wanted), _BATCH):
        batch = wanted[start : start + _BATCH]
        marks = ", ".join("?" * len(batch))
        yield from connection.execute(
            f"SELECT id, body, digest FROM {table} WHERE id IN ({marks})",  # noqa: S608
            batch,
        )


@contextmanager
def _transaction(connection: sqlite3.Connection) -> Generator[None]:
    """Commit at the end. Closing the connection rolls back what was not committed."""
    connection.execute("BEGIN IMMEDIATE")
    yield
    connection.execute("COMMIT")


def _checksum(key: str, body: str) -> int:
    """Notice bytes that changed inside a row, which SQLite does not."""
    return zlib.crc32(f"{key}\0{body}".encode("utf-8", "surrogatepass"))


@contextmanager
def _hold_lock(path: Path, kind: int) -> Generator[None]:
    """Hold the lock file. BlockingIOError where another process does."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)
