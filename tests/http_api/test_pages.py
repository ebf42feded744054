"""Pages at the links that clients print: what they show, to whom, and the login."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from prefect_bt.definitions import Compute
from prefect_bt.file_server.signed_urls import compute_signature
from prefect_bt.http_api.routes.pages import COOKIE
from prefect_bt.ledger.records import JobRecord
from prefect_bt.ledger.states import JobState
from prefect_bt.serving.deployment_records import DeploymentLedger, Revision
from tests.browser import browser
from tests.cli.conftest import ENDED, RUNNING, Shop
from tests.http_api.served import Api
from tests.jobs.records import new_record, small_project
from tests.written_jobs import write_job

HOSTILE = "<script>alert(1)</script>\x1b[31mred\x1b[0m\x1b[2J\u202e\x00&amp;"
SHOWN = "&lt;script&gt;alert(1)&lt;/script&gt;red\N{SYMBOL FOR ESCAPE}[2J\\u202e\u2400&amp;amp;"


def _path(record: JobRecord) -> str:
    return f"/training/{record.project_id}/logs/{record.id}"


def _log_in(api: Api, key: str = "", **options: Any) -> httpx.Response:
    return api("POST", "/login", key="", data={"key": key or api.key}, **options)


@pytest.fixture
def page(api: Api) -> Iterator[Any]:
    """Get a page as the browser that logged in."""
    assert _log_in(api).status_code == 200

    def get(path: str, status: int = 200) -> str:
        answer = api("GET", path, key="")
        assert answer.status_code == status, answer.text
        assert answer.headers["content-type"] == "text/html; charset=utf-8"
        return answer.text

    yield get


def _add_revision(shop: Shop, name: str, record: JobRecord | None) -> None:
    deployments = DeploymentLedger(shop.ledger)
    deployments.ensure_deployment(name)
    revision = Revision(1, 1.0, "vllm", "full", ("m",), (("j", "c"),), gate=None)
    deployments.add_revision(name, lambda _: revision)
    if record:
        deployments.bind_job(name, 1, record.id)


# -- what they show ------------------------------------------------------------------------------


def test_a_job_is_shown_with_its_checkpoints_and_log(page: Any, shop: Shop):
    record = shop.job("tiny", *RUNNING)
    shop.ledger.append_event(record.id, JobState.FAILED, message="the disk was full")
    shop.ledger.begin_attempt(record.id)
    shop.log(record, [f"line {number}" for number in range(600)])
    shop.checkpoint(record, "checkpoint-10", size=25_100_000, at=60)
    text = page(_path(record))
    for part in ("tiny", "TRAINING_JOB_FAILED", "the disk was full", "vCPU", "2023-11-1"):
        assert part in text
    assert all(part in text for part in ("checkpoint-10", "25.1 MB"))
    lines = re.findall(r"line (\d+)", text)
    assert lines[-1] == "599" and len(lines) in {499, 500}
    assert "2023-11-15 12:00" not in text, "the oldest lines are left out"
    assert 'http-equiv="refresh"' not in text


def test_a_page_of_a_job_that_runs_is_loaded_again(page: Any, shop: Shop):
    record = shop.job("tiny", *RUNNING)
    assert '<meta http-equiv="refresh" content="5">' in page(_path(record))


def test_texts_of_users_are_escaped(page: Any, shop: Shop, api: Api):
    record = shop.job("tiny", *RUNNING, name=HOSTILE.replace("\x00", ""))
    shop.ledger.append_event(record.id, JobState.FAILED, message=HOSTILE)
    shop.ledger.begin_attempt(record.id)
    shop.log(record, [HOSTILE])
    shop.checkpoint(record, "<b>&", size=1, at=60)
    text = page(_path(record))
    assert text.count(SHOWN) == 3, text
    assert "<script" not in text and "&lt;b&gt;&amp;" in text
    assert "<script" not in page(f"/training/{record.project_id}")
    for path in ("/training/<script>", "/models/<script>", "/training/<script>/logs/<script>"):
        assert "<script" not in page(path, 404)
    answer = api("GET", "/login", key="", params={"next": '/"><script>'})
    assert "<script" not in answer.text


def test_a_page_in_prefect_s_ui_is_preferred(page: Any, api: Api, shop: Shop):
    record = shop.job("tiny", *ENDED)
    shop.ledger.runs.bind("run-1", record.id, url="http://127.0.0.1:4200/runs/flow-run/run-1")
    answer = api("GET", _path(record), key="")
    assert (answer.status_code, answer.headers["location"]) == (
        302,
        "http://127.0.0.1:4200/runs/flow-run/run-1",
    )


def test_a_project_lists_its_jobs(page: Any, shop: Shop):
    jobs = [shop.job("tiny", *ENDED) for _ in range(2)]
    for which in (jobs[0].project_id, "tiny"):
        assert re.findall(r'href="(.+?)"', page(f"/training/{which}")) == [
            _path(jobs[1]),
            _path(jobs[0]),
        ]


def test_a_model_lists_its_revisions(page: Any, shop: Shop):
    record = shop.job("tiny", *RUNNING)
    _add_revision(shop, "other model", record)
    _add_revision(shop, "no-job", None)
    assert "failed" in page("/models/no-job")
    _add_revision(shop, "stories", record)
    for path in ("/models/stories", "/models/stories/logs/1"):
        text = page(path)
        assert "starting" in text and f'href="{_path(record)}"' in text
    assert "other model" not in page("/models/stories/logs/2", 404)


# -- the login -----------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/training/x", "/training/x/logs/y", "/models/a", "/models/a b"])
def test_a_page_asks_for_a_key_first(api: Api, path: str):
    answer = api("GET", path, key="")
    assert answer.status_code == 302
    form = api("GET", answer.headers["location"], key="").text
    action = re.search(r'action="(.+?)"', form)
    assert action
    after = _log_in_at(api, action[1])
    assert f'content="0; url={path.replace(" ", "%20")}"' in after.text


def _log_in_at(api: Api, action: str) -> httpx.Response:
    return api("POST", action, key="", data={"key": f" {api.key}\n"})


@pytest.mark.parametrize(
    "next_path",
    [
        "https://evil.example/",
        "//evil.example/",
        "/\\evil.example",
        "\\\\evil.example",
        "/\t/evil.example",
        " //evil.example",
        "/training/x\n//evil.example",
        "javascript:alert(1)",
        "training/x",
        "",
    ],
)
def test_a_login_leads_to_pages_of_this_server_only(api: Api, next_path: str):
    answers = [
        api("GET", "/login", key="", params={"next": next_path}),
        _log_in(api, params={"next": next_path}),
    ]
    for answer in answers:
        assert answer.status_code == 200
        assert "location" not in answer.headers
        assert "evil" not in answer.text and "refresh" not in answer.text


@pytest.mark.parametrize("body", ["key=x", "key=", "", "key=%ff%00", "a=b&key", "{}", "&" * 5000])
def test_a_wrong_key_is_refused_on_the_form(api: Api, body: str):
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    answer = api("POST", "/login", key="", content=body, headers=form)
    assert answer.status_code == 401
    assert "no valid API key" in answer.text and "<form" in answer.text
    assert "set-cookie" not in answer.headers


def test_the_cookie_has_no_key_and_is_for_pages_only(api: Api, shop: Shop):
    record = shop.job("tiny", *ENDED)
    cookie = _log_in(api).headers["set-cookie"]
    assert api.key not in cookie and api.key[-40:] not in cookie
    assert re.search("httponly", cookie, re.I) and re.search("samesite=strict", cookie, re.I)
    assert "Path=/" in cookie and "Secure" not in cookie
    assert not re.search("expires|max-age|domain", cookie, re.I)
    for path in ("/v1/teams", f"/v1/training_projects/{record.project_id}"):
        assert api("GET", path, key="").status_code == 401
    assert api("GET", _path(record), key="").status_code == 200
    assert api("POST", "/logout", key="").status_code == 200
    assert api("GET", _path(record), key="").status_code == 302


def _cookie(api: Api, **changed: Any) -> str:
    key_id = api.key.split("-")[2]
    parts = {"name": f"login/{key_id}", "expires": str(int(time.time()) + 60), **changed}
    signature = compute_signature(api.site.uploads.secret, parts["name"], parts["expires"])
    return f"{changed.get('key_id', key_id)}.{parts['expires']}.{signature}"


@pytest.mark.parametrize(
    ("case", "status"),
    [
        ({}, 404),
        ({"expires": "1700000000"}, 302),
        ({"name": "login/other"}, 302),
        ({"key_id": "other"}, 302),
        ({"key_id": "gone", "name": "login/gone"}, 302),
        ({"name": "uploads/x"}, 302),
    ],
)
def test_only_a_cookie_of_a_valid_key_counts(api: Api, case: dict[str, str], status: int):
    headers = {"Cookie": f"{COOKIE}={_cookie(api, **case)}"}
    assert api("GET", "/models/x", key="", headers=headers).status_code == status


@pytest.mark.parametrize("value", ["", ".", "..", "a.b.c", "a.1.\u00e9", "a" * 5000, "." * 50])
def test_a_broken_cookie_is_no_login(api: Api, value: str):
    headers = {"Cookie": f"{COOKIE}={value}".encode()}
    assert api("GET", "/models/x", key="", headers=headers).status_code == 302


def test_a_login_ends_with_its_key(api: Api, monkeypatch: pytest.MonkeyPatch):
    key, record = api.site.keys.create("visitor")
    _log_in(api, key)
    assert api("GET", "/models/x", key="").status_code == 404
    api.site.keys.revoke(record.id)
    api.site.keys._recent.clear()  # as after five seconds
    assert api("GET", "/models/x", key="").status_code == 302


def test_a_page_of_another_team_is_unknown(api: Api, shop: Shop):
    theirs = new_record(api.ledger, small_project("secret-plan", team="red"))
    write_job(api.ledger, theirs, state=JobState.CREATED)
    _add_revision(shop, "secret-model", theirs)
    _add_revision(shop, "no-job", None)
    _log_in(api, api.team_key("blue"))
    pairs = [
        (f"/training/{theirs.project_id}", "/training/0000000"),
        (_path(theirs), f"/training/{theirs.project_id}/logs/0000000"),
        (_path(theirs), f"/training/0000000/logs/{theirs.id}"),
        ("/models/secret-model", "/models/0000000"),
        ("/models/no-job", "/models/0000000"),
        ("/models/secret-model/logs/1", "/models/0000000/logs/1"),
    ]
    for paths in pairs:
        texts = [api("GET", path, key="") for path in paths]
        assert [one.status_code for one in texts] == [404, 404]
        names = f"{theirs.project_id}|{theirs.id}|0000000|secret-model|no-job"
        assert len({re.sub(names, "ID", one.text) for one in texts}) == 1
        assert "secret-plan" not in texts[0].text
    _log_in(api, api.team_key("red"))
    assert "secret-plan" in api("GET", _path(theirs), key="").text
    assert api("GET", "/models/secret-model", key="").status_code == 200


def test_every_page_has_the_headers(page: Any, api: Api, shop: Shop):
    record = shop.job("tiny", *ENDED)
    for path in ("/login", _path(record), "/training/tiny", "/models/x", "/training/x"):
        headers = api("GET", path, key="").headers
        assert headers["content-security-policy"].startswith("default-src 'none';")
        assert "frame-ancestors 'none'" in headers["content-security-policy"]
        assert headers["referrer-policy"] == "same-origin"
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cache-control"] == "no-store"


# -- a real browser ------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.integration
def test_a_person_follows_a_link(api: Api, shop: Shop):
    line = "<script>document.title='attacked'</script>"
    record = shop.job("tiny", *ENDED, compute=Compute(node_count=2))
    shop.ledger.begin_attempt(record.id)
    shop.log(record, [line])
    shop.checkpoint(record, "checkpoint-10", size=25_100_000, at=60)
    with browser() as page:
        page.open(f"{api.url}{_path(record)}")
        page.wait_for("document.querySelector('input[type=password]')")
        page.run("document.querySelector('input[type=password]').focus()")
        page.call("Input.insertText", text=api.key)
        page.run("document.querySelector('button').click()")
        page.wait_for("document.querySelector('pre') && document.readyState == 'complete'")
        shown = page.run("document.body.innerText")
        for part in (line, "TRAINING_JOB_COMPLETED", "checkpoint-10", "25.1 MB", "2 nodes"):
            assert part in shown
        assert page.run("document.title") == f"Job {record.id}"
        assert page.run("document.scripts.length + document.cookie.length") == 0
        assert page.run("getComputedStyle(document.querySelector('pre')).whiteSpace") == "pre-wrap"
        page.run("[...document.querySelectorAll('button')].at(-1).click()")
        page.wait_for("document.body.innerText.includes('You are logged out')")
        page.open(f"{api.url}{_path(record)}")
        page.wait_for("document.querySelector('input[type=password]')")
