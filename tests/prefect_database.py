"""Copies of the database of Prefect's server: a first start without its migrations."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

PREPARED = {
    "PREFECT_API_DATABASE_MIGRATE_ON_START": "false",
    "PREFECT_API_BLOCKS_REGISTER_ON_START": "false",
}


def copy_database(source: Path, home: Path) -> dict[str, str]:
    """Copy the SQLite file of a server, which may run, to the Prefect home of another.

    Returns variables for the other server: it has the tables and Prefect's own blocks.
    """
    home.mkdir(parents=True, exist_ok=True)
    with (
        closing(sqlite3.connect(source)) as read,
        closing(sqlite3.connect(home / "prefect.db")) as written,
    ):
        read.backup(written)
    return PREPARED
