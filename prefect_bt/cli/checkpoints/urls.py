"""`prefect-bt get_checkpoint_urls`, and the URLs of checkpoint files."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from prefect_bt.checkpoints.committed import catalog
from prefect_bt.cli.jobs.selection import select_job
from prefect_bt.cli.ui.options import InjectedTerminal, JobFilter, Remote
from prefect_bt.cli.ui.terminal import OK, format_count
from prefect_bt.errors import PrefectBtError
from prefect_bt.file_server.server_folder import FileServerFolder, find_local_root
from prefect_bt.file_server.signed_urls import URL_LIFETIME_SECONDS, sign_url
from prefect_bt.ledger.opening import open_ledger
from prefect_bt.object_store.protocols import Store


@dataclass(frozen=True)
class FileUrls:
    """`url_for` returns the URL of an object key; `note` tells users how long URLs are valid."""

    url_for: Callable[[str], str]
    note: str


def get_checkpoint_urls(
    *,
    job_id: str | None = None,
    unsigned: bool = False,
    remote: Remote = None,
    terminal: InjectedTerminal,
) -> int:
    """Create `<project>_<job>_checkpoints.json` in the current directory.

    A URL is valid for seven days; no other credentials are needed. For a store in a local folder,
    a file server on this machine serves the files; the command starts it if none runs.

    Args:
        job_id: ID of the job; default: the newest.
        unsigned: Write URLs of the store itself (file://, s3://), unsigned.

    Examples:

    `prefect-bt get_checkpoint_urls --job-id abc1234`
    """
    from prefect_bt.cli.jobs.download import folder_name
    from prefect_bt.jobs.job_json import job_document

    ledger = open_ledger()
    record = select_job(ledger, JobFilter(job_id=job_id), terminal)
    with terminal.spinner("Reading the manifests"):
        found = catalog.list_checkpoints(ledger.store, record.project_id, record.id)
    if not found:
        raise PrefectBtError(
            f"No checkpoints found for training job {record.id}.",
            next_step=f"Upload status: prefect-bt view --job-id {record.id}",
        )
    with terminal.spinner("Signing URLs"):
        urls = (unsigned_urls if unsigned else signed_urls)(ledger.store)
        files = file_documents(found, urls)
    document = {
        "timestamp": datetime.now(UTC).isoformat(),
        "job": job_document(ledger, record),
        "checkpoint_artifacts": files,
    }
    target = Path.cwd() / f"{folder_name(record)}_checkpoints.json"
    target.write_text(json.dumps(document, indent=2) + "\n")
    count = format_count(len(files), "checkpoint file")
    terminal.echo(f"URLs of {count} written to {target}", style="green")
    terminal.echo(urls.note)
    return OK


def file_documents(
    found: Sequence[catalog.CommittedCheckpoint], urls: FileUrls
) -> list[dict[str, object]]:
    """Return a JSON record for each file of the checkpoints."""
    return [
        {
            "url": urls.url_for(file.key),
            "relative_file_name": file.path,
            "node_rank": file.rank,
            "size_bytes": file.size,
            "last_modified": datetime.fromtimestamp(
                file.modified or checkpoint.created_at, UTC
            ).isoformat(),
        }
        for checkpoint in found
        for file in checkpoint.files()
    ]


def unsigned_urls(store: Store) -> FileUrls:
    """Return URLs of the store itself (file://, s3://)."""
    root = store.url.rstrip("/")
    note = "The URLs are not signed: readers need access to the store."
    return FileUrls(lambda key: f"{root}/{key}", note)


def signed_urls(store: Store) -> FileUrls:
    """Return URLs signed by a bucket, or by the file server of a local store.

    Start the file server if none runs; raise ServerError if it does not start. A bucket that
    cannot sign has unsigned URLs.
    """
    from prefect_bt.file_server.process import ensure_server, is_loopback
    from prefect_bt.settings import Settings

    valid = f"The URLs are valid for {URL_LIFETIME_SECONDS // 86400} days"
    root = find_local_root(store.url)
    if root is None:
        plain = unsigned_urls(store)
        return FileUrls(
            lambda key: store.presign(key, seconds=URL_LIFETIME_SECONDS) or plain.url_for(key),
            f"{valid}, or as long as the credentials that signed them.",
        )
    place = FileServerFolder.for_store(root, Settings().state_dir)
    server, secret = ensure_server(place, environment=os.environ), place.ensure_signing_key()
    expires = int(time.time()) + URL_LIFETIME_SECONDS
    others = " to this machine (for others: prefect-bt checkpoints serve)"
    return FileUrls(
        lambda key: sign_url(server.base, secret, key, expires=expires),
        f"{valid}, served at {server.base}{others if is_loopback(server.host) else ''}.",
    )
