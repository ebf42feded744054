"""A server of the HTTP API in a thread of the test's process, on a store of its own."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import uvicorn

from prefect_bt.http_api.access import ApiSite
from prefect_bt.http_api.app import create_app, open_site
from prefect_bt.ledger.ledger import Ledger


@dataclass(frozen=True)
class Api:
    """A running server and a key of all teams."""

    url: str
    key: str
    site: ApiSite
    client: httpx.Client

    @property
    def ledger(self) -> Ledger:
        return self.site.ledger

    def __call__(
        self, method: str, path: str, *, key: str | None = None, **options: Any
    ) -> httpx.Response:
        """Send a request with the key, or with another one; "" sends none."""
        chosen = self.key if key is None else key
        headers = {**options.pop("headers", {})}
        if chosen:
            headers["Authorization"] = f"Api-Key {chosen}"
        return self.client.request(method, path, headers=headers, **options)

    def get(self, path: str, **options: Any) -> Any:
        """Return the JSON of a GET that succeeds."""
        return self._ok("GET", path, **options)

    def post(self, path: str, json: Any, **options: Any) -> Any:
        """Return the JSON of a POST that succeeds."""
        return self._ok("POST", path, json=json, **options)

    def _ok(self, method: str, path: str, **options: Any) -> Any:
        answer = self(method, path, **options)
        assert answer.status_code == 200, (answer.status_code, answer.text)
        return answer.json()

    def team_key(self, team: str) -> str:
        return self.site.keys.create(f"key of {team}", team=team)[0]


@contextmanager
def serving(site: ApiSite) -> Generator[str]:
    """Serve the site in a thread; yield its URL."""
    config = uvicorn.Config(
        create_app(site), http="h11", log_level="warning", access_log=False, lifespan="off"
    )
    server = uvicorn.Server(config)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            while not server.started:
                assert thread.is_alive()
                time.sleep(0.005)
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()


@contextmanager
def serving_api() -> Generator[Api]:
    """Serve the store of the settings in this environment."""
    site = open_site()
    key, _ = site.keys.create("tester")
    with serving(site) as url, httpx.Client(base_url=url, timeout=60, trust_env=False) as client:
        yield Api(url, key, site, client)
