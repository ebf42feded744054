"""Manifest of a committed checkpoint of one rank: an object whose presence is the commit.

    .../manifests/rank-<r>/<quoted name>/<attempt>-<version>.json    create-only, written last
    .../objects/<attempt>/rank-<r>/...                               its bytes (stored_objects.py)

Attempt and version have four digits or more; within a name the later pair is the newer content.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import unquote

from prefect_bt import codec
from prefect_bt.checkpoints.layout import ROOT, WHOLE_FILE, join_checkpoint_path
from prefect_bt.errors import CheckpointError
from prefect_bt.object_keys import (
    job_objects_prefix,
    job_prefix,
    logical_path,
    manifests_prefix,
    objects_prefix,
    quote_name,
)
from prefect_bt.object_store.protocols import Store

FORMAT: Final = 2
"""Format 2 has checkpoints that are a file, which releases before it cannot restore."""
PERMISSION_MASK: Final = 0o777
"""Bits of a mode that a file gets; set-user-ID and set-group-ID are not among them."""
_MAX_TIMESTAMP: Final = 1e11
_SHA256: Final = re.compile(r"[0-9a-f]{64}")
_KEY: Final = re.compile(r"rank-(\d+)/([^/]+)/(\d{4,})-(\d{4,})\.json")


@dataclass(frozen=True)
class UploadOrigin:
    """Rank, attempt and job of an upload."""

    project_id: str
    job_id: str
    rank: int
    attempt: int
    group_size: int = 1


@dataclass(frozen=True, slots=True)
class ManifestEntry:
    """One file. `path` is relative to the checkpoint, `size` in bytes, `mode` permission bits.

    The path of a checkpoint that is a file is `layout.WHOLE_FILE`.
    """

    path: str
    logical: str
    key: str
    size: int
    sha256: str
    mode: int = 0o644
    mtime_ns: int = 0


@dataclass(frozen=True)
class Manifest:
    """Files of one committed checkpoint of a rank. `size` is in bytes, of all entries together."""

    format: int
    project_id: str
    job_id: str
    rank: int
    group_size: int
    name: str
    attempt: int
    version: int
    """Number of the commit of this checkpoint in the attempt, from 1."""
    committed_at: float
    size: int
    entries: tuple[ManifestEntry, ...]
    type: str = ""
    base_model: str | None = None
    lora_adapter_config: dict[str, Any] | None = None
    step: int | None = None
    note: str = ""
    """Parts that it lacks, if it was committed nevertheless: an earlier checkpoint has them, or a
    person committed it as it is."""

    @property
    def key(self) -> str:
        folder = manifests_prefix(self.project_id, self.job_id)
        place = f"rank-{self.rank}/{quote_name(self.name)}"
        return f"{folder}/{place}/{self.attempt:04d}-{self.version:04d}.json"

    @property
    def digests(self) -> dict[str, str]:
        """Return the digests by path."""
        return {entry.path: entry.sha256 for entry in self.entries}


@dataclass(frozen=True)
class ManifestRef:
    """The facts in a manifest's key."""

    key: str
    rank: int
    name: str
    attempt: int
    version: int

    @property
    def sort_key(self) -> tuple[int, int]:
        return self.attempt, self.version


def parse_manifest_key(key: str, *, project_id: str, job_id: str) -> ManifestRef | None:
    """Return None for an object that is not a manifest of this job."""
    inner = key.removeprefix(f"{manifests_prefix(project_id, job_id)}/")
    match = _KEY.fullmatch(inner)
    if match is None:
        return None
    return ManifestRef(key, int(match[1]), unquote(match[2]), int(match[3]), int(match[4]))


def rank_objects_prefix(origin: UploadOrigin, attempt: int) -> str:
    """Return the folder of the objects that this rank stored in an attempt."""
    return f"{objects_prefix(origin.project_id, origin.job_id, attempt)}/rank-{origin.rank}"


def is_own_object(origin: UploadOrigin, key: str) -> bool:
    """Return whether the rank of `origin` stored the object, or the only rank of its job."""
    if not key.startswith(f"{all_objects_prefix(origin)}/"):
        return False
    place = key.removeprefix(f"{all_objects_prefix(origin)}/").split("/")
    if len(place) > 1 and place[1].startswith("rank-"):
        return place[1] == f"rank-{origin.rank}"
    return origin.group_size == 1


