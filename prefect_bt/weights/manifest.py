"""The manifest: the immutable list of files of one source at one revision."""

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
        """Return a digest of the paths, sizes and contents, whatever the source."""
        rows = [[entry.path, entry.size, entry.sha256] for entry in self.entries]
        return hashlib.sha256(json.dumps(rows).encode()).hexdigest()


@dataclass(frozen=True)
class ManifestSummary:
    """The facts of a manifest that are needed without its entries."""

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
    """Return the manifest as JSON; an entry is a row of path, size and digest."""
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
    """Parse and validate an untrusted manifest. Raise ValueError, KeyError or TypeError.

    Paths outside the mount, impossible sizes and malformed digests are refused.
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
    is_size = type(size) is int and 0 <= size < 2**63
    if not is_mountable(path) or not is_size or not SHA256.fullmatch(sha256):
        raise ValueError(f"no entry of a manifest: {quote(path)}")
    return FileEntry(path, size, sha256)


def load_summary(data: bytes) -> ManifestSummary:
    return codec.loads(ManifestSummary, data)
