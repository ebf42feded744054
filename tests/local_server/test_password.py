"""The password file of the server of `up`: which users can read it, and where it is sent."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from prefect_bt.errors import ServerError
from prefect_bt.host.processes import read_start_time
from prefect_bt.local_server.discovery import write_server
from prefect_bt.local_server.password import (
    CLIENT_VARIABLE,
    auth_file,
    ensure_auth,
    find_auth,
    is_same_server,
    read_auth,
    write_auth,
)

API = "http://127.0.0.1:4200/api"


@pytest.fixture
def umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def test_only_its_owner_can_read_the_file(tmp_path: Path, umask: None) -> None:
    auth = ensure_auth(tmp_path, API, {}, configured="")
    assert stat.S_IMODE(auth_file(tmp_path).stat().st_mode) == 0o600
    assert [file.name for file in tmp_path.iterdir()] == [auth_file(tmp_path).name]
    assert ensure_auth(tmp_path, API, {}, configured="") == auth == read_auth(tmp_path)
    assert ensure_auth(tmp_path / "..", API, {}, configured="") != auth


@pytest.mark.parametrize("text", ["", "\n", "a b:c", "two\nlines", "prefect-bt:\x07", "é:é"])
def test_a_garbled_file_is_replaced(tmp_path: Path, text: str) -> None:
    write_auth(tmp_path, text)
    assert read_auth(tmp_path) == ""
    auth = ensure_auth(tmp_path, API, {}, configured="")
    assert auth.startswith("prefect-bt:") and read_auth(tmp_path) == auth


def test_a_file_that_others_can_read_or_that_is_elsewhere_is_replaced(tmp_path: Path) -> None:
    first = ensure_auth(tmp_path, API, {}, configured="")
    auth_file(tmp_path).chmod(0o640)
    second = ensure_auth(tmp_path, API, {}, configured="")
    assert second != first
    (tmp_path / "elsewhere").mkdir()
    write_auth(tmp_path / "elsewhere", "planted:by-another")
    auth_file(tmp_path).unlink()
    auth_file(tmp_path).symlink_to(auth_file(tmp_path / "elsewhere"))
    third = ensure_auth(tmp_path, API, {}, configured="")
    assert third not in {first, second, "planted:by-another"}
    assert not auth_file(tmp_path).is_symlink()
    assert read_auth(tmp_path / "elsewhere") == "planted:by-another"


def test_a_restarted_server_keeps_its_password_without_its_file(tmp_path: Path) -> None:
    here = {"PREFECT_API_URL": "http://localhost:4200/api/", CLIENT_VARIABLE: "told:here"}
    there = {"PREFECT_API_URL": "https://team.example/api", CLIENT_VARIABLE: "told:there"}
    assert ensure_auth(tmp_path, API, there, configured="") not in there.values()
    auth_file(tmp_path).unlink()
    assert ensure_auth(tmp_path, API, here, configured="") == "told:here"


def test_the_users_own_password_is_used(tmp_path: Path) -> None:
    assert ensure_auth(tmp_path, API, {}, configured="mine:own") == "mine:own"
    assert read_auth(tmp_path) == "mine:own"
    with pytest.raises(ServerError, match="PREFECT_SERVER_API_AUTH_STRING"):
        ensure_auth(tmp_path, API, {}, configured="two words")


def test_it_is_sent_to_its_own_living_server_only(tmp_path: Path) -> None:
    write_auth(tmp_path, "a:b")
    living = {"server_pid": os.getpid(), "server_started": read_start_time(os.getpid())}
    write_server(tmp_path, {"api_url": API, **living})
    assert find_auth(tmp_path, API) == "a:b"
    for other in ("", "http://127.0.0.1:4201/api", "https://team.example/api", "http://x:y/api"):
        assert find_auth(tmp_path, other) == ""
    # Another program may have its port by now, of another user.
    write_server(tmp_path, {"api_url": API, "server_pid": os.getpid(), "server_started": 1})
    assert find_auth(tmp_path, API) == ""
    assert not is_same_server("", "")
