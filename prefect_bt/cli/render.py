"""How documents look: tables for people, csv and JSON shapes for programs (§12).

Tables are boxed on a terminal and plain columns elsewhere, where nothing is cut. Times are local.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from prefect_bt.cli.terminal import Terminal
from prefect_bt.plan import GangPlan, NodePlan
from prefect_bt.records import JobState
from prefect_bt.workspace.limits import format_bytes

Document = dict[str, Any]
Cell = str | Text
Column = tuple[str, Callable[[Document], Cell]]

_STYLES = {
    JobState.COMPLETED: "green",
    JobState.RUNNING: "cyan",
    JobState.FAILED: "red",
    JobState.DEPLOY_FAILED: "red",
}


# -- projects and jobs ----------------------------------------------------------------------


def show_projects(terminal: Terminal, projects: Sequence[Document]) -> None:
    """Newest at the bottom, where the eye is."""
    if not projects:
        terminal.say("No training projects yet. Start one: prefect-bt push config.py")
        return
    link = _link(terminal)
    columns: list[Column] = [
        ("Project ID", lambda p: p["id"]),
        ("Name", lambda p: p["name"]),
        ("Created", lambda p: _time(p["created_at"])),
        ("Last Modified", lambda p: _time(p["updated_at"])),
        ("Latest Job ID", lambda p: _latest(p).get("id", "")),
        ("Latest Job Status", lambda p: _status(_latest(p))),
        ("Checkpoint Sync", lambda p: _latest(p).get("checkpoint_sync_status") or ""),
        ("Status Page", lambda p: link(_latest(p).get("flow_run_url"))),
    ]
    _show(terminal, "Training Projects", columns, projects)


def show_jobs(terminal: Terminal, jobs: Sequence[Document], *, title: str) -> None:
    link = _link(terminal)
    columns: list[Column] = [
        *_WHICH,
        ("Status", _status),
        *_WHERE,
        ("Created By", _user),
        ("Created", lambda j: _time(j["created_at"])),
        ("Job Page", lambda j: link(j.get("flow_run_url"))),
    ]
    _show(terminal, title, columns, jobs)


def show_queued(terminal: Terminal, jobs: Sequence[Document]) -> None:
    link = _link(terminal)
    columns: list[Column] = [
        *_WHICH,
        *_WHERE,
        ("Priority", lambda j: str(j["priority"])),
        ("Created By", _user),
        ("Queued At", lambda j: _time(j["created_at"])),
        ("Job Page", lambda j: link(j.get("flow_run_url"))),
    ]
    _show(terminal, "Queued Training Jobs", columns, jobs)


def show_job(terminal: Terminal, job: Document) -> None:
    """One job, field by field, then its attempts."""
    checkpoints = ", ".join(c["checkpoint_id"] for c in job.get("checkpoints") or ())
    error = job.get("error_message")
    fields: list[tuple[str, Cell | None]] = [
        ("Job Name", job.get("name") or ""),
        ("Job ID", job["id"]),
        ("Project ID", job["training_project"]["id"]),
        ("Project Name", job["training_project"]["name"]),
        ("Status", _status(job)),
        ("Instance Type", job["instance_type"]["name"]),
        ("Priority", str(job["priority"])),
        ("Availability Model", job["availability_model"]),
        ("Created By", _user(job)),
        ("Created", _time(job["created_at"])),
        ("Last Modified", _time(job["updated_at"])),
        ("Job Page", _link(terminal)(job.get("flow_run_url"))),
        ("Substrate", job.get("substrate") or ""),
        ("Store", job.get("store") or ""),
        ("Checkpoint Sync", job.get("checkpoint_sync_status")),
        ("Error Message", Text(error, style="red") if error else None),
        ("Checkpoints", checkpoints or None),
    ]
    table = _table(terminal, f"Training Job: {job['id']}", ["Field", "Value"], header=False)
    for name, value in fields:
        if value is not None:
            table.add_row(Text(name, style="bold cyan"), value)
    terminal.show(table)
    _show_attempts(terminal, job.get("attempts") or ())


def _show_attempts(terminal: Terminal, attempts: Sequence[Document]) -> None:
    if not attempts:
        return
    columns: list[Column] = [
        ("Attempt", lambda a: str(a["attempt"])),
        ("Status", lambda a: a["status"]),
        ("Started", lambda a: _time(a["started_at"])),
        ("Ended", lambda a: _time(a.get("ended_at"))),
        ("Exit Code", lambda a: _number(a.get("exit_code"))),
        ("Failed Rank", lambda a: _number(a.get("failed_rank"))),
        ("Message", lambda a: a.get("message") or ""),
    ]
    terminal.say()
    _show(terminal, "Attempts", columns, attempts)


# -- checkpoints ----------------------------------------------------------------------------


def show_checkpoints(terminal: Terminal, job_id: str, checkpoints: Sequence[Document]) -> None:
    columns: list[Column] = [
        ("Job ID", lambda _: job_id),
        ("Checkpoint ID", lambda c: str(c["id"])),
        ("Checkpoint Name", lambda c: c["checkpoint_id"]),
        ("Type", lambda c: c.get("checkpoint_type") or ""),
        ("Base Model", lambda c: c.get("base_model") or ""),
        ("Size", lambda c: format_bytes(c["size_bytes"])),
        ("Created At", lambda c: _time(c["created_at"])),
    ]
    _show(terminal, f"Checkpoints for job: {job_id}", columns, checkpoints)


def show_files(terminal: Terminal, name: str, files: Sequence[Document]) -> None:
    """The files of one checkpoint."""
    columns: list[Column] = [
        ("Rank", lambda f: str(f["node_rank"])),
        ("File", lambda f: f["relative_file_name"]),
        ("Size", lambda f: format_bytes(f["size_bytes"])),
        ("URL", lambda f: f["url"]),
    ]
    terminal.say()
    _show(terminal, f"Files of checkpoint: {name}", columns, files)


def checkpoints_document(job_id: str, checkpoints: Sequence[Document]) -> Document:
    """The JSON of `checkpoints list` (§12)."""
    return {
        "job_id": job_id,
        "total_checkpoints": len(checkpoints),
        "checkpoints": [_checkpoint(job_id, checkpoint) for checkpoint in checkpoints],
    }


def checkpoints_csv(job_id: str, checkpoints: Sequence[Document]) -> str:
    """One line a checkpoint, its size in bytes and in words."""
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(_CSV_COLUMNS)
    for checkpoint in checkpoints:
        item = _checkpoint(job_id, checkpoint)
        rows.writerow(["" if item[name] is None else item[name] for name in _CSV_COLUMNS.values()])
    return text.getvalue()


_CSV_COLUMNS = {
    "Job ID": "job_id",
    "Checkpoint ID": "id",
    "Checkpoint Name": "checkpoint_id",
    "Type": "checkpoint_type",
    "Base Model": "base_model",
    "Size (bytes)": "size_bytes",
    "Size (human readable)": "size_human_readable",
    "Created At": "created_at",
}


def _checkpoint(job_id: str, checkpoint: Document) -> Document:
    lora = checkpoint.get("lora_adapter_config")
    return {
        "job_id": job_id,
        "id": checkpoint["id"],
        "checkpoint_id": checkpoint["checkpoint_id"],
        "checkpoint_type": checkpoint.get("checkpoint_type"),
        "base_model": checkpoint.get("base_model"),
        "size_bytes": checkpoint["size_bytes"],
        "size_human_readable": format_bytes(checkpoint["size_bytes"]),
        "created_at": checkpoint["created_at"],
        **({"lora_adapter_config": lora} if lora else {}),
    }


# -- plans ----------------------------------------------------------------------------------


def show_plan(terminal: Terminal, plan: GangPlan) -> None:
    """What a push would run, for a person; `-o json` has all of it."""
    leader = plan.nodes[0]
    terminal.say(f"Dry run of job {plan.job_name} of project {plan.project_name}", style="bold")
    terminal.say(f"  Substrate: {plan.substrate}")
    terminal.say(f"  Image:     {leader.image.reference}")
    terminal.say(f"  Workspace: {format_bytes(leader.workspace.size)}")
    terminal.say(f"  Secrets:   {', '.join(plan.secret_names) or 'none'}")
    for number, command in enumerate(leader.commands, start=1):
        terminal.say(f"  Command {number}: {command}")
    terminal.say()
    _show(terminal, "Nodes", _NODE_COLUMNS, [_node_row(node) for node in plan.nodes])
    terminal.say()
    _show(terminal, "Environment", _NAME_VALUE, _environment(plan))
    terminal.say()
    _show_volumes(terminal, plan)
    for note in plan.notes:
        terminal.say(f"note: {note}")
    terminal.say("Nothing was written or started.", style="yellow")


_NODE_COLUMNS: list[Column] = [
    (name, lambda row, name=name: row[name]) for name in ("Rank", "CPUs", "Memory", "GPUs", "Grace")
]
_NAME_VALUE: list[Column] = [("Name", lambda v: v["name"]), ("Value", lambda v: v["value"])]


def _node_row(node: NodePlan) -> Document:
    needs = node.resources
    return {
        "Rank": str(node.rank),
        "CPUs": str(needs.cpus),
        "Memory": format_bytes(needs.memory),
        "GPUs": f"{needs.gpus} {needs.gpu_type}".strip(),
        "Grace": f"{node.grace:g} s",
    }


def _environment(plan: GangPlan) -> list[Document]:
    """The leader's variables; those that differ from node to node say so."""
    leader = plan.nodes[0]
    values = [
        {
            "name": name,
            "value": " / ".join(dict.fromkeys(node.environment[name] for node in plan.nodes)),
        }
        for name in sorted(leader.environment)
    ]
    secrets = sorted(leader.secret_environment.items())
    return values + [{"name": name, "value": f"<secret {ref}>"} for name, ref in secrets]


