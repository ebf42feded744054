"""A client of the API for the cluster's own tests."""

from __future__ import annotations

import json
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

from .api_server import ADMIN, ApiServer
from .resources import Obj

MERGE = "application/merge-patch+json"


class Client:
    """Sends requests as a user."""

    def __init__(self, server: ApiServer, user: str = ADMIN, token: str = "") -> None:
        self._server = server
        self._token = token or server.token(user)

    def call(self, verb: str, path: str, body: Any = None, kind: str = "") -> tuple[int, Any]:
        """Return the code and the body of the answer, also those of an error."""
        with self._open(verb, path, body, kind or "application/json") as answer:
            data = answer.read()
        as_json = "json" in answer.headers.get("Content-Type", "")
        return answer.status, json.loads(data) if as_json else data.decode()

    def get(self, path: str) -> Any:
        code, answer = self.call("GET", path)
        assert code == 200, answer
        return answer

    def watch(self, path: str) -> Iterator[Obj]:
        """Yield events until the server ends the watch."""
        with self._open("GET", path, None, "application/json") as answer:
            for line in answer:
                yield json.loads(line)

    def _open(self, verb: str, path: str, body: Any, kind: str) -> Any:
        request = urllib.request.Request(
            self._server.address + path,
            method=verb,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Authorization": f"Bearer {self._token}", "Content-Type": kind},
        )
        try:
            return urllib.request.urlopen(request, timeout=300)
        except urllib.error.HTTPError as error:
            return error


class Recorder:
    """Collects the events of a watch in a thread, until the server ends it."""

    def __init__(self, client: Client, path: str) -> None:
        self.events: list[Obj] = []
        self._lines = client.watch(path)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            for event in self._lines:
                self.events.append(event)
        except OSError:
            self.events.append({"type": "CUT", "object": {}})

    @property
    def over(self) -> bool:
        return not self._thread.is_alive()
