"""The real API server, in a thread of the test's process."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prefect_bt.http_api.access import ApiSite
from prefect_bt.http_api.keys import ApiKeys
from prefect_bt.http_api.uploads.staging import Uploads
from prefect_bt.ledger.open_ledger import open_ledger
from prefect_bt.settings import Settings
from tests.http_api.served import serving


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
    with serving(site) as url:
        yield RunningApi(url, keys.create("tests")[0], site)
