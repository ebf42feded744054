"""What push and recreate say and do once a job was accepted."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from prefect_bt.cli.jobs.render_workspace import show_workspace
from prefect_bt.cli.logs.follow import LogDisplayOptions, exit_code, tail_logs, wait_for_job
from prefect_bt.cli.ui.terminal import OK, Terminal, write_stdout
from prefect_bt.ledger.states import JobState

if TYPE_CHECKING:
    from prefect_bt.ledger.ledger import Ledger
    from prefect_bt.ledger.records import JobRecord


@dataclass(frozen=True)
class FollowOptions:
    """Whether to stay with the job, and how the result is printed."""

    tail: bool = False
    wait: bool = False
    output: str = "cli-table"


def print_and_follow(terminal: Terminal, document: dict[str, Any], follow: FollowOptions) -> int:
    """Say that the job exists and how to go on; then stay with it if that was asked for."""
    print_created(terminal, document)
    if not (follow.tail or follow.wait):
        if terminal.machine_readable:
            terminal.print_json(document)
        return OK
    return _follow_job(terminal, document, follow)


def print_created(terminal: Terminal, document: dict[str, Any]) -> None:
    """Print the notes of the plan and the success block of a push."""
    job_id = str(document["id"])
    for note in document.get("notes") or ():
        terminal.info(f"note: {note}", style="dim")
    warn_of_open_folders(terminal, document.get("store"))
    if document.get("current_status") == JobState.PENDING.value:
        words = f"Training job {job_id} is waiting for capacity, that is for a worker to take it."
        terminal.echo(words, style="yellow")
    else:
        terminal.echo("Training job successfully created!", style="green")
    name, project = document.get("name"), document["training_project"]["name"]
    team = document["training_project"].get("team_name")
    of_team = f", team {team}" if team else ""
    terminal.echo(f"  Job:     {job_id} ({name}) of project {project}{of_team}")
    terminal.echo(f"  Logs:    prefect-bt logs --job-id {job_id} --tail")
    terminal.echo(f"  Details: prefect-bt view --job-id {job_id}")
    if workspace := document.get("workspace"):
        show_workspace(terminal, workspace)
    if _has_cache(document):
        terminal.echo(f'  Cache:   prefect-bt cache summarize "{project}"')
    page = document.get("flow_run_url") or _server_ui_url()
    terminal.echo(
        f"  UI:      {page or 'none; `prefect-bt up` starts one, and makes pushes faster'}"
    )


def warn_of_open_folders(terminal: Terminal, store: str | None = None) -> None:
    """Warn of our folders that other users of the machine can enter, and say how to close them."""
    from prefect_bt.host.mounts.volumes import list_exposure_warnings
    from prefect_bt.settings import Settings

    for sentence in list_exposure_warnings(Settings(), store):
        terminal.warn(sentence)


def _has_cache(document: dict[str, Any]) -> bool:
    """Return whether the job has a training cache. The job document does not contain this."""
    from prefect_bt.ledger.opening import load_definition, open_ledger

    record = open_ledger(document.get("store")).get_job(str(document["id"]))
    cache = load_definition(record).job.runtime.cache_config
    return cache is not None and cache.enabled


def _print_run_url(
    terminal: Terminal, ledger: Ledger, record: JobRecord, *, document: str | None
) -> None:
    """The run's page, if it could not be told when the job was created."""
    runs = ledger.list_runs(record.id)
    if not document and runs and runs[-1].url:
        terminal.info(f"  UI:      {runs[-1].url}")


def _server_ui_url() -> str:
    """The UI's address: a job in a process of its own has no run yet, so no page."""
    from prefect_bt.local_server.discovery import read_server
    from prefect_bt.settings import Settings

    api = os.environ.get("PREFECT_API_URL") or ""
    known = read_server(Settings().state_dir) or {}
    return api.removesuffix("/").removesuffix("/api") or str(known.get("ui_url") or "")


def _follow_job(terminal: Terminal, document: dict[str, Any], staying: FollowOptions) -> int:
    from prefect_bt.jobs.job_json import job_document
    from prefect_bt.ledger.opening import open_ledger

    ledger = open_ledger(document.get("store"))
    record = ledger.get_job(str(document["id"]))
    stay = _tail_job if staying.tail else wait_for_job
    try:
        state = stay(terminal, ledger, record)
        _print_run_url(terminal, ledger, record, document=document.get("flow_run_url"))
    finally:
        # Also when Ctrl-C ended the staying: the job exists, and its id is in the document.
        if terminal.machine_readable:
            terminal.print_json({**document, **job_document(ledger, record)})
    return exit_code(state) if staying.wait else OK


def _tail_job(terminal: Terminal, ledger: Ledger, record: JobRecord) -> JobState:
    """As `logs --tail`; beside the result where that is a document."""
    from prefect_bt.cli.logs.lines import choose_deduplicator, should_use_color
    from prefect_bt.logs.job_reader import LineFilter

    coloured = should_use_color() and not terminal.machine_readable
    shown = LogDisplayOptions(
        choose_deduplicator(record, documents=terminal.machine_readable), use_color=coloured
    )
    put = sys.stderr.write if terminal.machine_readable else write_stdout
    return tail_logs(terminal, ledger, record, LineFilter(levels=coloured), shown, writer=put)
