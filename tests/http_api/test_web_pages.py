"""What a web page of another origin can do in the browser of a person who is logged in: nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from prefect_bt.ledger.records import JobRecord
from prefect_bt.object_keys import job_prefix
from tests.browser import Page, browser
from tests.cli.conftest import RUNNING, Shop
from tests.http_api.served import Api

SECRET = "planted-1c7e"
ATTACK = """
(async (api, path, job, key) => {
  const found = {};
  const attempt = async (way, act) => {
    try { found[way] = String(await act()); } catch (error) { found[way] = `failed: ${error}`; }
  };
  const text = async (url, options) => (await fetch(api + url, options)).text();
  const form = (action, fields) => new Promise((resolve) => {
    const frame = document.createElement("iframe");
    frame.name = `frame${Math.random()}`;
    document.body.append(frame);
    const form = document.createElement("form");
    Object.assign(form, {method: "POST", action: api + action, target: frame.name});
    for (const [name, value] of Object.entries(fields)) {
      const field = document.createElement("input");
      Object.assign(field, {name, value});
      form.append(field);
    }
    document.body.append(form);
    frame.addEventListener("load", () => resolve("sent"));
    form.submit();
  });
  const post = {method: "POST", credentials: "include"};
  await attempt("page", () => text(path, {credentials: "include"}));
  await attempt("blind", () => text(path, {credentials: "include", mode: "no-cors"}));
  await attempt("job", () => text(job, {credentials: "include"}));
  await attempt("stop", () => text(`${job}/stop`, {...post, mode: "no-cors"}));
  await attempt("stop-json", () => text(`${job}/stop`, {...post, body: "{}",
    headers: {"Content-Type": "application/json", "Authorization": "Api-Key guessed"}}));
  await attempt("stop-form", () => form(`${job}/stop`, {}));
  await attempt("delete", () => text(job, {method: "DELETE", credentials: "include"}));
  await attempt("frame", () => new Promise((resolve) => {
    const frame = document.createElement("iframe");
    frame.onload = () => {
      try { resolve(frame.contentDocument.body.innerText); } catch { resolve("closed"); }
    };
    frame.src = api + path;
    document.body.append(frame);
  }));
  await attempt("login", () => text("/login", {...post, mode: "no-cors",
    body: new URLSearchParams({key})}));
  await attempt("login-form", () => form("/login", {key}));
  await attempt("logout", () => text("/logout", {...post, mode: "no-cors"}));
  await attempt("logout-form", () => form("/logout", {}));
  return found;
})
"""


@pytest.fixture
def foreign(tmp_path: Path) -> Iterator[int]:
    """Serve an empty page on another port of this machine; yield the port."""
    folder = tmp_path / "pages"
    folder.mkdir()
    (folder / "index.html").write_text("<!doctype html><title>attack</title>")
    handler = partial(SimpleHTTPRequestHandler, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield server.server_address[1]
        server.shutdown()
        thread.join()


def _path(record: JobRecord) -> str:
    return f"/training/{record.project_id}/logs/{record.id}"


def _log_in(page: Page, api: Api, path: str) -> None:
    page.open(f"{api.url}{path}")
    page.run("document.querySelector('input[type=password]').focus()")
    page.call("Input.insertText", text=api.key)
    page.run("document.querySelector('button').click()")


@pytest.mark.slow
@pytest.mark.integration
def test_a_page_of_another_origin_reads_and_changes_nothing(
    api: Api, shop: Shop, foreign: int
) -> None:
    record = shop.job("tiny", *RUNNING, name=SECRET)
    path, job = _path(record), f"/v1/training_projects/{record.project_id}/jobs/{record.id}"
    key, port = api.team_key("attacker"), api.url.rpartition(":")[2]
    rebound = f"http://rebound.test:{port}"
    origins = {
        "another port": (f"http://127.0.0.1:{foreign}/", api.url),
        "another site": (f"http://page.test:{foreign}/", api.url),
        # The name of the attacker's own server, which is 127.0.0.1 since its page was loaded.
        "a name pointed here": (f"{rebound}/health", rebound),
    }
    folder = job_prefix(record.project_id, record.id)
    with browser() as page:
        _log_in(page, api, path)
        page.wait_for("document.querySelector('pre')")
        before = [info.key for info in shop.ledger.store.list(folder)]
        for name, (origin, target) in origins.items():
            page.open(origin)
            arguments = ", ".join(json.dumps(one) for one in (target, path, job, key))
            found = page.run(f"{ATTACK}({arguments})")
            assert SECRET not in json.dumps(found), (name, found)
            assert [info.key for info in shop.ledger.store.list(folder)] == before, name
            page.open(f"{api.url}{path}")
            assert SECRET in page.run("document.body.innerText"), f"{name} changed the login"
        # The same requests of a page of ours show that the attacks are real.
        page.open(f"{api.url}/health")
        arguments = ", ".join(json.dumps(one) for one in (api.url, path, job, key))
        found = page.run(f"{ATTACK}({arguments})")
        assert SECRET in found["page"]
        page.open(f"{api.url}{path}")
        page.wait_for("document.querySelector('input[type=password]')")


@pytest.mark.slow
@pytest.mark.integration
def test_a_login_leads_to_the_page_in_prefect_s_ui(api: Api, shop: Shop, foreign: int) -> None:
    record = shop.job("tiny", *RUNNING)
    shop.ledger.runs.bind("run-1", record.id, url=f"http://page.test:{foreign}/index.html")
    with browser() as page:
        _log_in(page, api, _path(record))
        page.wait_for("document.title == 'attack'")


@pytest.mark.parametrize("path", ["/login", "/logout"])
@pytest.mark.parametrize(
    ("headers", "is_own"),
    [
        ({}, True),
        ({"Sec-Fetch-Site": "same-origin", "Origin": "null"}, False),
        ({"Sec-Fetch-Site": "same-origin"}, True),
        ({"Sec-Fetch-Site": "none"}, True),
        ({"Sec-Fetch-Site": "same-site"}, False),
        ({"Sec-Fetch-Site": "cross-site"}, False),
        ({"Origin": "null"}, False),
        ({"Origin": "http://evil.example"}, False),
        ({"Origin": "http://localhost.evil.example"}, False),
        ({"Origin": "https://{host}"}, True),
        ({"Origin": "http://{host}"}, True),
        ({"Origin": "http://{host}", "Sec-Fetch-Site": "cross-site"}, False),
    ],
)
def test_a_form_of_another_origin_is_refused(
    path: str, headers: dict[str, str], is_own: bool, api: Api
) -> None:
    host = api.url.removeprefix("http://")
    headers = {name: value.format(host=host) for name, value in headers.items()}
    answer = api("POST", path, key="", data={"key": api.key}, headers=headers)
    assert answer.status_code == (200 if is_own else 403)
    assert ("set-cookie" in answer.headers) == is_own
    assert answer.headers["content-type"].startswith("text/html")


@pytest.mark.parametrize("host", ["rebound.test", "evil.example:80", ""])
def test_a_foreign_host_needs_the_key_too(api: Api, host: str) -> None:
    for path in ("/v1/teams", "/v1/training_projects", "/prefect-bt/v1/overview"):
        assert api("GET", path, key="", headers={"Host": host}).status_code == 401