def _show_volumes(terminal: Terminal, plan: GangPlan) -> None:
    sources = {weights.key: weights.source for weights in plan.weights}
    rows = [
        {
            "path": volume.target,
            "kind": volume.kind.value.replace("_", " "),
            "of": sources.get(volume.key, volume.key),
            "mode": "read-only" if volume.read_only else "",
        }
        for volume in plan.nodes[0].volumes
    ]
    columns: list[Column] = [
        ("Path", lambda v: v["path"]),
        ("Kind", lambda v: v["kind"]),
        ("Of", lambda v: v["of"]),
        ("Mode", lambda v: v["mode"]),
    ]
    _show(terminal, "Volumes", columns, rows)


# -- cells and tables -----------------------------------------------------------------------


def _capacity_type(job: Document) -> str:
    return "Spot" if job["availability_model"] == "spot" else "On-demand"


_WHICH: list[Column] = [
    ("Job ID", lambda j: j["id"]),
    ("Job Name", lambda j: j.get("name") or ""),
    ("Project", lambda j: j["training_project"]["name"]),
]
_WHERE: list[Column] = [
    ("Instance Type", lambda j: j["instance_type"]["name"]),
    ("Capacity Type", _capacity_type),
]


def _latest(project: Document) -> Document:
    return project.get("latest_job") or {}


