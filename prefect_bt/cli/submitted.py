"""What push and recreate say and do once a job was accepted."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from prefect_bt.cli import attach
from prefect_bt.cli.render_workspace import show_workspace
from prefect_bt.cli.terminal import OK, Terminal, write
from prefect_bt.records import JobState

if TYPE_CHECKING:
    from prefect_bt.ledger import Ledger
    from prefect_bt.records import JobRecord


@dataclass(frozen=True)
class Staying:
    """Whether to stay with the job, and how the result is printed."""

    tail: bool = False
    wait: bool = False
    output: str = "cli-table"


def present(terminal: Terminal, document: dict[str, Any], staying: Staying) -> int:
    """Say that the job exists and how to go on; then stay with it if that was asked for."""
    say_created(terminal, document)
    if not (staying.tail or staying.wait):
        if terminal.documents:
            terminal.document(document)
        return OK
    return _stay(terminal, document, staying)


def say_created(terminal: Terminal, document: dict[str, Any]) -> None:
    """The success block of §12; the notes of the plan, each once."""
    job_id = str(document["id"])
    for note in document.get("notes") or ():
        terminal.note(f"note: {note}", style="dim")
    warn_of_open_folders(terminal, document.get("store"))
    if document.get("current_status") == JobState.PENDING.value:
        words = f"Training job {job_id} is waiting for capacity, that is for a worker to take it."
        terminal.say(words, style="yellow")
    else:
        terminal.say("Training job successfully created!", style="green")
    name, project = document.get("name"), document["training_project"]["name"]
    team = document["training_project"].get("team_name")
    of_team = f", team {team}" if team else ""
    terminal.say(f"  Job:     {job_id} ({name}) of project {project}{of_team}")
    terminal.say(f"  Logs:    prefect-bt logs --job-id {job_id} --tail")
    terminal.say(f"  Details: prefect-bt view --job-id {job_id}")
    if workspace := document.get("workspace"):
        show_workspace(terminal, workspace)
    if _has_cache(document):
        terminal.say(f'  Cache:   prefect-bt cache summarize "{project}"')
    page = document.get("flow_run_url") or _server_page()
    terminal.say(
        f"  UI:      {page or 'none; `prefect-bt up` starts one, and makes pushes faster'}"
    )


def warn_of_open_folders(terminal: Terminal, store: str | None = None) -> None:
    """Warn of our folders that other users of the machine can enter, and say how to close them."""
    from prefect_bt.host.volumes import open_folders
    from prefect_bt.settings import Settings

    for sentence in open_folders(Settings(), store):
        terminal.warn(sentence)


def _has_cache(document: dict[str, Any]) -> bool:
    """Whether the job was pushed with the training cache; the document of §13 does not say."""
    from prefect_bt.jobs import load_definition, open_ledger

    record = open_ledger(document.get("store")).job(str(document["id"]))
    cache = load_definition(record).job.runtime.cache_config
    return cache is not None and cache.enabled


def _say_page(terminal: Terminal, ledger: Ledger, record: JobRecord, *, known: str | None) -> None:
    """The run's page, if it could not be told when the job was created."""
    runs = ledger.runs_of_job(record.id)
    if not known and runs and runs[-1].url:
        terminal.note(f"  UI:      {runs[-1].url}")


def _server_page() -> str:
    """The UI's address: a job in a process of its own has no run yet, so no page."""
    from prefect_bt.servers import read_server
    from prefect_bt.settings import Settings

    api = os.environ.get("PREFECT_API_URL") or ""
    known = read_server(Settings().state_dir) or {}
    return api.removesuffix("/").removesuffix("/api") or str(known.get("ui_url") or "")


def _stay(terminal: Terminal, document: dict[str, Any], staying: Staying) -> int:
    from prefect_bt.jobs import job_document, open_ledger

    ledger = open_ledger(document.get("store"))
    record = ledger.job(str(document["id"]))
    stay = _tail if staying.tail else attach.wait
    try:
        state = stay(terminal, ledger, record)
        _say_page(terminal, ledger, record, known=document.get("flow_run_url"))
    finally:
        # Also when Ctrl-C ended the staying: the job exists, and its id is in the document.
        if terminal.documents:
            terminal.document({**document, **job_document(ledger, record)})
    return attach.exit_code(state) if staying.wait else OK


def _tail(terminal: Terminal, ledger: Ledger, record: JobRecord) -> JobState:
    """As `logs --tail`; beside the result where that is a document."""
    from prefect_bt.cli.loglines import choose_folder, is_coloured
    from prefect_bt.joblogs import LineFilter

    coloured = is_coloured() and not terminal.documents
    shown = attach.Shown(choose_folder(record, documents=terminal.documents), coloured=coloured)
    put = sys.stderr.write if terminal.documents else write
    return attach.tail(terminal, ledger, record, LineFilter(levels=coloured), shown, put=put)
