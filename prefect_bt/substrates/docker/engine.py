"""The Docker Engine of this machine: which one it is, whether bind mounts reach it, its errors."""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException
from importlib import import_module
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

from prefect_bt.errors import SubstrateError
from prefect_bt.ledger.records import Cause

T = TypeVar("T")

SUBSTRATE_NAME: Final = "docker"
DEFAULT_DOCKER_HOST: Final = "unix:///var/run/docker.sock"
REQUEST_TIMEOUT: Final = 60.0
"""Seconds that a call may take; a busy disk creates containers slowly."""

_LOCAL_HOSTS: Final = {"", "localhost", "127.0.0.1", "::1"}
_START_HINT: Final = "Start it (`systemctl start docker`), or set DOCKER_HOST to its socket."

_GROUP_HINT: Final = "Join the group `docker` (usermod -aG docker $USER, then log in again)."

MESSAGE_PATTERNS: Final[tuple[tuple[str, Cause, str], ...]] = (
    ("no such image", Cause.IMAGE_PULL_FAILED, "The next attempt pulls it again."),
    (
        "could not select device driver",
        Cause.GPUS_MISSING,
        "Install the NVIDIA Container Toolkit on this machine and restart the Engine.",
    ),
    ("nvidia-container-cli", Cause.GPUS_MISSING, "Check that `nvidia-smi` works on this machine."),
    ("exec format error", Cause.IMAGE_UNUSABLE, "Use an image for this machine's processor."),
    ("executable file not found", Cause.IMAGE_UNUSABLE, "Use an image that has /bin/sh."),
    ("no such file or directory", Cause.IMAGE_UNUSABLE, "Use an image that has /bin/sh."),
    (
        "bind source path does not exist",
        Cause.LAUNCH_FAILED,
        "The Engine has other folders than this machine: run prefect-bt on the machine of "
        "the Engine.",
    ),
    ("no space left on device", Cause.CAPACITY_MISSING, "Free space: docker system prune."),
    ("non-overlapping ipv4", Cause.CAPACITY_MISSING, "Remove networks: docker network prune."),
    (
        "port is already allocated",
        Cause.CAPACITY_MISSING,
        "Stop the program that listens on that port.",
    ),
    ("range of cpus", Cause.CONFIGURATION, "Ask for fewer CPUs in compute.cpu_count."),
    ("minimum memory limit", Cause.CONFIGURATION, "Ask for more memory in compute.memory."),
    ("is already in use by container", Cause.LAUNCH_FAILED, "Remove that container."),
)
"""Patterns in the Engine's messages, in lower case; the first match wins. Text decides here
only: the Engine passes on its runtime's errors as text alone (Engine 20.10.24, November 2026)."""


