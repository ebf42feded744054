"""One source at one revision as an immutable list of files: what is mirrored and mounted."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any

from prefect_bt import codec
from prefect_bt.object_keys import weights_tree_name
from prefect_bt.weights.sources.file_listing import SHA256, is_mountable, quote

FORMAT_VERSION = 1


@dataclass(frozen=True)
class FileEntry:
    """`path` is relative to the mount."""

    path: str
    size: int
    sha256: str


@dataclass(frozen=True)
class WeightsManifest:
    """`entries` are sorted by path."""

    source: str
    key: str
    revision: str
    entries: tuple[FileEntry, ...]
    created_at: float

    @property
    def name(self) -> str:
        return weights_tree_name(self.key, self.revision)

    @property
    def bytes(self) -> int:
        return sum(entry.size for entry in self.entries)

    @property
    def content_id(self) -> str:
        """The same for the same files at the same paths, wherever they came from."""
        rows = [[entry.path, entry.size, entry.sha256] for entry in self.entries]
        return hashlib.sha256(json.dumps(rows).encode()).hexdigest()


@dataclass(frozen=True)
class ManifestSummary:
    """What is told of a manifest without reading it."""

    source: str
    key: str
    revision: str
    content_id: str
    files: int
    bytes: int
    created_at: float


def summarize(manifest: WeightsManifest) -> ManifestSummary:
    return ManifestSummary(
        source=manifest.source,
        key=manifest.key,
        revision=manifest.revision,
        content_id=manifest.content_id,
        files=len(manifest.entries),
        bytes=manifest.bytes,
        created_at=manifest.created_at,
    )


def dump_manifest(manifest: WeightsManifest) -> bytes:
    """Compact: an entry is a row of three."""
    document: dict[str, Any] = {
        "format": FORMAT_VERSION,
        "source": manifest.source,
        "key": manifest.key,
        "revision": manifest.revision,
        "created_at": manifest.created_at,
        "entries": [[entry.path, entry.size, entry.sha256] for entry in manifest.entries],
    }
    return json.dumps(document, ensure_ascii=False).encode()


def load_manifest(data: bytes) -> WeightsManifest:
    """Read a manifest; its contents are not trusted.

    Raises ValueError, KeyError or TypeError for what is no manifest of a format that we know, and
    ValueError for a path outside the mount, a size that no file has, and a digest that is none.
    """
    try:
        return _decode(json.loads(data))
    except (AttributeError, OverflowError, RecursionError):
        raise ValueError("not a manifest") from None


def _decode(document: Any) -> WeightsManifest:
    if document["format"] != FORMAT_VERSION:
        raise ValueError(f"a manifest of format {document['format']}")
    entries = tuple(_entry(*row) for row in document["entries"])
    if len({entry.path for entry in entries}) < len(entries):
        raise ValueError("a manifest that names a file twice")
    return WeightsManifest(
        source=str(document["source"]),
        key=str(document["key"]),
        revision=str(document["revision"]),
        entries=entries,
        created_at=float(document["created_at"]),
    )


def _entry(path: str, size: int, sha256: str) -> FileEntry:
    """Raise TypeError and the like for a value of the wrong type."""
    is_size = type(size) is int and 0 <= size < 2**63
    if not is_mountable(path) or not is_size or not SHA256.fullmatch(sha256):
        raise ValueError(f"no entry of a manifest: {quote(path)}")
    return FileEntry(path, size, sha256)


def load_summary(data: bytes) -> ManifestSummary:
    return codec.loads(ManifestSummary, data)
