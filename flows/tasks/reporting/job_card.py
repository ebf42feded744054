"""Render the job's card in Markdown: state, resources, checkpoints, links. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

from prefect_bt.checkpoints.uncommitted import commit_command
from prefect_bt.jobs.metrics.run_summary import format_goodput, format_training
from prefect_bt.jobs.provenance import format_client, format_git
from prefect_bt.ledger.states import JobState
from prefect_bt.text.quantities import format_elapsed, format_size

_SHOWN_CHECKPOINTS: Final = 20


def render_card(document: dict[str, Any], definition: dict[str, Any], *, address: str = "") -> str:
    """Return the card of a job.

    `document` is made by jobs.job_document; `definition` is the stored project document. `address`
    is where the model is served, for a job that runs an inference server.
    """
    project = document["training_project"]["name"]
    lines = [
        f"# {project} / {document['name']}",
        "",
        f"**{document['current_status']}**{_status_cause(document)} · job `{document['id']}` · "
        f"{document['instance_type']['name']} · {document['substrate']}",
        "",
    ]
    if document.get("error_message"):
        lines += [f"> {_escape_cell(document['error_message'])}", ""]
    for warning in document["warnings"]:
        lines += [f"> **Warning:** {_escape_cell(warning)}", ""]
    for advice in document.get("advice") or ():
        lines += [f"> **Advice:** {_escape_cell(advice['text'])}", ""]
    lines += _links(document, address)
    lines += _progress(document)
    lines += _provenance(document.get("truss_user_env") or {})
    lines += [*_attempts(document), *_nodes(document), *_weights(document)]
    lines += [
        *_checkpoints(document),
        *_uncommitted(document),
        *_definition(definition),
        *_commands(document),
    ]
    return "\n".join(lines)


def _progress(document: dict[str, Any]) -> list[str]:
    """Return the last training values and where the time went."""
    training: dict[str, Any] = document.get("training") or {}
    labels = {
        "Training": format_training(training),
        "Loss": training.get("curve"),
        "Goodput": format_goodput(document.get("goodput")),
    }
    lines = [f"{label}: {_escape_cell(text)}  " for label, text in labels.items() if text]
    return [*lines, ""] if lines else []


def _uncommitted(document: dict[str, Any]) -> list[str]:
    """Return the checkpoints that were left on the nodes, and how to commit them."""
    found: list[dict[str, Any]] = document.get("uncommitted") or []
    rows = [
        f"| {one['rank']} | {_escape_cell(one['checkpoint_id'])} | {_escape_cell(one['why'])} | "
        f"{_escape_cell(one['kept_in'] or 'deleted with its pod')} |"
        for one in found
    ]
    command = f"`{commit_command(document['id'])} NAME` commits one as it is."
    kept = any(one["kept_in"] for one in found)
    names = "rank | checkpoint | why | kept in"
    return _table("Not committed", names, rows, ["", command] if kept else [])


def _status_cause(document: dict[str, Any]) -> str:
    """Return ` (user: command failed)`, which follows the state of a failed job."""
    failed = document.get("error_message") and document["attempts"]
    cause = _format_cause(document["attempts"][-1]) if failed else ""
    return f" ({cause})" if cause else ""


def _links(document: dict[str, Any], address: str) -> list[str]:
    links = [f"[Run]({document['flow_run_url']})"] if document.get("flow_run_url") else []
    links += [f"serves at <{address}>"] if address else []
    return [" · ".join(links), ""] if links else []


def _provenance(provenance: dict[str, Any]) -> list[str]:
    """Return which code the job was made from, and by which client."""
    told = {"Git": format_git(provenance), "Pushed from": format_client(provenance)}
    lines = [f"{label}: {_escape_cell(text)}  " for label, text in told.items() if text]
    return [*lines, ""] if lines else []


def _attempts(document: dict[str, Any]) -> list[str]:
    rows = [
        f"| {a['attempt']} | {a['status']} | {_duration(a)} | {_format_cause(a)} | "
        f"{_escape_cell(a.get('message'))} |"
        for a in document["attempts"]
    ]
    return _table("Attempts", "# | ended | took | cause | why", rows, _next_attempt(document))


def _table(title: str, names: str, rows: Sequence[str], more: Sequence[str] = ()) -> list[str]:
    """Return a section with a table, and `more` lines below it; nothing for no rows."""
    line = "|---" * len(names.split("|")) + "|"
    return [f"## {title}", "", f"| {names} |", line, *rows, *more, ""] if rows else []


def _format_cause(attempt: dict[str, Any]) -> str:
    """Return `infrastructure: killed`: the failure's retry budget and its cause."""
    told = [attempt.get("failure"), attempt.get("cause")]
    return ": ".join(dict.fromkeys(str(word).replace("_", " ") for word in told if word))


