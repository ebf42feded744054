"""The manifest: the immutable list of files of one source at one revision."""

from __future__ import annotations

import json
from dataclasses import dataclass

from prefect_bt.object_keys import weights_tree_name
from prefect_bt.weights.sources.file_listing import SHA256, ListedFile, is_mountable, quote

FORMAT_VERSION = 1


@dataclass(frozen=True)
class FileEntry:
    """One file of a weights source. `path` is relative to the mount location."""

    path: str
    size: int
    sha256: str


@dataclass(frozen=True)
class WeightsManifest:
    """Files of a weights source at one revision. `entries` are sorted by path."""

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
    def files(self) -> tuple[ListedFile, ...]:
        """Return the files as a source with digests lists them."""
        return tuple(ListedFile(entry.path, entry.size, entry.sha256) for entry in self.entries)


@dataclass(frozen=True)
class ManifestSummary:
    """The facts of a manifest that are needed without its entries."""

    source: str
    key: str
    revision: str
    files: int
    bytes: int
    created_at: float


def summarize(manifest: WeightsManifest) -> ManifestSummary:
    source, key, revision = manifest.source, manifest.key, manifest.revision
    files, size = len(manifest.entries), manifest.bytes
    return ManifestSummary(source, key, revision, files, size, manifest.created_at)


def dump_manifest(manifest: WeightsManifest) -> bytes:
    """Return the manifest as JSON; an entry is a row of path, size and digest."""
    document = vars(manifest) | {
        "format": FORMAT_VERSION,
        "entries": [[entry.path, entry.size, entry.sha256] for entry in manifest.entries],
    }
    return json.dumps(document, ensure_ascii=False).encode()


def load_manifest(data: bytes) -> WeightsManifest:
    """Parse and validate an untrusted manifest. Raise ValueError, KeyError or TypeError."""
    try:
        document = json.loads(data)
        if document["format"] != FORMAT_VERSION:
            raise ValueError(f"a manifest of format {document['format']}")
        entries = tuple(_parse_entry(*row) for row in document["entries"])
        source, key, revision = (str(document[name]) for name in ("source", "key", "revision"))
        created_at = float(document["created_at"])
    except (AttributeError, OverflowError, RecursionError):
        raise ValueError("not a manifest") from None
    if len({entry.path for entry in entries}) < len(entries):
        raise ValueError("a manifest that names a file twice")
    return WeightsManifest(source, key, revision, entries, created_at)


def _parse_entry(path: str, size: int, sha256: str) -> FileEntry:
    is_size = type(size) is int and 0 <= size < 2**63
    if not is_mountable(path) or not is_size or not SHA256.fullmatch(sha256):
        raise ValueError(f"not an entry of a manifest: {quote(path)}")
    return FileEntry(path, size, sha256)
