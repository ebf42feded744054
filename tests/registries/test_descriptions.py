"""Descriptions of images that a pull cannot use, from a server that answers as an Engine."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import docker
import pytest

from prefect_bt.errors import ImageError
from prefect_bt.registries.pull import pull_image


class _Engine(BaseHTTPRequestHandler):
    description: dict[str, Any]

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        known = "/distribution/" in self.path
        body = json.dumps(self.description if known else {"message": "No such image"}).encode()
        self.send_response(200 if known else 404)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture
def engine() -> Iterator[docker.APIClient]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Engine) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        api = docker.APIClient(f"tcp://127.0.0.1:{server.server_port}", version="1.41")
        yield api
        api.close()
        server.shutdown()


@pytest.mark.parametrize("description", [{}, {"Descriptor": None}, {"Descriptor": {"digest": ""}}])
def test_no_digest(
    engine: docker.APIClient, description: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_Engine, "description", description, raising=False)
    with pytest.raises(ImageError, match=r"registry\.example did not provide a digest") as caught:
        pull_image(engine, "registry.example/team/image:1")
    assert caught.value.fault == "failed"
