"""Run a command in the pod of a node, as `kubectl exec` does."""

from __future__ import annotations

import json
import ssl
import sys
from http import HTTPStatus
from importlib import import_module
from typing import Any, Final
from urllib.parse import urlencode

from prefect_bt.host.nodes.container_shell import build_shell_command
from prefect_bt.host.terminal import ShellRequest, has_terminal, relay
from prefect_bt.ledger.records import Cause
from prefect_bt.substrates.kubernetes.client import ClusterError
from prefect_bt.substrates.kubernetes.names import COMMANDS
from prefect_bt.substrates.kubernetes.node_handle import KubernetesNodeHandle

_CLOSES_INPUT: Final = "v5.channel.k8s.io"
_PROTOCOLS: Final = f"{_CLOSES_INPUT},v4.channel.k8s.io"
_STDIN, _STDOUT, _STDERR, _RESULT, _RESIZE, _CLOSE = 0, 1, 2, 3, 4, 255
_NO_END: Final = (
    "The API server is older than 1.30 and cannot pass on the end of the input: if the command "
    "waits for it, press Ctrl-C."
)


def run_shell(handle: KubernetesNodeHandle, request: ShellRequest) -> int:
    """Run the request with this process's terminal; return the exit code. ClusterError."""
    interactive = has_terminal()
    program = _Execution(_connect(handle, build_shell_command(request), interactive))
    relay(program, interactive=interactive)
    return program.exit_code


class _Execution:
    """A RemoteProgram: a WebSocket whose messages begin with the number of a stream."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._result: Any = {}

    @property
    def exit_code(self) -> int:
        """Return the exit code; 137 if the connection ended before the command."""
        if self._result.get("status") == "Success":
            return 0
        details: Any = self._result.get("details") or {}
        causes: list[Any] = details.get("causes") or []
        codes = [str(one["message"]) for one in causes if one.get("reason") == "ExitCode"]
        if not codes and self._result.get("message"):
            sys.stderr.write(f"{self._result['message']}\n")
        return int(codes[0]) if codes else 137

    def fileno(self) -> int:
        return int(self._connection.sock.fileno())

    def read(self) -> list[tuple[int, bytes]] | None:
        errors: Any = import_module("websocket")
        found: list[tuple[int, bytes]] = []
        while True:
            try:
                opcode, frame = self._connection.recv_data_frame(True)
            except (errors.WebSocketException, OSError):
                return found or None
            if opcode == errors.ABNF.OPCODE_CLOSE:
                return found or None
            if opcode in {errors.ABNF.OPCODE_BINARY, errors.ABNF.OPCODE_TEXT} and frame.data:
                stream, data = frame.data[0], frame.data[1:]
                if stream == _RESULT:
                    self._result = json.loads(data)
                elif stream in {_STDOUT, _STDERR} and data:
                    found.append((stream, data))
            if not self.has_unread():
                return found

    def has_unread(self) -> bool:
        connection = self._connection.sock
        return isinstance(connection, ssl.SSLSocket) and connection.pending() > 0

    def write(self, data: bytes) -> None:
        self._connection.send_binary(bytes([_STDIN]) + data)

    def close_input(self) -> None:
        if self._connection.headers.get("sec-websocket-protocol") == _CLOSES_INPUT:
            self._connection.send_binary(bytes([_CLOSE, _STDIN]))
        else:
            sys.stderr.write(f"{_NO_END}\n")

    def resize(self, rows: int, columns: int) -> None:
        size = json.dumps({"Width": columns, "Height": rows}).encode()
        self._connection.send_binary(bytes([_RESIZE]) + size)


def _connect(handle: KubernetesNodeHandle, command: list[str], interactive: bool) -> Any:
    """Return the connection. ClusterError."""
    gang, rank = handle.gang, handle.rank
    action = f"open a shell in rank {rank}"
    pod = _find_pod(handle)
    configuration: Any = gang.job.client.configuration
    streams = {"stdin": "1", "stdout": "1"} | ({"tty": "1"} if interactive else {"stderr": "1"})
    query = [("container", COMMANDS), *streams.items(), *(("command", word) for word in command)]
    host = configuration.host.rstrip("/").replace("http", "ws", 1)
    url = f"{host}/api/v1/namespaces/{gang.record.namespace}/pods/{pod}/exec?{urlencode(query)}"
    headers = {"sec-websocket-protocol": _PROTOCOLS}
    if token := configuration.get_api_key_with_prefix("BearerToken", "authorization"):
        headers["authorization"] = token
    sockets: Any = import_module("websocket")
    create: Any = import_module("kubernetes.stream.ws_client").create_websocket
    try:
        return create(configuration, url, headers)
    except (sockets.WebSocketException, OSError) as error:
        status = int(getattr(error, "status_code", 0) or 0)
        forbidden = status == HTTPStatus.FORBIDDEN
        raise ClusterError(
            f"Kubernetes did not {action}: {error}.",
            status=status,
            next_step="Your user needs the verbs get and create on pods/exec "
            "(deployments/kubernetes/shell-rbac.yaml)."
            if forbidden
            else "Check that `kubectl exec` works with the same kubeconfig.",
            cause=Cause.FORBIDDEN if forbidden else Cause.LAUNCH_FAILED,
        ) from error


def _find_pod(handle: KubernetesNodeHandle) -> str:
    prefix = f"{handle.gang.job.name}-{handle.rank}-"
    pods: Any = handle.gang.job.list_pods()["items"]
    names = [str(pod["metadata"]["name"]) for pod in pods]
    for name in names:
        if name.startswith(prefix):
            return name
    raise ClusterError(
        f"Rank {handle.rank} has no pod.",
        next_step=f"See: kubectl -n {handle.gang.record.namespace} get pods",
        cause=Cause.LAUNCH_FAILED,
    )
