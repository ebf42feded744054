"""The index of ended jobs in the store: one document for each job that cannot change by itself.

    index/ended/<job id>/<creation time>-<project id>.json

The key has what a list of jobs needs, so that only the documents of displayed jobs are read. Before
the records of an ended job are changed, its document is deleted. Decision 014 has the rules.
"""

from __future__ import annotations

from prefect_bt.object_keys import INDEX_ENDED
from prefect_bt.object_store.protocols import Store


def ended_document_key(job_id: str, project_id: str, created_at: float) -> str:
    return f"{INDEX_ENDED}/{job_id}/{created_at!r}-{project_id}.json"


def parse_ended_document_key(key: str) -> tuple[str, str, float] | None:
    """Return job ID, project ID and creation time; None for any other key."""
    job_id, _, name = key.removeprefix(f"{INDEX_ENDED}/").partition("/")
    created_at, _, project_id = name.removesuffix(".json").partition("-")
    try:
        found = job_id, project_id, float(created_at)
    except ValueError:
        return None
    return found if ended_document_key(*found) == key else None


def list_ended_ids(store: Store) -> set[str]:
    """Return the IDs of the jobs whose document is stored."""
    keys = (parse_ended_document_key(info.key) for info in store.list(INDEX_ENDED))
    return {key[0] for key in keys if key}


def delete_ended_document(store: Store, job_id: str) -> None:
    """Remove the job from the index, because its records are about to change."""
    for info in store.list(f"{INDEX_ENDED}/{job_id}"):
        store.delete(info.key)
