"""Real servers and a real router, with clients that speak HTTP/1.1 to them."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from prefect_bt.serving.router.deployment_folder import RouterFolder
from prefect_bt.serving.router.process import (
    RouterStatus,
    ensure_router,
    query_router_status,
    stop_router,
)
from prefect_bt.serving.router.route import Route
from tests.ports import free_port

SERVER = Path(__file__).with_name("upstream.py")
LONG = 180.0
"""Seconds after which something that should happen soon is not going to."""


class Upstream:
    """A server of one revision, on a port that it has again when it is started again."""

    def __init__(self, revision: int) -> None:
        self.revision, self.port = revision, free_port()
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def route(self) -> Route:
        return Route(self.revision, self.address, (f"checkpoint-{self.revision}",))

    def release(self) -> None:
        """Streams that are held go on."""
        assert Client(self.address).ask("/release").status == 200

    def start(self, *, wait: bool = True) -> None:
        command = [sys.executable, str(SERVER), str(self.port), str(self.revision)]
        self.process = subprocess.Popen(command)
        if wait:
            until(lambda: listens(self.port))

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def code(self) -> str:
        return self.json["error"]["code"]


class Client:
    """One kept connection. Not for two threads at once."""

    def __init__(self, address: str) -> None:
        parts = urlsplit(address)
        self.connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=LONG)

    def ask(self, path: str, body: Any = None, *, method: str = "", **headers: str) -> Answer:
        answer = self.begin(path, body, method=method, **headers)
        return Answer(answer.status, dict(answer.getheaders()), answer.read())

    def begin(self, path: str, body: Any = None, *, method: str = "", **headers: str):
        """As `ask`, with the body left to be read."""
        method = method or ("GET" if body is None else "POST")
        sent = json.dumps(body).encode() if isinstance(body, dict) else body
        self.connection.request(method, path, sent, headers)
        return self.connection.getresponse()

    def chat(self, **body: Any) -> Answer:
        return self.ask("/v1/chat/completions", {"say": "hello", **body})

    def hold(self):
        """A stream of 10 tokens that stops after the first one, until `release`."""
        ask = {"say": "", "stream": True, "tokens": 10, "hold": True}
        answer = self.begin("/v1/chat/completions", ask)
        assert b'"token": 0' in answer.readline()
        return answer

    def close(self) -> None:
        self.connection.close()


@dataclass
class Deployment:
    """A router's folder and its process."""

    state_dir: Path
    name: str = "-my/model"
    patience: float = LONG

    @property
    def place(self) -> RouterFolder:
        return RouterFolder.for_deployment(self.state_dir, self.name)

    def ensure(self, **options: Any) -> str:
        given: dict[str, Any] = {
            "environment": os.environ,
            "wait_timeout": self.patience,
            **options,
        }
        return ensure_router(self.state_dir, self.name, **given)

    def client(self) -> Client:
        return Client(self.place.read_listen_address().address)

    def status(self) -> RouterStatus:
        status = query_router_status(self.state_dir, self.name, timeout=LONG)
        assert status is not None
        return status

    def kill(self) -> None:
        daemon = self.place.read_process()
        os.kill(daemon.pid, signal.SIGKILL)
        until(lambda: not daemon.is_alive)

    def stop(self) -> bool:
        return stop_router(self.state_dir, self.name, grace=1.0)


@dataclass
class Load:
    """Clients that ask without a pause, half of them for streams."""

    deployment: Deployment
    clients: int = 4
    done: list[tuple[float, str]] = field(default_factory=list)
    """When each request began, and what was wrong with it ("" for nothing)."""

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        ending = threading.Event()
        threads = [
            threading.Thread(target=self._ask, args=(ending, bool(number % 2)), daemon=True)
            for number in range(self.clients)
        ]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            ending.set()
            for thread in threads:
                thread.join(LONG)

    def _ask(self, ending: threading.Event, stream: bool) -> None:
        client = self.deployment.client()
        while not ending.is_set():
            began, fault = time.monotonic(), ""
            try:
                fault = find_fault(client.chat(stream=stream, tokens=4), stream=stream)
            except (OSError, http.client.HTTPException, ValueError) as error:
                fault = repr(error)
            if fault:
                client.close()
            self.done.append((began, fault))
        client.close()


def find_fault(answer: Answer, *, stream: bool) -> str:
    """With an answer that must be whole and from one revision."""
    if answer.status != 200:
        return f"{answer.status} {answer.body.decode()}"
    by = answer.headers["X-Prefect-Bt-Revision"]
    if not stream:
        return "" if answer.json == {"revision": by, "said": "hello"} else answer.body.decode()
    events = answer.body.decode().split("\n\n")
    told = [f'data: {{"revision": "{by}", "token": {n}}}' for n in range(4)]
    return "" if events == [*told, "data: [DONE]", ""] else answer.body.decode()


def listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


def until(holds, what: str = "that never came true") -> None:
    deadline = time.monotonic() + LONG
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)
