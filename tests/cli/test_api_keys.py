"""Keys of the HTTP API, the remotes that they write, and the environment of truss."""

from __future__ import annotations

from pathlib import Path

import pytest

from prefect_bt.cli.api.truss import build_environment
from prefect_bt.errors import UsageError
from prefect_bt.job_service.remotes import Server, find_server, read_remotes
from tests.cli.conftest import Cli, Within

OTHERS = "# mine\n[hosted]\nremote_provider = baseten\nremote_url = https://app.baseten.co\n"
KEY = f"prefect-bt-abcdefg-{'0' * 40}"


@pytest.fixture
def trussrc(cli: Cli) -> Path:
    return Path(cli.env["HOME"]) / ".trussrc"


def test_a_key_is_shown_once(within: Within):
    key = within("api-key", "create", "laptop").out.strip()
    listed = within("api-key", "list")
    assert ("laptop" in listed.out, key in listed.out + listed.err) == (True, False)
    assert within("api-key", "create", "laptop").code == 2
    revoked = within("api-key", "revoke", "laptop", "-o", "json").json
    assert key not in str(revoked)
    assert within("api-key", "list", "-o", "json").json == {"api_keys": []}
    assert "List the keys" in within("api-key", "revoke", "laptop").err


def test_a_key_has_a_team_and_an_expiry(within: Within):
    made = within("api-key", "create", "ci", "--team", "red", "--expires", "1h", "-o", "json").json
    assert (made["team"], made["expires_at"] > made["created_at"]) == ("red", True)
    assert "--expires" in within("api-key", "create", "b", "--expires", "soon").err


@pytest.mark.parametrize("before", ["", OTHERS, OTHERS.rstrip("\n"), f"\n{OTHERS}\n\n"])
def test_a_remote_is_added_and_the_rest_of_the_file_stays(
    within: Within, trussrc: Path, before: str
):
    if before:
        dotfiles = trussrc.with_name("dotfiles")
        dotfiles.write_text(before)
        trussrc.symlink_to(dotfiles)
    first = within("api-key", "create", "a", "--trussrc", "ours").out.strip()
    second = within("api-key", "create", "b", "--trussrc", "ours").out.strip()
    text = trussrc.read_text()
    assert text.startswith(before)
    assert (first in text, second in text) == (False, True)
    assert trussrc.is_symlink() == bool(before)
    ours = read_remotes(trussrc)["ours"]
    assert ours["remote_url"] == "http://localhost:8000"
    assert (trussrc.stat().st_mode & 0o777) == 0o600


OURS = "[ours]\nremote_url = http://localhost:8000\napi_key = old\nteam = red\n"
HOME = "# mine\n[a]\napi_key = other\n\n{}\n[z]\napi_key=other"


@pytest.mark.parametrize(
    "before",
    [
        OURS,
        HOME.format(OURS),
        HOME.format(OURS).replace("\n", "\r\n"),
        HOME.format(OURS.replace("]", "] \t").replace("api_key = ", "API_KEY:")),
        HOME.format(OURS.replace("old", "\n  old").replace("team", "prefect_bt_url = u\nteam")),
        HOME.format(OURS.replace("\n", "\n  ").rstrip(" ")),
        OURS.replace("team = red\n", "").rstrip("\n"),
    ],
    ids=["only", "between", "crlf", "spaces", "continued", "indented", "no-newline"],
)
def test_a_new_key_of_a_remote_changes_nothing_else(within: Within, trussrc: Path, before: str):
    trussrc.write_bytes(before.encode())
    key = within("api-key", "create", "a", "--trussrc", "ours").out.strip()
    expected = before.replace("\n  old", "old").replace("old", key)
    assert trussrc.read_bytes().decode() == expected
    assert read_remotes(trussrc)["ours"]["api_key"] == key


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_a_remote_without_a_key_gets_one(within: Within, trussrc: Path, newline: str):
    before = HOME.format(OURS.replace("api_key = old\n", "")).replace("\n", newline)
    trussrc.write_bytes(before.encode())
    key = within("api-key", "create", "a", "--trussrc", "ours").out.strip()
    expected = before.replace("[ours]", f"[ours]{newline}api_key = {key}")
    assert trussrc.read_bytes().decode() == expected


@pytest.mark.parametrize(
    ("url", "used"),
    [
        ("HTTP://127.0.0.1:8123/", "http://127.0.0.1:8123"),
        ("https://box.example/sub//", "https://box.example/sub"),
        ("http://[::1]:8000", "http://[::1]:8000"),
        (" http://b\u00fccher.example\n", "http://b\u00fccher.example"),
    ],
)
def test_a_url_of_a_server_is_used(monkeypatch: pytest.MonkeyPatch, url: str, used: str):
    monkeypatch.setenv("PREFECT_BT_API_URL", url)
    monkeypatch.setenv("PREFECT_BT_API_KEY", f" {KEY}\n")
    assert find_server(None) == Server("PREFECT_BT_API_URL", used, KEY)


