"""Whether Prefect's own database is worth a temporary server: asked of real SQLite files."""

import sqlite3
from pathlib import Path

import pytest
from prefect.settings import (
    PREFECT_API_DATABASE_CONNECTION_URL,
    PREFECT_API_URL,
    PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS,
    PREFECT_SERVER_LOGGING_LEVEL,
    temporary_settings,
)

from prefect_bt.prefect_api import client
from prefect_bt.prefect_api.database import may_have_block

TABLES = """
    CREATE TABLE block_type (id TEXT, slug TEXT);
    CREATE TABLE block_document (id TEXT, name TEXT, block_type_id TEXT);
    INSERT INTO block_type VALUES ('1', 'secret'), ('2', 's3-bucket');
    INSERT INTO block_document VALUES ('a', 'hf-token', '1'), ('b', 'bucket', '2');
"""


def using(url: str):
    updates = {PREFECT_API_DATABASE_CONNECTION_URL: url, PREFECT_API_URL: None}
    return temporary_settings(updates=updates)


def test_blocks_are_looked_up_in_the_database(tmp_path: Path) -> None:
    file = tmp_path / "prefect.db"
    with using(f"sqlite+aiosqlite:///{file}"):
        assert not may_have_block(["aws-credentials", "secret"], ["hf-token"])
        assert not file.exists()
        file.write_text("this is no database")
        assert may_have_block(["aws-credentials", "secret"], ["hf-token"])
        file.unlink()
        with sqlite3.connect(file) as connection:
            connection.executescript(TABLES)
        assert may_have_block(["aws-credentials", "secret"], ["other", "hf-token"])
        assert not may_have_block(["aws-credentials", "secret"], ["other", "bucket"])


@pytest.mark.parametrize(
    "url", ["postgresql+asyncpg://u:p@h/db", "sqlite+aiosqlite:///:memory:", "sqlite:///x.db"]
)
def test_any_other_database_is_left_to_the_server(url: str) -> None:
    with using(url):
        assert may_have_block(["aws-credentials", "secret"], ["hf-token"])


def test_a_fresh_home_starts_no_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFECT_BT_STATE_DIR", str(tmp_path))
    with using(f"sqlite+aiosqlite:///{tmp_path / 'home' / 'prefect.db'}"):
        assert client.SecretBlocks().find("hf_token") is None
    assert list(tmp_path.iterdir()) == []


def test_a_temporary_server_is_quiet_unless_configured() -> None:
    quiet = client._temporary_server_settings()
    assert quiet.get(PREFECT_SERVER_LOGGING_LEVEL, "CRITICAL") == "CRITICAL"
    timeout = PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS
    with temporary_settings(updates={PREFECT_SERVER_LOGGING_LEVEL: "DEBUG", timeout: 7}):
        assert client._temporary_server_settings() == {}
