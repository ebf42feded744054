"""The job's card in Markdown: what was asked, how each attempt went, what is safe. Pure."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from prefect_bt.jobs.provenance import format_client, format_git
from prefect_bt.ledger.states import JobState


def render_card(document: dict[str, Any], definition: dict[str, Any]) -> str:
    """`document` as jobs.job_document gives it; `definition` is the stored project document."""
    project = document["training_project"]["name"]
    lines = [
        f"# {project} / {document['name']}",
        "",
        f"**{document['current_status']}** · job `{document['id']}` · "
        f"{document['instance_type']['name']} · {document['substrate']}",
        "",
    ]
    if document.get("error_message"):
        lines += [f"> {document['error_message']}", ""]
    lines += _provenance(document.get("truss_user_env") or {})
    lines += [*_attempts(document), *_checkpoints(document), *_definition(definition)]
    lines += [
        f"Store: `{document['store']}`  ",
        f"Logs: `prefect-bt logs --job-id {document['id']}`",
    ]
    return "\n".join(lines)


def _provenance(provenance: dict[str, Any]) -> list[str]:
    """Which code the job was made from, and by which client."""
    told = {"Git": format_git(provenance), "Pushed from": format_client(provenance)}
    lines = [f"{label}: {_escape_cell(text)}  " for label, text in told.items() if text]
    return [*lines, ""] if lines else []


def _attempts(document: dict[str, Any]) -> list[str]:
    rows = [
        f"| {a['attempt']} | {a['status']} | {_duration(a)} | {_format_cause(a)} | "
        f"{_escape_cell(a.get('message'))} |"
        for a in document["attempts"]
    ]
    if not rows:
        return []
    head = ["| # | ended | took | cause | why |", "|---|---|---|---|---|"]
    return ["## Attempts", "", *head, *rows, *_render_next_attempt(document), ""]


def _format_cause(attempt: dict[str, Any]) -> str:
    """`infrastructure: killed`: the retry budget it draws on, and what it was."""
    told = [attempt.get("failure"), attempt.get("cause")]
    return ": ".join(dict.fromkeys(str(word).replace("_", " ") for word in told if word))


def _render_next_attempt(document: dict[str, Any]) -> list[str]:
    """Why another attempt follows, while it has not begun."""
    events: list[dict[str, Any]] = document.get("events") or [{}]
    waits = events[-1].get("state") == JobState.CREATED.value
    return ["", _escape_cell(events[-1].get("message"))] if waits else []


def _escape_cell(text: str | None) -> str:
    """On one line, without what ends a cell."""
    return " ".join((text or "").split()).replace("|", "\\|")


def _checkpoints(document: dict[str, Any]) -> list[str]:
    rows = [
        f"| {c['checkpoint_id']} | {c.get('checkpoint_type') or ''} | "
        f"{c['size_bytes'] / 1e6:.1f} MB | {c['created_at']} |"
        for c in document["checkpoints"]
    ]
    if not rows:
        return []
    head = ["| name | type | size | committed |", "|---|---|---|---|"]
    return ["## Checkpoints", "", *head, *rows, ""]


def _definition(definition: dict[str, Any]) -> list[str]:
    job = definition.get("job", {})
    commands = "\n".join(job.get("runtime", {}).get("start_commands", []))
    image = job.get("image", {}).get("base_image", "")
    return ["## Definition", "", f"Image: `{image}`", "", "```sh", commands, "```", ""]


def _duration(attempt: dict[str, Any]) -> str:
    if not attempt.get("ended_at"):
        return "running"
    began, ended = (datetime.fromisoformat(attempt[key]) for key in ("started_at", "ended_at"))
    return f"{(ended - began).total_seconds():.0f} s"