def _next_attempt(document: dict[str, Any]) -> list[str]:
    """Return why another attempt follows, while it has not begun."""
    events: list[dict[str, Any]] = document.get("events") or [{}]
    waits = events[-1].get("state") == JobState.CREATED.value
    return ["", _escape_cell(events[-1].get("message"))] if waits else []


def _escape_cell(text: str | None) -> str:
    """Return the text on one line, without characters that end a cell."""
    return " ".join((text or "").split()).replace("|", "\\|")


def _nodes(document: dict[str, Any]) -> list[str]:
    """Return the nodes of the newest attempt, all of which run on its host."""
    if not document["attempts"]:
        return []
    newest = document["attempts"][-1]
    ended = {node["rank"]: node for node in newest.get("nodes") or ()}
    found: dict[str, Any] = document.get("resources") or {}
    resources = found.get("summary")
    rows = [
        f"| {rank} | {newest.get('host') or ''} | {_escape_cell(resources)} | "
        f"{_format_node_end(ended.get(rank))} |"
        for rank in range(document["node_count"])
    ]
    return _table(f"Nodes of attempt {newest['attempt']}", "rank | host | resources | ended", rows)


def _format_node_end(node: dict[str, Any] | None) -> str:
    if node is None:
        return ""
    code = node["exit_code"]
    told = ["" if code is None else f"exit code {code}", node.get("reason")]
    return _escape_cell(", ".join(word for word in told if word))


def _weights(document: dict[str, Any]) -> list[str]:
    rows = [
        f"| {_escape_cell(w['source'].partition('?')[0])} | {w['revision'] or 'none yet'} | "
        f"{format_size(w['bytes']) if w['bytes'] is not None else ''} | "
        f"{_escape_cell(w['mount_location'])} |"
        for w in document.get("weights") or ()
    ]
    return _table("Weights", "source | revision | size | mounted at", rows)


def _checkpoints(document: dict[str, Any]) -> list[str]:
    rows = [
        f"| {_escape_cell(c['checkpoint_id'])} | {c.get('checkpoint_type') or ''} | "
        f"{format_size(c['size_bytes'])} | {c['created_at']} | "
        f"{'' if c.get('lag') is None else format_elapsed(c['lag'])} |"
        for c in document["checkpoints"]
    ]
    earlier = len(rows) - _SHOWN_CHECKPOINTS
    more = ["", f"{earlier} earlier ones: `prefect-bt checkpoints list`"] if earlier > 0 else []
    shown = rows[-_SHOWN_CHECKPOINTS:]
    return _table("Checkpoints", "name | type | size | committed | lag", shown, more)


def _definition(definition: dict[str, Any]) -> list[str]:
    job = definition.get("job", {})
    commands = "\n".join(job.get("runtime", {}).get("start_commands", []))
    image = job.get("image", {}).get("base_image", "")
    return ["## Definition", "", f"Image: `{image}`", "", "```sh", commands, "```", ""]


def _commands(document: dict[str, Any]) -> list[str]:
    job = f"--job-id {document['id']}"
    lines = ["## Commands", "", f"Store: `{document['store']}`", ""]
    return [*lines, "```sh", f"prefect-bt logs {job}", f"prefect-bt view {job}", "```"]


def _duration(attempt: dict[str, Any]) -> str:
    if not attempt.get("ended_at"):
        return "running"
    began, ended = (datetime.fromisoformat(attempt[key]) for key in ("started_at", "ended_at"))
    return f"{(ended - began).total_seconds():.0f} s"
