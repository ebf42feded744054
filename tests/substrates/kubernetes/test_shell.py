"""The stream of a shell in a pod, with a real WebSocket server in the place of the API server."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from websockets.sync.server import Server, ServerConnection, serve

PROGRAM = """
import sys
from types import SimpleNamespace as Some
from prefect_bt.host.terminal import ShellRequest
from prefect_bt.substrates.kubernetes.shell import run_shell
from kubernetes.client import Configuration
configuration = Configuration()
configuration.host = sys.argv[1]
pods = {"items": [{"metadata": {"name": f"prefect-bt-abc1234-0-{n}-x"}} for n in (0, 1)]}
job = Some(
    name="prefect-bt-abc1234-0", list_pods=lambda: pods, client=Some(configuration=configuration)
)
handle = Some(rank=1, gang=Some(job=job, record=Some(namespace="training")))
sys.exit(run_shell(handle, ShellRequest(tuple(sys.argv[2:]))))
"""


def result(code: int) -> bytes:
    """Return the last message of the API server about a command."""
    if code == 0:
        return json.dumps({"status": "Success"}).encode()
    causes = [{"reason": "ExitCode", "message": str(code)}]
    return json.dumps({"status": "Failure", "details": {"causes": causes}}).encode()


class Pods:
    """Runs each command on this machine, as the kubelet does in the container."""

    def __init__(self) -> None:
        self.paths: list[str] = []

    def handle(self, connection: ServerConnection) -> None:
        assert connection.request is not None
        path = connection.request.path
        self.paths.append(path)
        command = parse_qs(urlsplit(path).query)["command"]
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        copies = [
            threading.Thread(target=self._copy, args=(connection, number, stream))
            for number, stream in ((1, process.stdout), (2, process.stderr))
        ]
        for copy in copies:
            copy.start()
        assert process.stdin is not None
        for message in connection:
            assert isinstance(message, bytes)
            if message[0] == 0:
                process.stdin.write(message[1:])
            elif message == b"\xff\x00":
                process.stdin.close()
                break
        for copy in copies:
            copy.join()
        connection.send(b"\3" + result(process.wait()))

    def _copy(self, connection: ServerConnection, number: int, stream: Any) -> None:
        while data := os.read(stream.fileno(), 65536):
            connection.send(bytes([number]) + data)


@pytest.fixture
def pods() -> Iterator[tuple[Pods, Server]]:
    made = Pods()
    names: Any = ["v5.channel.k8s.io"]
    with serve(made.handle, "127.0.0.1", 0, subprotocols=names) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield made, server
        server.shutdown()
        thread.join()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "typed", "shown", "aside", "code"),
    [
        (("cat",), "hi\n", "hi\n", "", 0),
        (("sh", "-c", "echo a b; echo aside >&2; exit 7"), "", "a b\n", "aside\n", 7),
        ((), "exit 3\n", "", "", 3),
    ],
)
def test_streams_and_exit_codes_are_those_of_the_command(
    pods: tuple[Pods, Server],
    command: tuple[str, ...],
    typed: str,
    shown: str,
    aside: str,
    code: int,
) -> None:
    made, server = pods
    address = f"http://127.0.0.1:{server.socket.getsockname()[1]}"
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, address, *command],
        input=typed,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.stdout, done.stderr, done.returncode) == (shown, aside, code)
    address, query = made.paths[0].split("?")
    assert address == "/api/v1/namespaces/training/pods/prefect-bt-abc1234-0-1-x/exec"
    assert parse_qs(query)["container"] == ["commands"] and "tty" not in parse_qs(query)
