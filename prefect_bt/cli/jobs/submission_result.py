"""Print a job that was submitted, and follow it."""

from __future__ import annotations

import os
from typing import Any

from prefect_bt.cli.jobs.render_plan import show_workspace
from prefect_bt.cli.logs.follow import exit_code, follow_job
from prefect_bt.cli.ui.terminal import OK, Terminal
from prefect_bt.host.mounts.volumes import list_exposure_warnings
from prefect_bt.job_service.protocol import JobService
from prefect_bt.ledger.ledger import Ledger
from prefect_bt.ledger.open_ledger import load_definition
from prefect_bt.ledger.states import JobState
from prefect_bt.local_server.discovery import read_server
from prefect_bt.settings import Settings


def print_and_follow(
    terminal: Terminal, jobs: JobService, document: dict[str, Any], *, tail: bool, wait: bool
) -> int:
    """Print the created job; follow it with `tail`, wait for it with `wait`."""
    print_created(terminal, jobs, document)
    if not (tail or wait):
        return terminal.print_result(document, lambda: None)
    job_id = str(document["id"])
    try:
        state = follow_job(terminal, jobs, job_id, with_log=tail)
        page = jobs.describe_job(job_id)["flow_run_url"]
        if page and not document.get("flow_run_url"):
            terminal.info(f"  UI:      {page}")
    finally:
        # Printed after Ctrl-C as well: the job exists, and the document has its ID.
        if terminal.machine_readable:
            terminal.print_json({**document, **jobs.describe_job(job_id)})
    return exit_code(state) if wait else OK


def print_created(terminal: Terminal, jobs: JobService, document: dict[str, Any]) -> None:
    """Print the notes of the plan, and how to look at the job."""
    job_id = str(document["id"])
    for note in document.get("notes") or ():
        terminal.info(f"note: {note}", style="dim")
    if jobs.ledger:
        warn_of_open_folders(terminal, document.get("store"))
    if document.get("current_status") == JobState.PENDING.value:
        terminal.echo(
            f"Training job {job_id} {_format_wait(document, jobs.option)}", style="yellow"
        )
    else:
        terminal.echo("Training job successfully created!", style="green")
    name, project = document.get("name"), document["training_project"]["name"]
    team = document["training_project"].get("team_name")
    of_team = f", team {team}" if team else ""
    terminal.echo(f"  Job:     {job_id} ({name}) of project {project}{of_team}")
    if document.get("machine"):
        terminal.echo(f"  Machine: {document['machine']}")
    terminal.echo(f"  Logs:    prefect-bt logs --job-id {job_id} --tail{jobs.option}")
    terminal.echo(f"  Details: prefect-bt view --job-id {job_id}{jobs.option}")
    if workspace := document.get("workspace"):
        show_workspace(terminal, workspace)
    if jobs.ledger and _has_cache(jobs.ledger, job_id):
        terminal.echo(f'  Cache:   prefect-bt cache summarize "{project}"')
    page = document.get("flow_run_url") or (_server_ui_url() if jobs.ledger else "")
    if not (page or jobs.ledger):
        return
    terminal.echo(f"  UI:      {page or 'none; `prefect-bt up` starts one, and speeds up pushes'}")


def _format_wait(document: dict[str, Any], option: str) -> str:
    """Return what a pending job waits for: a machine of the queue, or a worker."""
    if "place" not in document:
        return "is waiting for capacity: a worker must take it."
    number, machine = f"is number {document['place']} of the queue", document["machine"]
    if machine:
        return f"{number}. It runs on {machine}, which is about to start it."
    return f"{number}. It waits for {document['waiting_for']}.\n  Queue:   prefect-bt queue{option}"


def warn_of_open_folders(terminal: Terminal, store: str | None = None) -> None:
    """Warn about folders of prefect_bt that other users of the machine can enter."""
    for sentence in list_exposure_warnings(Settings(), store):
        terminal.warn(sentence)


def _has_cache(ledger: Ledger, job_id: str) -> bool:
    """Return whether the job has a training cache; its document does not contain this."""
    cache = load_definition(ledger.get_job(job_id)).job.runtime.cache_config
    return cache is not None and cache.enabled


def _server_ui_url() -> str:
    """Return the URL of the UI, for a job whose flow run does not exist yet."""
    api = os.environ.get("PREFECT_API_URL") or ""
    known = read_server(Settings().state_dir) or {}
    return api.removesuffix("/").removesuffix("/api") or str(known.get("ui_url") or "")
