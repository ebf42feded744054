"""`get_checkpoint_urls` and `checkpoints serve`: the URLs of a job's checkpoint files, by HTTP."""

from __future__ import annotations

import asyncio
import json
import math
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from prefect_bt.cli.jobs.selection import select_job
from prefect_bt.cli.ui.options import InjectedTerminal, JobFilter, Remote
from prefect_bt.cli.ui.terminal import OK, format_count
from prefect_bt.errors import PrefectBtError, UsageError
from prefect_bt.file_server import process
from prefect_bt.file_server.signed_urls import file_documents, signed_urls, unsigned_urls
from prefect_bt.host.service import LOOPBACK, is_wildcard
from prefect_bt.job_service.checkpoint_lists import require_committed
from prefect_bt.ledger.open_ledger import open_ledger, open_settings_store
from prefect_bt.settings import Settings


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
        found = require_committed(ledger, record)
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


def serve_checkpoints(
    *,
    host: str = LOOPBACK,
    port: Annotated[int | None, Parameter(validator=Number(gte=1, lte=65535))] = None,
    address: str = "",
    terminal: InjectedTerminal,
) -> int:
    """Serve the files until Ctrl-C, to this machine or to others.

    `get_checkpoint_urls` starts such a server for this machine by itself. A URL is signed and
    valid for seven days; everyone who has it can read its file.

    Args:
        host: Address to listen on; 0.0.0.0 for other machines.
        port: Port; default: the last one, or a free port.
        address: Base URL that other machines use, such as http://box.example:8700.

    Examples:

    `prefect-bt checkpoints serve --host 0.0.0.0 --port 8700 --address http://box.example:8700`
    """
    from prefect_bt.file_server.app import FileServer, serve

    settings = Settings()
    place = process.find_server_folder(open_settings_store(settings).url, settings.state_dir)
    if place is None:
        raise PrefectBtError(
            f"{settings.store} needs no file server: a bucket signs its own URLs.",
            next_step="Create them: prefect-bt get_checkpoint_urls.",
        )
    if is_wildcard(host) and not address:
        raise UsageError(
            f"{host!r} is not an address that other machines can use.",
            next_step="Give the URL of this machine: --address http://<name>:<port>.",
        )
    if address and not address.startswith(("http://", "https://")):
        raise UsageError(
            f"--address {address!r} is not a URL.", next_step="Write http://box.example:8700."
        )
    base = address.rstrip("/")
    with process.become_server(place, host=host, port=port, base=base) as listening:
        known = place.read_record()
        terminal.echo(f"Serving {place.root} at {known.base if known else base}; Ctrl-C stops it.")
        terminal.echo("URLs: prefect-bt get_checkpoint_urls")
        server = FileServer(place.root, place.ensure_signing_key(), place.store_id)
        asyncio.run(serve(server, listening, idle_timeout=math.inf))
    return OK
