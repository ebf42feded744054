"""`prefect-bt get_checkpoint_urls`: write the URLs of a job's checkpoint files."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime
from pathlib import Path

from prefect_bt.cli.checkpoints.download import list_committed
from prefect_bt.cli.jobs.selection import select_job
from prefect_bt.cli.ui.options import InjectedTerminal, JobFilter, Remote
from prefect_bt.cli.ui.terminal import OK, format_count
from prefect_bt.file_server.checkpoint_urls import file_documents, signed_urls, unsigned_urls
from prefect_bt.ledger.opening import open_ledger


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
        found = list_committed(ledger, record)
    with terminal.spinner("Signing URLs"):
        store = ledger.store
        urls = unsigned_urls(store) if unsigned else signed_urls(store, os.environ)
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
