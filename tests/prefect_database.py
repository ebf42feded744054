"""Copies of the database of Prefect's server: a first start without its migrations."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path


def copy_database(source: Path, home: Path) -> None:
    """Copy the SQLite file of a server, which may run, to the Prefect home of another."""
    home.mkdir(parents=True, exist_ok=True)
    with (
        closing(sqlite3.connect(source)) as read,
        closing(sqlite3.connect(home / "prefect.db")) as written,
    ):
        read.backup(written)
