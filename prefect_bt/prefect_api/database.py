"""Prefect's own database of this user, read without its server.

Without a configured API, Prefect keeps its blocks in an SQLite file and starts a temporary server
to read them. That takes from ten seconds to a minute, writes to the file, and on a home without a
file, its services report "database is locked" while they create the tables. The names of the blocks
are not encrypted: one read-only query tells whether the server has to be started.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Collection
from contextlib import closing, suppress
from pathlib import Path
from typing import Final

from prefect.settings import PREFECT_API_DATABASE_CONNECTION_URL

_SIDE_FILE_SUFFIXES: Final = ("-wal", "-shm", "-journal")
_SCHEME: Final = "sqlite+aiosqlite:///"
_BLOCK_QUERY: Final = """
    SELECT 1 FROM block_document AS document JOIN block_type AS type
        ON document.block_type_id = type.id
    WHERE type.slug IN ({}) AND document.name IN ({}) LIMIT 1
"""


def may_have_block(types: Collection[str], names: Collection[str]) -> bool:
    """Return False if the database certainly has no block of the types and names.

    Return True if that cannot be determined: another kind of database, other tables, a file that
    cannot be read.
    """
    file = _database_file()
    if file is None:
        return True
    if not file.exists():
        return False
    query = _BLOCK_QUERY.format(*(", ".join("?" * len(each)) for each in (types, names)))
    try:
        with closing(sqlite3.connect(f"{file.as_uri()}?mode=ro", uri=True)) as connection:
            return connection.execute(query, (*types, *names)).fetchone() is not None
    except sqlite3.Error:
        return True


def make_private() -> None:
    """Deny other users access to the database: it holds secrets, and their key is beside them.

    A missing file is created, because Prefect would make it readable.
    """
    file = _database_file()
    if file is None:
        return
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    os.close(os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    for path in (file, *(file.with_name(f"{file.name}{suffix}") for suffix in _SIDE_FILE_SUFFIXES)):
        with suppress(FileNotFoundError, PermissionError):
            path.chmod(0o600)


def _database_file() -> Path | None:
    """Return the SQLite file that a server of this user opens; None for any other database."""
    url: str = PREFECT_API_DATABASE_CONNECTION_URL.value() or ""
    path = url.removeprefix(_SCHEME).partition("?")[0]
    if not url.startswith(_SCHEME) or not path or path.startswith((":", "file:")):
        return None
    return Path(path).absolute()
