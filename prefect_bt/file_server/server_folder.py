"""What a file server and those who look for it share: a folder of this machine's state folder."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import secrets
from collections.abc import Generator, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from prefect_bt.filesystem.directories import find_paths
from prefect_bt.filesystem.permissions import ensure_private_folder
from prefect_bt.host.daemon import Daemon

_SECRET_BYTES: Final = 32


def find_local_root(store_url: str) -> Path | None:
    """The folder of a store on this machine; None for any other store."""
    parts = urlsplit(store_url)
    return Path(unquote(parts.path)) if parts.scheme == "file" else None


@dataclass(frozen=True)
class ServerRecord:
    """A file server as it described itself. `base` goes before keys, `host` is what it bound."""

    base: str
    host: str
    port: int
    pid: int
    started: str
    root: str
    foreground: bool = False

    @property
    def daemon(self) -> Daemon:
        return Daemon(self.pid, self.started)


@dataclass(frozen=True)
class FileServerFolder:
    """Where the server of the store in `root` leaves what others need, in a folder of its own."""

    root: Path
    path: Path

    @classmethod
    def for_store(cls, root: Path, state_dir: Path) -> FileServerFolder:
        real = root.expanduser().resolve()
        name = hashlib.sha256(os.fsencode(real)).hexdigest()[:16]
        return cls(real, state_dir.expanduser().absolute() / "files" / name)

    @classmethod
    def iter_all(cls, state_dir: Path) -> Iterator[FileServerFolder]:
        """Those that a server was ever started for."""
        for path in find_paths(state_dir / "files", "*/server.json"):
            known = _read_record(path)
            if known is not None:
                yield cls(Path(known.root), path.parent)

    @property
    def store_id(self) -> str:
        """What the server answers when asked which store it serves."""
        return self.path.name

    @property
    def log_file(self) -> Path:
        return self.path / "server.log"

    @contextlib.contextmanager
    def start_lock(self) -> Generator[None]:
        """One start or stop at a time; another waits."""
        ensure_private_folder(self.path)
        with (self.path / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def read_record(self) -> ServerRecord | None:
        """What the last server wrote; it may be gone by now."""
        return _read_record(self.path / "server.json")

    def write_record(self, record: ServerRecord) -> None:
        staged = self.path / "server.json.new"
        staged.write_text(json.dumps(asdict(record), indent=2) + "\n")
        staged.replace(self.path / "server.json")

    def ensure_signing_key(self) -> bytes:
        """The key that signs; made by whoever asks first."""
        path = self.path / "key"
        with contextlib.suppress(FileNotFoundError):
            return path.read_bytes()
        ensure_private_folder(self.path)
        staged = self.path / f"key.{os.getpid()}.{secrets.token_hex(4)}"
        descriptor = os.open(staged, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(secrets.token_bytes(_SECRET_BYTES))
        # A link and not a rename: of two who are first at once, both use the same one.
        with contextlib.suppress(FileExistsError):
            os.link(staged, path)
        staged.unlink()
        return path.read_bytes()


def _read_record(path: Path) -> ServerRecord | None:
    try:
        return ServerRecord(**json.loads(path.read_text()))
    except (OSError, ValueError, TypeError):
        return None
