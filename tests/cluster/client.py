"""A client of the API for the cluster's own tests."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import httpx

from .api_server import ADMIN, ApiServer
from .resources import Obj

MERGE = "application/merge-patch+json"


class Client:
    """Sends requests as a user."""

    def __init__(self, server: ApiServer, user: str = ADMIN, token: str = "") -> None:
        login = {"Authorization": f"Bearer {token or server.token(user)}"}
        self._http = httpx.Client(base_url=server.address, headers=login, timeout=300)

    def call(self, verb: str, path: str, body: Any = None, kind: str = "") -> tuple[int, Any]:
        """Return the code and the body of the answer, also those of an error."""
        content = {"Content-Type": kind or "application/json"}
        answer = self._http.request(verb, path, json=body, headers=content)
        return answer.status_code, answer.json()

    def get(self, path: str) -> Any:
        code, answer = self.call("GET", path)
        assert code == 200, answer
        return answer

    def watch(self, path: str) -> Iterator[Obj]:
        """Yield events until the server ends the watch."""
        with self._http.stream("GET", path) as answer:
            for line in answer.iter_lines():
                yield json.loads(line)


class Recorder:
    """Collects the events of a watch in a thread, until the server ends it."""

    def __init__(self, client: Client, path: str) -> None:
        self.events: list[Obj] = []
        self._lines = client.watch(path)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        with suppress(httpx.TransportError):  # the server has closed the connection
            for event in self._lines:
                self.events.append(event)

    @property
    def over(self) -> bool:
        return not self._thread.is_alive()
