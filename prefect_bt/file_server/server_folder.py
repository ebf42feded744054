"""Folder of a file server in this machine's state folder: its record, signing key and lock."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from prefect_bt import codec
from prefect_bt.filesystem.directories import find_paths
from prefect_bt.filesystem.secret_file import ensure_secret
from prefect_bt.host.nodes.files import read_record, write_text_atomic
from prefect_bt.host.processes import ProcessIdentity
from prefect_bt.host.service import exclusive_lock


def find_local_root(store_url: str) -> Path | None:
    """Return the folder of a store on this machine; None for any other store."""
    parts = urlsplit(store_url)
    return Path(unquote(parts.path)) if parts.scheme == "file" else None


@dataclass(frozen=True)
class ServerRecord:
    """Record of a file server. `base`: the part of URLs before the key. `host`: the bound
    address."""

    base: str
    host: str
    port: int
    process: ProcessIdentity
    root: str
    foreground: bool = False


@dataclass(frozen=True)
class FileServerFolder:
    """The folder of the file server for the store in `root`."""

    root: Path
    path: Path

    @classmethod
    def for_store(cls, root: Path, state_dir: Path) -> FileServerFolder:
        real = root.expanduser().resolve()
        name = hashlib.sha256(os.fsencode(real)).hexdigest()[:16]
        return cls(real, state_dir.expanduser().absolute() / "files" / name)

    @classmethod
    def iter_all(cls, state_dir: Path) -> Iterator[FileServerFolder]:
        """Yield the folders of all file servers that were ever started."""
        for path in find_paths(state_dir / "files", "*/server.json"):
            if known := read_record(ServerRecord, path):
                yield cls(Path(known.root), path.parent)

    @property
    def store_id(self) -> str:
        """Return the name by which the server tells which store it serves."""
        return self.path.name

    @property
    def log_file(self) -> Path:
        return self.path / "server.log"

    def start_lock(self) -> AbstractContextManager[None]:
        """Allow one start or stop at a time."""
        return exclusive_lock(self.path / "lock")

    def read_record(self) -> ServerRecord | None:
        """Return the record of the last server, which may have ended."""
        return read_record(ServerRecord, self.path / "server.json")

    def write_record(self, record: ServerRecord) -> None:
        write_text_atomic(self.path / "server.json", codec.dumps(record) + "\n")

    def ensure_signing_key(self) -> bytes:
        """Return the key that signs URLs; create it if there is none."""
        return ensure_secret(self.path / "key")
