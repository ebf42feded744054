"""What a router and those who steer it share: the deployment's folder in the state folder."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import secrets
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, cast
from urllib.parse import quote, unquote, urlsplit

from prefect_bt import codec
from prefect_bt.errors import ServerError
from prefect_bt.filesystem.directories import find_paths
from prefect_bt.filesystem.permissions import ensure_private_folder
from prefect_bt.host.daemon import Daemon
from prefect_bt.host.job_lock import OPEN_FLAGS, try_lock
from prefect_bt.host.nodes.files import read_record, write_text_atomic
from prefect_bt.host.processes import ProcessIdentity
from prefect_bt.serving.router.api_keys import hash_key

WAIT_TIMEOUT: Final = 60.0
"""Seconds that a request waits for a server that takes it."""
SHUTDOWN_GRACE_SECONDS: Final = 30.0
"""Seconds that requests in flight have when the router is told to stop."""
ADMIN_PREFIX: Final = "/_router/"
STATUS_PATH: Final = "/_router/status"
HOST: Final = "127.0.0.1"
BACKLOG: Final = 1024
EXIT_EXPLAINED: Final = 3
"""Exit code of a router whose last line is a sentence for the user."""

_SECRET_BYTES: Final = 32
_MAX_NAME_LENGTH: Final = 200
"""Characters of a quoted name: what file systems take, less what we put behind it."""
_WILDCARDS: Final = {"": HOST, "0.0.0.0": HOST, "::": "::1"}  # noqa: S104
"""Every address of a machine → the one at which the machine itself finds it."""


@dataclass(frozen=True)
class ListenAddress:
    """Where a router listens."""

    host: str
    port: int

    @property
    def address(self) -> str:
        """As clients of this machine spell it: `http://127.0.0.1:19000`."""
        host = _WILDCARDS.get(self.host, self.host)
        return f"http://{f'[{host}]' if ':' in host else host}:{self.port}"


@dataclass(frozen=True)
class Route:
    """Where new requests go. `target`: scheme, host and port of a server, without a path.

    `aliases`: what a JSON request may name as its model -> the model of `models` that it means.
    `process`: of this machine, with whose end the target's address may become another server's.
    `key`: the key that the server itself requires, "" for none (serving.engines.engine_key).
    """

    revision: int
    target: str
    models: tuple[str, ...] = ()
    aliases: Mapping[str, str] = field(default_factory=dict[str, str])
    process: ProcessIdentity | None = None
    key: str = field(default="", repr=False)

    @property
    def is_server_dead(self) -> bool:
        """Whether the server is gone for certain, and the address is perhaps another's."""
        return self.process is not None and not self.process.is_alive


@dataclass(frozen=True)
class RouterProcess:
    """The process that listens, as it noted itself."""

    pid: int
    started: str

    @property
    def daemon(self) -> Daemon:
        return Daemon(self.pid, self.started)