def all_objects_prefix(origin: UploadOrigin) -> str:
    """Return the folder of the objects of all attempts."""
    return f"{job_prefix(origin.project_id, origin.job_id)}/objects"


def entry_logical_path(origin: UploadOrigin, name: str, path: str) -> str:
    return logical_path(
        origin.project_id, origin.job_id, origin.rank, join_checkpoint_path(name, path)
    )


def manifest_format(entries: Iterable[ManifestEntry]) -> int:
    """Return the lowest format that describes these files, for releases that read no higher."""
    return FORMAT if any(entry.path == WHOLE_FILE for entry in entries) else 1


def dump_manifest(manifest: Manifest) -> bytes:
    # File names are bytes; those that are not UTF-8 travel as lone surrogates, as json reads them.
    return codec.dumps(manifest, indent=1).encode("utf-8", "surrogatepass")


def read_manifest(store: Store, key: str) -> Manifest:
    """Return the manifest at `key`. Raises StoreError, and CheckpointError as `load_manifest`."""
    return load_manifest(store.get(key), key=key)


def load_manifest(data: bytes, *, key: str) -> Manifest:
    """Read the manifest at `key`; its contents are not trusted.

    Raises CheckpointError for an object that is not a manifest or is another one's, and for a
    manifest that names a path outside its checkpoint or an object of another job.
    """
    try:
        manifest = codec.decode(Manifest, json.loads(data))
        is_newer = manifest.format > FORMAT
        fault = "" if is_newer else _validate_manifest(manifest, key)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise CheckpointError(
            f"{key} is not a checkpoint manifest.", path=key, cause=str(error)
        ) from error
    if fault:
        raise CheckpointError(
            f"{key} {fault}.",
            path=key,
            next_step="It is corrupt or forged: restore it from a backup, or delete it.",
        )
    if is_newer:
        raise CheckpointError(
            f"{key} has format {manifest.format}; this release reads up to {FORMAT}.",
            path=key,
            next_step="Upgrade prefect-bt.",
        )
    return manifest


def _validate_manifest(manifest: Manifest, key: str) -> str:
    """Return what is wrong with it. Raises TypeError and the like for a field of the wrong type."""
    if manifest.name != ROOT and _is_unsafe_path(manifest.name):
        return f"names a path outside its checkpoint: {manifest.name!r}"
    if manifest.key != key:
        return f"is the manifest of another checkpoint: {manifest.key}"
    if not 0 <= manifest.committed_at < _MAX_TIMESTAMP:
        return f"has an invalid commit time: {manifest.committed_at!r}"
    if not _is_count(manifest.size) or not _is_count(manifest.group_size):
        return "has an invalid size or number of ranks"
    if not _has_valid_metadata(manifest.step, manifest.base_model, manifest.note):
        return "has a step that is not a number, or a base model or note that is not text"
    objects = f"{job_objects_prefix(manifest.project_id, manifest.job_id)}/"
    may_be_file = manifest.name != ROOT and len(manifest.entries) == 1
    faults = (_validate_entry(entry, objects, may_be_file) for entry in manifest.entries)
    return next(filter(None, faults), "")


def _validate_entry(entry: ManifestEntry, objects: str, may_be_file: bool) -> str:
    is_file = may_be_file and entry.path == WHOLE_FILE
    if not is_file and _is_unsafe_path(entry.path):
        return f"names a path outside its checkpoint: {entry.path!r}"
    if not entry.key.startswith(objects) or _is_unsafe_path(entry.key):
        return f"names an object for {entry.path!r} that does not belong to its job: {entry.key!r}"
    if not _SHA256.fullmatch(entry.sha256):
        return f"has no valid SHA-256 for {entry.path!r}: {entry.sha256!r}"
    if not all(map(_is_count, (entry.size, entry.mode, abs(entry.mtime_ns)))):
        return f"has an invalid size, mode or time for {entry.path!r}"
    return ""


def _has_valid_metadata(step: object, base_model: object, note: object) -> bool:
    is_text = isinstance(base_model, str | None) and isinstance(note, str)
    return is_text and isinstance(step, int | None)


def _is_count(number: object) -> bool:
    return type(number) is int and 0 <= number < 2**63


def _is_unsafe_path(path: str) -> bool:
    return "\0" in path or any(part in {"", ".", ".."} for part in path.split("/"))
