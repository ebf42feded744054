"""Run a command in the container of a node, as `docker exec` does.

The connection is opened here: the SDK's client loses the first output if it arrives with the
headers of the answer.
"""

from __future__ import annotations

import json
import socket
import struct
import time
from contextlib import suppress
from typing import Any, Final
from urllib.parse import urlsplit

from prefect_bt.errors import SubstrateError
from prefect_bt.host.nodes.container_pipes import ContainerRecord
from prefect_bt.host.nodes.container_shell import build_shell_command
from prefect_bt.host.nodes.files import read_record
from prefect_bt.host.terminal import ShellRequest, has_terminal, relay, terminal_variables
from prefect_bt.substrates.docker.engine import SUBSTRATE_NAME, DockerEngine
from prefect_bt.substrates.docker.node_handle import DockerNodeHandle

_NO_DETACH: Final = "ctrl-_,ctrl-^,ctrl-],ctrl-^"
"""Keys that leave the shell running: a sequence that no user types, instead of Ctrl-P."""
_FRAME_HEADER: Final = struct.Struct(">BxxxI")
_CHUNK: Final = 65536
_RESIZE_PAUSES: Final = (0.0, 0.01, 0.02, 0.05, 0.1, 0.2)
"""Seconds before each try to set the size: the Engine refuses it before the command has started,
and once it has ended."""
_SWITCHED: Final = (b" 101 ", b" 200 ")


def run_shell(handle: DockerNodeHandle, request: ShellRequest) -> int:
    """Run the request with this process's terminal; return the exit code. SubstrateError."""
    record = read_record(ContainerRecord, handle.folder.container_record)
    if record is None:
        raise _error("its container cannot be found", handle.rank)
    interactive, engine = has_terminal(), handle.engine

    def create(client: Any) -> str:
        made = client.exec_create(
            record.id,
            build_shell_command(request),
            stdin=True,
            tty=interactive,
            environment=terminal_variables() if interactive else None,
            detach_keys=_NO_DETACH,
        )
        return str(made["Id"])

    execution = engine.call(create, action="entered", rank=handle.rank)
    program = _Execution(engine, execution, interactive=interactive, rank=handle.rank)
    relay(program, interactive=interactive)
    ended = engine.call(lambda client: client.exec_inspect(execution), action="looked at")
    return 137 if ended["ExitCode"] is None else int(ended["ExitCode"])  # None: it was killed


class _Execution:
    """A RemoteProgram: the connection to a command in a container."""

    def __init__(self, engine: DockerEngine, id: str, *, interactive: bool, rank: int) -> None:
        self._engine, self._id, self._interactive = engine, id, interactive
        self._socket = _connect(engine, rank)
        self._data = self._start(rank)
        self._has_rest = bool(self._data)

    def fileno(self) -> int:
        return self._socket.fileno()

    def has_unread(self) -> bool:
        return self._has_rest

    def read(self) -> list[tuple[int, bytes]] | None:
        if not self._has_rest:
            received = self._socket.recv(_CHUNK)
            if not received:
                return None
            self._data += received
        self._has_rest = False
        return self._take_output()

    def _take_output(self) -> list[tuple[int, bytes]]:
        """Return complete parts of what was received, each with its descriptor."""
        if self._interactive:
            data, self._data = self._data, b""
            return [(1, data)] if data else []
        found: list[tuple[int, bytes]] = []
        head = _FRAME_HEADER.size
        while len(self._data) >= head:
            stream, size = _FRAME_HEADER.unpack(self._data[:head])
            if len(self._data) < head + size:
                break
            found.append((2 if stream == 2 else 1, self._data[head : head + size]))
            self._data = self._data[head + size :]
        return found

    def write(self, data: bytes) -> None:
        self._socket.sendall(data)

    def close_input(self) -> None:
        self._socket.shutdown(socket.SHUT_WR)

    def resize(self, rows: int, columns: int) -> None:
        def resize(client: Any) -> bool:
            client.exec_resize(self._id, height=rows, width=columns)
            return True

        for pause in _RESIZE_PAUSES:
            time.sleep(pause)
            with suppress(SubstrateError):
                if self._engine.find(resize):
                    return

    def _start(self, rank: int) -> bytes:
        """Send the request; return what was received after the headers of the answer."""
        body = json.dumps({"Detach": False, "Tty": self._interactive})
        self._socket.sendall(
            f"POST /exec/{self._id}/start HTTP/1.1\r\nHost: docker\r\nConnection: Upgrade\r\n"
            "Upgrade: tcp\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n\r\n{body}".encode()
        )
        answer = b""
        while b"\r\n\r\n" not in answer:
            received = self._socket.recv(_CHUNK)
            if not received:
                raise _error("the Engine closed the connection", rank)
            answer += received
        head, _, rest = answer.partition(b"\r\n\r\n")
        if not any(code in head.splitlines()[0] for code in _SWITCHED):
            raise _error(f"the Engine answered {rest.decode(errors='replace').strip()!r}", rank)
        return rest


def _connect(engine: DockerEngine, rank: int) -> socket.socket:
    parts = urlsplit(engine.address)
    try:
        if parts.scheme == "unix":
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            connection.connect(parts.path)
            return connection
        if parts.scheme in {"tcp", "http"}:
            return socket.create_connection((parts.hostname or "localhost", parts.port or 2375))
    except OSError as error:
        raise _error(f"the Engine does not answer: {error}", rank) from error
    raise _error(f"{engine.address} is no socket of this machine", rank)


def _error(why: str, rank: int) -> SubstrateError:
    return SubstrateError(
        f"No shell can be opened in rank {rank}: {why}.",
        substrate=SUBSTRATE_NAME,
        rank=rank,
        next_step="Look for the container: docker ps --filter label=prefect-bt/job-id",
    )