@dataclass(frozen=True)
class RouterFolder:
    """A deployment's folder. Every file is replaced in one step, so it can be read at any time."""

    name: str
    path: Path

    @classmethod
    def for_deployment(cls, state_dir: Path, name: str) -> RouterFolder:
        """ServerError for a name that no folder can have."""
        quoted = _quoted(name)
        if not 0 < len(quoted) <= _MAX_NAME_LENGTH:
            raise ServerError(
                f"A deployment cannot be called {name[:40]!r}: its folder's name would have "
                f"{len(quoted)} characters, of 1 to {_MAX_NAME_LENGTH}.",
                next_step="Choose another name.",
            )
        return cls(name, state_dir.expanduser().absolute() / "deployments" / quoted)

    @property
    def state_dir(self) -> Path:
        return self.path.parent.parent

    @classmethod
    def iter_all(cls, state_dir: Path) -> Iterator[RouterFolder]:
        """Deployments that ever had a router or a route on this machine."""
        folder = state_dir.expanduser().absolute() / "deployments"
        for path in find_paths(folder, "*/"):
            if (path / "listen.json").exists() or (path / "route.json").exists():
                yield cls(unquote(path.name), path)

    @property
    def id(self) -> str:
        """What the router answers when asked which deployment it serves."""
        return hashlib.sha256(os.fsencode(self.path)).hexdigest()[:16]

    @property
    def log_file(self) -> Path:
        return self.path / "router.log"

    @property
    def route_file(self) -> Path:
        return self.path / "route.json"

    @property
    def key_file(self) -> Path:
        return self.path / "key.json"

    def create(self) -> None:
        ensure_private_folder(self.path)

    @contextlib.contextmanager
    def start_lock(self) -> Generator[None]:
        """One start or stop at a time; another waits."""
        with self._lock_file("starting.lock"):
            yield

    @contextlib.contextmanager
    def decision_lock(self) -> Generator[None]:
        """Whoever has a revision serve or end looks and says so in here, one at a time."""
        with self._lock_file("deciding.lock"):
            yield

    @contextlib.contextmanager
    def _lock_file(self, name: str) -> Generator[None]:
        self.create()
        with (self.path / name).open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def open_lock_file(self) -> int:
        """The descriptor of the file that a router has locked while it lives."""
        self.create()
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        return os.open(self.path / "router.lock", flags, 0o600)

    def is_locked_by(self, descriptor: int) -> bool:
        """Whether the open file is the deployment's lock still: nobody removed the folder."""
        try:
            return os.path.samestat((self.path / "router.lock").stat(), os.fstat(descriptor))
        except OSError:
            return False

    def is_running(self) -> bool:
        """Whether a living process is the router. Never blocks."""
        try:
            descriptor = os.open(self.path / "router.lock", OPEN_FLAGS)
        except OSError:
            return False
        try:
            return not try_lock(descriptor, shared=True)
        finally:
            os.close(descriptor)

    def read_listen_address(self) -> ListenAddress | None:
        """None when no port was chosen yet, or the file is damaged."""
        listen = read_record(ListenAddress, self.path / "listen.json")
        return listen if listen is not None and type(listen.port) is int else None

    @property
    def has_listen_file(self) -> bool:
        return (self.path / "listen.json").exists()

    def write_listen_address(self, listen: ListenAddress | None) -> None:
        if listen is None:
            (self.path / "listen.json").unlink(missing_ok=True)
        else:
            self._write("listen.json", listen)

    def read_process(self) -> RouterProcess | None:
        """The last router; it may be gone by now."""
        return read_record(RouterProcess, self.path / "router.json")

    def write_process(self, running: RouterProcess) -> None:
        self._write("router.json", running)

    def read_route(self) -> Route | None:
        """None when there is none. ServerError when it cannot be read."""
        try:
            return parse_route(self.route_file.read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise ServerError(
                f"The route of deployment {self.name!r} cannot be read: {error}.",
                next_step="Promote one of its revisions again.",
            ) from error

    def write_route(self, route: Route) -> None:
        """Requests that arrive from now on go there."""
        parse_route(codec.dumps(route).encode())
        self._write("route.json", route)

    def delete_route(self) -> None:
        """Requests that arrive from now on wait for a route."""
        self.route_file.unlink(missing_ok=True)

    def ensure_engine_secret(self) -> bytes:
        """Return the secret from which its servers' keys are derived; create it if it is missing or
        damaged, so that no key can be computed from what is left of it."""
        path = self.path / "engine.secret"
        with self._lock_file("engine.lock"):
            with contextlib.suppress(FileNotFoundError, ValueError):
                known = bytes.fromhex(path.read_text())
                if len(known) == _SECRET_BYTES:
                    return known
            fresh = secrets.token_bytes(_SECRET_BYTES)
            write_text_atomic(path, fresh.hex() + "\n")
            return fresh

    def write_key(self, key: str) -> None:
        """Only who sends `key` is answered from now on; it is not kept, its hash is."""
        self._write("key.json", hash_key(key))

    def delete_key(self) -> None:
        """Everybody who reaches the address is answered from now on."""
        self.key_file.unlink(missing_ok=True)

    def _write(self, name: str, record: object) -> None:
        self.create()
        write_text_atomic(self.path / name, codec.dumps(record) + "\n")


def parse_route(text: bytes) -> Route:
    """ValueError says what is wrong with it.

    >>> parse_route(b'{"revision": 3, "target": "http://127.0.0.1:20011", "models": ["a"]}')
    Route(revision=3, target='http://127.0.0.1:20011', models=('a',), aliases={}, process=None)
    """
    told: Any = json.loads(text)
    if not isinstance(told, dict):
        raise ValueError("it is not an object")  # noqa: TRY004 (whoever reads it knows one error)
    found = cast("dict[str, Any]", told)
    revision, target, models = found.get("revision"), found.get("target"), found.get("models", [])
    if type(revision) is not int:
        raise ValueError(f"its revision is {revision!r}, which is not a whole number")
    if not isinstance(target, str) or not _is_target(target):
        raise ValueError(f"its target is {target!r}, which is not like http://127.0.0.1:20011")
    if not isinstance(models, list) or not all(
        isinstance(m, str) for m in cast("list[Any]", models)
    ):
        raise ValueError(f"its models are {models!r}, which is not a list of names")
    names = tuple(cast("list[str]", models))
    key = found.get("key", "")
    if not isinstance(key, str) or not (key.isascii() and key.isprintable()):
        raise ValueError("its key cannot be sent in a header")
    aliases, process = (
        _parse_aliases(found.get("aliases", {}), names),
        _parse_process(found.get("process")),
    )
    return Route(revision, target.rstrip("/"), names, aliases, process, key)


def _parse_aliases(document: Any, models: tuple[str, ...]) -> dict[str, str]:
    if not isinstance(document, dict):
        raise ValueError(f"its aliases are {document!r}, which are not names of models")  # noqa: TRY004 (as above)
    aliases = cast("dict[str, Any]", document)
    if strangers := [name for name in aliases.values() if name not in models]:
        raise ValueError(f"its aliases mean {strangers}, which it does not serve")
    return aliases


def _parse_process(document: Any) -> ProcessIdentity | None:
    try:
        return None if document is None else codec.decode(ProcessIdentity, document)
    except (TypeError, KeyError) as error:
        raise ValueError(f"its process is {document!r}, not a pid and a start time") from error


def _is_target(target: str) -> bool:
    try:
        parts = urlsplit(target)
        known = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False
    return (
        known and parts.path in {"", "/"} and not (parts.query or parts.fragment or "@" in target)
    )


def _quoted(name: str) -> str:
    """A file name; `.` and `..` would be folders that are there already."""
    try:
        quoted = quote(name, safe="")
    except UnicodeEncodeError:
        return ""
    return quoted.replace(".", "%2E") if quoted.strip(".") == "" else quoted
