"""A real headless browser, driven over its DevTools protocol (`make browser`)."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from websockets.sync.client import ClientConnection, connect

PATIENCE = float(os.environ.get("TEST_PATIENCE", "300"))
NAMES = ("chromium", "chromium-browser", "google-chrome")


class Page:
    """One tab."""

    def __init__(self, connection: ClientConnection) -> None:
        self._connection, self._number = connection, 0
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = str(attached["sessionId"])
        self.call("Page.enable")

    _session = ""

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        self._connection.send(json.dumps(message))
        while True:
            answer = json.loads(self._connection.recv(PATIENCE))
            if answer.get("id") == self._number:
                assert "error" not in answer, (method, answer)
                return answer["result"]

    def open(self, url: str) -> None:
        """Go to `url` and wait until it is loaded, whatever its status."""
        self.call("Page.navigate", url=url)
        self.wait_for("location.href != 'about:blank' && document.readyState == 'complete'")

    def run(self, script: str) -> Any:
        """Return the value of an expression in the page, awaited if it is a promise."""
        given = {"expression": script, "awaitPromise": True, "returnByValue": True}
        result = self.call("Runtime.evaluate", **given)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def open_app(self, url: str, condition: str) -> None:
        """Go to `url` until the condition holds; load it again where nothing at all is shown."""
        for _ in range(3):
            self.open(url)
            blank_until = time.monotonic() + PATIENCE / 5
            while time.monotonic() < blank_until:
                if self.run("document.body?.innerText.trim()"):
                    return self.wait_for(condition)
                time.sleep(0.1)
        return self.wait_for(condition)

    def wait_for(self, condition: str) -> None:
        """Wait until a condition holds. A document that is being loaded may lack all it reads."""
        deadline = time.monotonic() + PATIENCE
        attempt = f"(() => {{ try {{ return Boolean({condition}) }} catch {{ return false }} }})()"
        while not self.run(attempt):
            if time.monotonic() > deadline:
                shown = self.run("document.body?.innerText")
                raise AssertionError(f"never {condition}; the page shows: {shown}")
            time.sleep(0.1)


@contextmanager
def browser(*options: str) -> Generator[Page]:
    """Start a browser, or skip without one. Every name that ends in .test is this machine."""
    program = next(filter(None, map(shutil.which, NAMES)), None)
    if program is None:
        pytest.skip("no Chromium: make browser")
    folder = tempfile.mkdtemp(prefix="browser-")
    rules = "--host-resolver-rules=MAP *.test 127.0.0.1"
    quiet = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", rules]
    where = [f"--user-data-dir={folder}", "--remote-debugging-port=0", "about:blank"]
    with Path(folder, "log").open("wb") as log:
        process = subprocess.Popen([program, *quiet, *options, *where], stdout=log, stderr=log)
    try:
        with connect(_address(process, Path(folder)), max_size=None) as connection:
            yield Page(connection)
    finally:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(30)
        process.kill()
        process.wait()
        shutil.rmtree(folder, ignore_errors=True)


def _address(process: subprocess.Popen[bytes], folder: Path) -> str:
    """Return the address of the browser's DevTools."""
    deadline = time.monotonic() + PATIENCE
    while process.poll() is None and time.monotonic() < deadline:
        with suppress(OSError, ValueError):
            port, path = (folder / "DevToolsActivePort").read_text().splitlines()
            return f"ws://127.0.0.1:{port}{path}"
        time.sleep(0.05)
    raise AssertionError((folder / "log").read_text(errors="replace")[-2000:])
