"""Uploads to a server in a process of its own: its memory, and its sudden end."""

from __future__ import annotations

import http.client
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import boto3
import pytest
from boto3.s3.transfer import TransferConfig

from prefect_bt.http_api.keys import ApiKeys
from prefect_bt.http_api.server import Listen, _open_sockets
from prefect_bt.http_api.uploads.staging import Uploads
from prefect_bt.ledger.open_ledger import open_ledger
from tests.cli.conftest import RUNNING, Shop
from tests.node_agent.rig import wait_until
from tests.ports import free_port

MIB = 1024 * 1024


@contextmanager
def served(folder: Path) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """The process and the URL; the file `errors` has what it writes to stderr."""
    port = free_port()
    environment = {
        **os.environ,
        "PREFECT_BT_STORE": str(folder / "store"),
        "PREFECT_BT_STATE_DIR": str(folder / "state"),
    }
    command = [sys.executable, "-m", "prefect_bt.http_api", "127.0.0.1", str(port)]
    with (folder / "errors").open("wb") as errors:
        process = subprocess.Popen(command, env=environment, stderr=errors)

    def answers() -> bool:
        assert process.poll() is None
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        try:
            connection.request("GET", "/")
            return connection.getresponse().status == 404
        except OSError:
            return False

    try:
        wait_until(answers)
        yield process, f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


def resident_bytes(process: subprocess.Popen[bytes]) -> int:
    status = Path(f"/proc/{process.pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024


@pytest.mark.slow
def test_large_upload_takes_little_memory_of_the_server(tmp_path: Path) -> None:
    file = tmp_path / "large"
    with file.open("wb") as stream:
        for _ in range(300):
            stream.write(os.urandom(1000) * 1000)
            stream.write(bytes(48576))
    key_id = ApiKeys(open_ledger(str(tmp_path / "store")).store).create("k")[1].id
    uploads = Uploads(tmp_path / "state")
    with served(tmp_path) as (process, url):
        upload_id, token = uploads.issue(key_id)
        before = resident_bytes(process)
        client = boto3.client(
            "s3",
            aws_access_key_id=upload_id,
            aws_secret_access_key="s",
            aws_session_token=token,
            endpoint_url=f"{url}/uploads",
            region_name="us-east-1",
        )
        key = f"{upload_id}/workspace.tgz"
        client.upload_file(str(file), "uploads", key, Config=TransferConfig(max_concurrency=10))
        assert resident_bytes(process) - before < 100 * MIB
    with uploads.take("uploads", key, key_id) as path:
        assert subprocess.run(["cmp", path, file], check=False).returncode == 0


@pytest.mark.slow
def test_server_killed_in_an_upload_accepts_nothing_of_it(tmp_path: Path) -> None:
    key_id = ApiKeys(open_ledger(str(tmp_path / "store")).store).create("k")[1].id
    uploads = Uploads(tmp_path / "state")
    with served(tmp_path) as (process, url):
        upload_id, token = uploads.issue(key_id)
        folder = uploads.open(upload_id)
        body = os.urandom(1000) * 8000

        class Killing:
            """A body, in the middle of which the server is killed."""

            def __init__(self) -> None:
                self.sent = 0

            def __len__(self) -> int:
                return len(body)

            def read(self, size: int = -1) -> bytes:
                if self.sent >= len(body) // 2 and process.poll() is None:
                    wait_until(lambda: list(folder.glob("*.tmp")))
                    os.kill(process.pid, signal.SIGKILL)
                    process.wait()
                part = body[self.sent : self.sent + 65536] if size else b""
                self.sent += len(part)
                return part

        connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=60)
        with pytest.raises(OSError):
            connection.request(
                "PUT",
                f"/uploads/uploads/{upload_id}/workspace.tgz",
                Killing(),
                {
                    "Content-Length": str(len(body)),
                    "Authorization": f"AWS4-HMAC-SHA256 Credential={upload_id}/x",
                    "X-Amz-Security-Token": token,
                },
            )
            connection.getresponse()
    assert not (folder / "workspace.tgz").exists()


@pytest.mark.slow
def test_server_ends_at_once_while_a_client_follows_a_log(tmp_path: Path) -> None:
    shop = Shop(str(tmp_path / "store"))
    record, (key, _) = shop.job("tiny", *RUNNING), ApiKeys(shop.ledger.store).create("k")
    with served(tmp_path) as (process, url):
        connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=60)
        path = f"/prefect-bt/v1/jobs/{record.id}/lines?follow=true"
        connection.request("GET", path, headers={"Authorization": f"Bearer {key}"})
        answer = connection.getresponse()
        assert b"Job accepted." in answer.readline()
        process.terminate()
        assert b"is_last" not in answer.read()
        process.wait()
    assert (tmp_path / "errors").read_text() == ""


def test_a_connection_sends_small_answers_at_once() -> None:
    """Each answer on an open connection would wait 40 ms for the client's acknowledgement."""
    for listening in _open_sockets(Listen(port=free_port())):
        with listening, socket.create_connection(listening.getsockname()[:2]):
            accepted, _ = listening.accept()
            with accepted:
                assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
