"""Google's token service and its accounts, and a workload identity of this machine."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest


class Google:
    """`status` is what both answer, `token` what the accounts answer."""

    def __init__(self) -> None:
        self.status = 200
        self.token: Any = {"accessToken": "token-of-the-account", "expireTime": "2100-01-01"}
        self.asked: list[tuple[str, str, bytes]] = []
        """(path, Authorization, body)."""


@contextmanager
def serving_google(
    folder: Path, monkeypatch: pytest.MonkeyPatch, *, account: str
) -> Iterator[Google]:
    """Set an identity that may impersonate `account`, whose token is in `folder / "subject"`."""
    google = Google()

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: Any) -> None:
            pass

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            google.asked.append((self.path, self.headers.get("Authorization", ""), body))
            self.send_response(google.status)
            self.end_headers()
            is_exchange = self.path == "/token"
            answer = {"access_token": "federated-token"} if is_exchange else google.token
            self.wfile.write(json.dumps(answer).encode())

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}"
    (folder / "subject").write_text("planted.jwt.of-the-machine\n")
    known = {
        "type": "external_account",
        "token_url": f"{url}/token",
        "service_account_impersonation_url": f"{url}/accounts/{account}:generate",
        "credential_source": {"file": str(folder / "subject")},
    }
    (folder / "identity.json").write_text(json.dumps(known))
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(folder / "identity.json"))
    yield google
    server.shutdown()
    server.server_close()