@pytest.mark.parametrize(
    "url",
    [
        "127.0.0.1:8123",
        "ftp://127.0.0.1",
        "http://",
        "http://:8123",
        "http://127.0.0.1:80x",
        "http://127.0.0.1:99999",
        "http://[::1",
        "http://a..b",
        "http://a b",
        "http://127.0.0.1/\u00fc",
        "http://u:pass@127.0.0.1:8123",
        "http://127.0.0.1:8123?x=1",
        "http://127.0.0.1:8123#x",
    ],
)
def test_a_url_of_no_server_is_refused(within: Within, monkeypatch: pytest.MonkeyPatch, url: str):
    monkeypatch.setenv("PREFECT_BT_API_URL", url)
    monkeypatch.setenv("PREFECT_BT_API_KEY", KEY)
    refused = within("view").refusal(2)
    assert "The URL of PREFECT_BT_API_URL" in refused
    assert "pass@" not in refused


@pytest.mark.parametrize("key", [f'"{KEY}"', f"'{KEY}'", f"{KEY}é", f"{KEY} a", f"{KEY}\n a"])
def test_a_key_with_other_characters_is_refused(
    within: Within, monkeypatch: pytest.MonkeyPatch, trussrc: Path, key: str
):
    trussrc.write_text(f"[ours]\nremote_url = http://localhost:8000\napi_key = {key}\n")
    refused = within("view", "--remote", "ours").refusal(2)
    assert "The api_key of remote 'ours' has a quote" in refused
    monkeypatch.setenv("PREFECT_BT_API_URL", "http://127.0.0.1:8123")
    monkeypatch.setenv("PREFECT_BT_API_KEY", key)
    assert "The key PREFECT_BT_API_KEY has a quote" in (also := within("view").refusal(2))
    assert KEY not in refused + also


@pytest.mark.parametrize("name", ["hosted", "DEFAULT", "a]b", ""])
def test_a_remote_of_another_service_is_not_replaced(within: Within, trussrc: Path, name: str):
    trussrc.write_text(OTHERS)
    assert within("api-key", "create", "a", "--trussrc", name).code == 2
    assert trussrc.read_text() == OTHERS
    assert within("api-key", "list", "-o", "json").json == {"api_keys": []}


# --- prefect-bt truss ---------------------------------------------------------------------------


def _write(path: Path, **remote: str) -> None:
    lines = [f"{name} = {value}" for name, value in remote.items()]
    path.write_text("\n".join(["[ours]", *lines]) + "\n")


def test_truss_is_sent_to_our_server(
    within: Within, trussrc: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("NO_PROXY", "localhost,corp.example")
    local = {"remote_url": "http://localhost:8000", "api_key": KEY}
    _write(trussrc, **local)
    found = build_environment(("train", "view", "--remote", "ours"))
    assert (found["HTTP_PROXY"], found["NO_PROXY"]) == ("http://localhost:8000", "corp.example")
    _write(trussrc, **local, prefect_bt_url="http://box.example:9000")
    found = build_environment(("train", "view", "--remote", "ours"))
    assert found["http_proxy"] == "http://box.example:9000"
    monkeypatch.setenv("PREFECT_BT_API_URL", "http://box.example:8000")
    monkeypatch.setenv("PREFECT_BT_API_KEY", KEY)
    found = build_environment(("train", "view"))
    assert found["HTTP_PROXY"] == "http://box.example:8000"
    assert found["BASETEN_TRUSS_AUTH_API_KEY"] == KEY


@pytest.mark.parametrize(
    ("remote", "words"),
    [
        ({"remote_url": "https://app.baseten.co", "api_key": KEY}, "another service"),
        ({"remote_url": "http://127.0.0.1:8000", "api_key": KEY}, "another service"),
        (
            {
                "remote_url": "http://localhost:8000",
                "api_key": KEY,
                "prefect_bt_url": "https://box.example",
            },
            "does not check the certificate",
        ),
    ],
)
def test_our_key_is_not_sent_elsewhere(
    within: Within, trussrc: Path, remote: dict[str, str], words: str
):
    _write(trussrc, **remote)
    with pytest.raises(UsageError, match=words):
        build_environment(("train", "view", "--remote", "ours"))


def test_truss_must_be_installed(within: Within, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", "")
    assert "pip install truss" in within("truss", "--", "train", "view").err


@pytest.mark.parametrize("command", ["isession", "update_session", "workstation", "ssh"])
def test_sessions_come_later(within: Within, command: str):
    refused = within(command, "--job-id", "abc", "setup").refusal(2)
    assert "later release" in refused
