"""Read every committed byte again."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Final

from prefect_bt.checkpoints.committed import manifest_refs
from prefect_bt.checkpoints.manifest import Entry, load
from prefect_bt.errors import CheckpointError, ObjectNotFound
from prefect_bt.objects.protocols import Store

_CHUNK: Final = 8 * 1024 * 1024


@dataclass(frozen=True)
class Fault:
    """A broken promise. `manifest` and `key` are object keys; `path` as the checkpoint names it."""

    manifest: str
    what: str
    path: str = ""
    key: str = ""


def verify(store: Store, project_id: str, job_id: str) -> list[Fault]:
    """Re-hash every object that any manifest of the job names, each once. Raises StoreError."""
    faults: list[Fault] = []
    judged: dict[tuple[str, str, int], str] = {}
    for ref in manifest_refs(store, project_id, job_id):
        try:
            manifest = load(store.get(ref.key), key=ref.key)
        except ObjectNotFound:
            # A retention policy took it between listing and reading.
            continue
        except CheckpointError as error:
            faults.append(Fault(ref.key, error.what))
            continue
        for entry in manifest.entries:
            promise = (entry.key, entry.sha256, entry.size)
            if promise not in judged:
                judged[promise] = _fault(store, entry)
            if what := judged[promise]:
                faults.append(Fault(ref.key, what, entry.path, entry.key))
    return faults


def _fault(store: Store, entry: Entry) -> str:
    digest, size = hashlib.sha256(), 0
    try:
        while chunk := store.get_range(entry.key, start=size, length=_CHUNK):
            digest.update(chunk)
            size += len(chunk)
    except ObjectNotFound:
        return "is missing"
    if size != entry.size:
        return f"has {size} bytes, committed were {entry.size}"
    return "" if digest.hexdigest() == entry.sha256 else "has other bytes than were committed"
