"""Folder of a deployment in this machine's state folder: the router's files and locks."""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Iterator
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import quote, unquote

from prefect_bt import codec
from prefect_bt.credentials.key_hashes import hash_key
from prefect_bt.errors import ServerError
from prefect_bt.filesystem.directories import find_paths
from prefect_bt.filesystem.permissions import ensure_private_folder
from prefect_bt.host.nodes.files import read_record, write_text_atomic
from prefect_bt.host.processes import ProcessIdentity
from prefect_bt.host.service import exclusive_lock, local_url
from prefect_bt.serving.router.route import Route, parse_route

_SECRET_BYTES: Final = 32
_MAX_NAME_LENGTH: Final = 200
"""Characters of a quoted name; file systems take 255 bytes."""


@dataclass(frozen=True)
class ListenAddress:
    """Host and port at which a router listens."""

    host: str
    port: int

    @property
    def address(self) -> str:
        """Return the URL for clients of this machine, such as `http://127.0.0.1:19000`."""
        return local_url(self.host, self.port)


@dataclass(frozen=True)
class RouterFolder:
    """The folder of one deployment. Each file is replaced in one step."""

    name: str
    path: Path

    @classmethod
    def for_deployment(cls, state_dir: Path, name: str) -> RouterFolder:
        """Raise ServerError for a name that no folder can have."""
        quoted = _quote(name)
        if not 0 < len(quoted) <= _MAX_NAME_LENGTH:
            raise ServerError(
                f"A deployment cannot be called {name[:40]!r}: its folder's name would have "
                f"{len(quoted)} characters, of 1 to {_MAX_NAME_LENGTH}.",
                next_step="Choose another name.",
            )
        return cls(name, state_dir.expanduser().absolute() / "deployments" / quoted)

    @classmethod
    def iter_all(cls, state_dir: Path) -> Iterator[RouterFolder]:
        """Yield the deployments that ever had a router or a route on this machine."""
        folder = state_dir.expanduser().absolute() / "deployments"
        for path in find_paths(folder, "*/"):
            if (path / "listen.json").exists() or (path / "route.json").exists():
                yield cls(unquote(path.name), path)

    @property
    def state_dir(self) -> Path:
        return self.path.parent.parent

    @property
    def id(self) -> str:
        """Return the id by which the router tells which deployment it serves."""
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

    def start_lock(self) -> AbstractContextManager[None]:
        """Allow one start or stop of the router at a time."""
        return exclusive_lock(self.path / "starting.lock")

    def decision_lock(self) -> AbstractContextManager[None]:
        """Allow one process at a time to read and change which revision serves or ends."""
        return exclusive_lock(self.path / "deciding.lock")

    def read_process(self) -> ProcessIdentity | None:
        """Return the last router, which may have ended."""
        return read_record(ProcessIdentity, self.path / "router.json")

    def write_process(self, router: ProcessIdentity) -> None:
        self._write("router.json", router)

    def is_replaced(self, router: ProcessIdentity) -> bool:
        """Return whether the folder is gone or names another router; read errors do not count."""
        with suppress(OSError, ValueError, TypeError, KeyError):
            try:
                text = (self.path / "router.json").read_bytes()
            except FileNotFoundError:
                return True
            return codec.loads(ProcessIdentity, text) != router
        return False

    def is_running(self) -> bool:
        """Return whether the router's process is alive."""
        router = self.read_process()
        return router is not None and router.is_alive

    def read_listen_address(self) -> ListenAddress | None:
        """Return the address; None if no port was chosen yet, or the file is damaged."""
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

    def read_route(self) -> Route | None:
        """Return None if there is no route. Raise ServerError if it cannot be read."""
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
        """Send new requests to the server of `route`."""
        self._write("route.json", route)

    def delete_route(self) -> None:
        """Let new requests wait for a route."""
        self.route_file.unlink(missing_ok=True)

    def ensure_engine_secret(self) -> bytes:
        """Return the secret from which the servers' keys are derived.

        Replace a missing or damaged one: no key can be computed from what is left of it.
        """
        path = self.path / "engine.secret"
        with exclusive_lock(self.path / "engine.lock"):
            with suppress(FileNotFoundError, ValueError):
                known = bytes.fromhex(path.read_text())
                if len(known) == _SECRET_BYTES:
                    return known
            fresh = secrets.token_bytes(_SECRET_BYTES)
            write_text_atomic(path, fresh.hex() + "\n")
            return fresh

    def write_key(self, key: str) -> None:
        """Require `key` in new requests; only its hash is stored."""
        self._write("key.json", hash_key(key))

    def _write(self, name: str, record: object) -> None:
        self.create()
        write_text_atomic(self.path / name, codec.dumps(record) + "\n")


def _quote(name: str) -> str:
    """Return a file name; `.` and `..` would be folders that exist already."""
    try:
        quoted = quote(name, safe="")
    except UnicodeEncodeError:
        return ""
    return quoted.replace(".", "%2E") if quoted.strip(".") == "" else quoted
