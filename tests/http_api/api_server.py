"""The real API server, in a thread of the test's process."""

from __future__ import annotations

import json
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvicorn

from prefect_bt.http_api.access import ApiSite
from prefect_bt.http_api.app import create_app
from prefect_bt.http_api.keys import ApiKeys
from prefect_bt.http_api.uploads.staging import Uploads
from prefect_bt.ledger.open_ledger import open_ledger
from prefect_bt.settings import Settings


@dataclass(frozen=True)
class RunningApi:
    """A server at `url`; `key` is one of all teams."""

    url: str
    key: str
    site: ApiSite

    @property
    def host(self) -> str:
        return self.url.removeprefix("http://")

    def get(self, path: str, *, key: str = "") -> Any:
        """The JSON answer; HTTPError for a status from 400 on."""
        header = {"Authorization": f"Api-Key {key or self.key}"}
        request = urllib.request.Request(f"{self.url}{path}", headers=header)
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)


@contextmanager
def running_api(folder: Path, *, store: str = "", **upload_options: Any) -> Iterator[RunningApi]:
    """Serve a store below `folder`, or at the URL `store`."""
    settings = Settings(store=store or str(folder / "store"), state_dir=folder / "state")
    ledger = open_ledger(settings.store)
    keys = ApiKeys(ledger.store)
    site = ApiSite(ledger, settings, keys, Uploads(settings.state_dir, **upload_options))
    config = uvicorn.Config(
        create_app(site), port=0, http="h11", access_log=False, log_level="warning"
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        assert thread.is_alive()
        time.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield RunningApi(f"http://127.0.0.1:{port}", keys.create("tests")[0], site)
    finally:
        server.should_exit = True
        thread.join(30)
