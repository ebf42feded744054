"""The committed checkpoints of a job as documents: a list, and the files of a download."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Final

from prefect_bt import codec
from prefect_bt.checkpoints.committed import catalog
from prefect_bt.checkpoints.layout import join_checkpoint_path
from prefect_bt.checkpoints.sync_status import SyncStatus, read_sync_status
from prefect_bt.errors import PrefectBtError
from prefect_bt.file_server.signed_urls import file_documents, unsigned_urls
from prefect_bt.job_service.protocol import Document
from prefect_bt.ledger.ledger import Ledger
from prefect_bt.ledger.records import JobRecord
from prefect_bt.object_keys import job_prefix
from prefect_bt.workspace.limits import format_bytes

_ATTRIBUTES: Final = {
    "checkpoint-id": "checkpoint_id",
    "size": "size",
    "created": "created_at",
    "type": "type",
}


def select_committed(
    ledger: Ledger, record: JobRecord, name: str | None, sort: str, order: str
) -> list[catalog.CommittedCheckpoint]:
    """Return the committed checkpoints in order, or only that of the name or ID. NotFoundError."""
    committed = catalog.list_checkpoints(ledger.store, record.project_id, record.id)
    committed.sort(key=attrgetter(_ATTRIBUTES[sort]), reverse=order == "desc")
    names = [one.checkpoint_id for one in committed]
    chosen = catalog.resolve_names(record.id, names, [name] if name else names)
    return [one for one in committed if one.checkpoint_id in chosen]


def list_committed(
    ledger: Ledger, record: JobRecord, name: str | None, sort: str, order: str
) -> Document:
    """Return the document of `checkpoints list`, and the folder of the checkpoints."""
    shown = select_committed(ledger, record, name, sort, order)
    state = ledger.get_state(record.id)
    committed = catalog.list_checkpoints(ledger.store, record.project_id, record.id)
    sync = read_sync_status(ledger, record, state, committed, checkpointing=bool(shown))
    document: Document = {
        "job_id": record.id,
        "total_checkpoints": len(shown),
        "checkpoints": [_checkpoint_document(one, sync) for one in shown],
    }
    if name:
        document["files"] = file_documents(shown, unsigned_urls(ledger.store))
    url = f"{ledger.store.url.rstrip('/')}/{job_prefix(record.project_id, record.id)}"
    return {**document, "location": url}


def _checkpoint_document(one: catalog.CommittedCheckpoint, sync: SyncStatus) -> Document:
    status, error = sync.checkpoint_status(one)
    known = catalog.checkpoint_document(one)
    keys = ["id", "checkpoint_id", "checkpoint_type", "base_model", "size_bytes"]
    lora = one.lora_adapter_config
    return {
        "job_id": one.job_id,
        **{key: known[key] for key in keys},
        "size_human_readable": format_bytes(one.size),
        "created_at": known["created_at"],
        **({"lora_adapter_config": lora} if lora else {}),
        "sync_status": status,
        "sync_error": error or None,
        "note": one.note or None,
    }


def require_committed(ledger: Ledger, record: JobRecord) -> list[catalog.CommittedCheckpoint]:
    """Return the committed checkpoints of a job, at least one. PrefectBtError."""
    if committed := catalog.list_checkpoints(ledger.store, record.project_id, record.id):
        return committed
    step = f"Upload status: prefect-bt view --job-id {record.id}"
    raise PrefectBtError(f"Job {record.id} has no committed checkpoint.", next_step=step)


def list_target_files(ledger: Ledger, record: JobRecord, names: Sequence[str]) -> Document:
    """Return the files of the named checkpoints, by default of all, by path below the target.

    Each rank has a folder unless only rank 0 wrote.
    """
    committed = require_committed(ledger, record)
    known = [one.checkpoint_id for one in committed]
    resolved = catalog.resolve_names(record.id, known, names or known)
    chosen = [one for one in committed if one.checkpoint_id in resolved]
    manifests = [manifest for checkpoint in chosen for manifest in checkpoint.manifests]
    alone = all(manifest.rank == 0 for manifest in manifests)
    newest = catalog.select_newest(committed)
    return {
        "files": {
            f"{'' if alone else f'rank-{one.rank}/'}{join_checkpoint_path(one.name, entry.path)}": (
                codec.encode(entry)
            )
            for one in manifests
            for entry in one.entries
        },
        "incomplete": {one.checkpoint_id: one.missing_part for one in chosen if one.missing_part},
        "newest": newest.checkpoint_id if newest else None,
    }