def _user(job: Document) -> str:
    user: Document = job.get("user") or {}
    return user.get("email") or ""


def _status(job: Document) -> Text:
    status = str(job.get("current_status") or "")
    style = _STYLES.get(JobState(status), "yellow") if status in list(JobState) else ""
    return Text(status, style=style)


def _number(value: int | None) -> str:
    return "" if value is None else str(value)


def _time(iso: str | None) -> str:
    return f"{datetime.fromisoformat(iso).astimezone():%Y-%m-%d %H:%M:%S}" if iso else ""


def _link(terminal: Terminal) -> Callable[[str | None], Text]:
    """A word to click on in a terminal, the address itself elsewhere."""

    def link(url: str | None) -> Text:
        if not url:
            return Text("")
        return Text("link", style=f"link {url}") if terminal.out.is_terminal else Text(url)

    return link


def _show(
    terminal: Terminal, title: str, columns: Sequence[Column], rows: Sequence[Document]
) -> None:
    table = _table(terminal, title, [name for name, _ in columns])
    for row in rows:
        table.add_row(*(_cell(read(row)) for _, read in columns))
    terminal.show(table)


def _table(terminal: Terminal, title: str, columns: Sequence[str], *, header: bool = True) -> Table:
    boxed = terminal.out.is_terminal
    table = Table(
        title=Text(title, style="bold magenta"),
        title_justify="left",
        box=box.ROUNDED if boxed else None,
        border_style="blue",
        header_style="bold magenta",
        show_header=header,
        padding=(0, 1) if boxed else (0, 2, 0, 0),
    )
    for name in columns:
        table.add_column(name, overflow="fold")
    return table


def _cell(value: Cell) -> Text:
    # Names are free text: brackets in them are no markup.
    return value if isinstance(value, Text) else Text(value)