class DockerEngine:
    """A client that connects on first use, and converts the Engine's errors."""

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        self._environment = dict(os.environ if environment is None else environment)
        self._client: Any = None
        self._connecting = threading.Lock()

    @property
    def address(self) -> str:
        """Return the address as in DOCKER_HOST."""
        return self._environment.get("DOCKER_HOST") or DEFAULT_DOCKER_HOST

    @property
    def client(self) -> Any:
        """Return the docker.APIClient; SubstrateError if no local Engine answers."""
        with self._connecting:
            if self._client is None:
                self._client = self._connect()
            return self._client

    def connect_in_background(self) -> None:
        """Connect in the background: importing the SDK takes as long as creating a container."""

        def connect() -> None:
            with suppress(SubstrateError):  # the first caller gets the error
                _ = self.client

        threading.Thread(target=connect, name="docker-connect", daemon=True).start()

    def call(self, request: Callable[[Any], T], *, action: str, rank: int | None = None) -> T:
        """Return the result of `request(client)`; SubstrateError names the action."""
        client = self.client
        errors: Any = import_module("docker.errors")
        transport: Any = import_module("requests.exceptions")
        try:
            return request(client)
        except errors.APIError as error:
            raise engine_error(str(error.explanation or error), action=action, rank=rank) from error
        except (errors.DockerException, transport.RequestException, OSError) as error:
            raise self._unreachable_error(error, rank) from error

    def find(self, request: Callable[[Any], T]) -> T | None:
        """Call as `call` does, but return None if the object does not exist."""
        errors: Any = import_module("docker.errors")

        def look(client: Any) -> T | None:
            try:
                return request(client)
            except errors.NotFound:
                return None

        return self.call(look, action="looked for")

    def info(self) -> dict[str, Any]:
        """Return the Engine's `/info`; for a Unix socket without importing the SDK."""
        parts = urlsplit(self.address)
        if parts.scheme != "unix":
            return self.call(lambda client: client.info(), action="asked about itself")
        try:
            return _get_over_socket(parts.path, "/info")
        except (OSError, HTTPException, ValueError) as error:
            raise self._unreachable_error(error) from error

    def _connect(self) -> Any:
        validate_docker_host(self._environment.get("DOCKER_HOST", ""))
        docker: Any = import_module("docker")
        errors: Any = import_module("docker.errors")
        given = docker.utils.kwargs_from_env(environment=self._environment)
        try:
            return docker.APIClient(version="auto", timeout=REQUEST_TIMEOUT, **given)
        except (errors.DockerException, OSError) as error:
            raise self._unreachable_error(error) from error

    def _unreachable_error(self, error: Exception, rank: int | None = None) -> SubstrateError:
        socket_path = Path(urlsplit(self.address).path)
        try:
            is_closed = socket_path.is_socket() and not os.access(socket_path, os.W_OK)
        except PermissionError:  # a folder above is closed
            is_closed = True
        return SubstrateError(
            f"The Docker Engine does not answer: {str(error).strip().rstrip('.')}.",
            substrate=SUBSTRATE_NAME,
            rank=rank,
            next_step=_GROUP_HINT if is_closed else _START_HINT,
            cause=Cause.CAPACITY_MISSING,
        )


class LimitsRefused(SubstrateError):
    """Error: the Engine may not set the ulimits of a container."""


class _SocketConnection(HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=REQUEST_TIMEOUT)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def _get_over_socket(path: str, url: str) -> dict[str, Any]:
    """Without a version in its path: any Engine answers. OSError, HTTPException, ValueError."""
    connection = _SocketConnection(path)
    try:
        connection.request("GET", url)
        answer = connection.getresponse()
        reply = json.loads(answer.read())
        if answer.status != HTTPStatus.OK:
            raise ValueError(str(reply.get("message") or answer.reason))
        return reply
    finally:
        connection.close()


def validate_docker_host(host: str) -> None:
    """Raise SubstrateError for an Engine on another machine, which lacks this machine's folders."""
    parts = urlsplit(host)
    if parts.scheme in {"", "unix", "npipe"} or (
        parts.scheme in {"tcp", "http", "https"} and (parts.hostname or "") in _LOCAL_HOSTS
    ):
        return
    raise SubstrateError(
        f"DOCKER_HOST is {host}: an Engine on another machine cannot mount this machine's folders "
        "(workspace, checkpoints, weights).",
        substrate=SUBSTRATE_NAME,
        next_step="Run prefect-bt, or a worker of a deployment, on that machine.",
        cause=Cause.CONFIGURATION,
    )


def validate_same_kernel(info: Mapping[str, Any]) -> None:
    """Raise SubstrateError for an Engine in a virtual machine, such as Docker Desktop's."""
    remote, kernel = str(info.get("KernelVersion", "")), os.uname().release
    if remote != kernel:
        raise SubstrateError(
            f"The Docker Engine runs on another kernel ({remote}, here {kernel}): in a virtual "
            "machine, whose containers cannot share pipes with this one.",
            substrate=SUBSTRATE_NAME,
            next_step="Run prefect-bt inside of it, or use --substrate local.",
            cause=Cause.CONFIGURATION,
        )


def engine_error(message: str, *, action: str, rank: int | None = None) -> SubstrateError:
    """Convert the Engine's message to an error."""
    text = message.lower()
    found = next(((cause, cure) for piece, cause, cure in MESSAGE_PATTERNS if piece in text), None)
    cause, cure = found or (Cause.LAUNCH_FAILED, "See the log of the Engine.")
    subject = "The container" if rank is None else f"The container of rank {rank}"
    kind = LimitsRefused if "rlimit" in text else SubstrateError
    return kind(
        f"{subject} could not be {action}: {message.strip().rstrip('.')}.",
        substrate=SUBSTRATE_NAME,
        rank=rank,
        next_step=cure,
        cause=cause,
    )
