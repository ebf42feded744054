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

from prefect_bt.folders import find_paths
from prefect_bt.privacy import make_private
from prefect_bt.servers import Daemon

_SECRET_BYTES: Final = 32


def local_root(store_url: str) -> Path | None:
    """The folder of a store on this machine; None for any other store."""
    parts = urlsplit(store_url)
    return Path(unquote(parts.path)) if parts.scheme == "file" else None


@dataclass(frozen=True)
class Known:
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
class Place:
    """Where the server of the store in `root` leaves what others need, in a folder of its own."""

    root: Path
    folder: Path

    @classmethod
    def of(cls, root: Path, state_dir: Path) -> Place:
        real = root.expanduser().resolve()
        name = hashlib.sha256(os.fsencode(real)).hexdigest()[:16]
        return cls(real, state_dir.expanduser().absolute() / "files" / name)

    @classmethod
    def all_in(cls, state_dir: Path) -> Iterator[Place]:
        """Those that a server was ever started for."""
        for path in find_paths(state_dir / "files", "*/server.json"):
            known = _read(path)
            if known is not None:
                yield cls(Path(known.root), path.parent)

    @property
    def id(self) -> str:
        """What the server answers when asked which store it serves."""
        return self.folder.name

    @property
    def log(self) -> Path:
        return self.folder / "server.log"

    @contextlib.contextmanager
    def alone(self) -> Generator[None]:
        """One start or stop at a time; another waits."""
        make_private(self.folder)
        with (self.folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def known(self) -> Known | None:
        """What the last server wrote; it may be gone by now."""
        return _read(self.folder / "server.json")

    def write(self, known: Known) -> None:
        staged = self.folder / "server.json.new"
        staged.write_text(json.dumps(asdict(known), indent=2) + "\n")
        staged.replace(self.folder / "server.json")

    def secret(self) -> bytes:
        """The key that signs; made by whoever asks first."""
        path = self.folder / "key"
        with contextlib.suppress(FileNotFoundError):
            return path.read_bytes()
        make_private(self.folder)
        staged = self.folder / f"key.{os.getpid()}.{secrets.token_hex(4)}"
        descriptor = os.open(staged, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(secrets.token_bytes(_SECRET_BYTES))
        # A link and not a rename: of two who are first at once, both use the same one.
        with contextlib.suppress(FileExistsError):
            os.link(staged, path)
        staged.unlink()
        return path.read_bytes()


def _read(path: Path) -> Known | None:
    try:
        return Known(**json.loads(path.read_text()))
    except (OSError, ValueError, TypeError):
        return None
