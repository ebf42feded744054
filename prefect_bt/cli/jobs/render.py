"""Render projects and jobs as tables. Times are local."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from prefect_bt.cli.ui.tables import (
    Cell,
    Column,
    Document,
    format_local_time,
    format_number,
    make_link_formatter,
    show_fields,
    show_table,
)
from prefect_bt.cli.ui.terminal import Terminal
from prefect_bt.jobs.provenance import format_client, format_git
from prefect_bt.ledger.states import JobState
from prefect_bt.text.durations import format_duration

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
        terminal.echo("No training projects yet. Start one: prefect-bt push config.py")
        return
    link = make_link_formatter(terminal)
    teams = [Column("Team", lambda p: p.get("team_name") or "")]
    columns: list[Column] = [
        Column("Project ID", lambda p: p["id"]),
        Column("Name", lambda p: p["name"]),
        *(teams if any(p.get("team_name") for p in projects) else ()),
        Column("Created", lambda p: format_local_time(p["created_at"])),
        Column("Last Modified", lambda p: format_local_time(p["updated_at"])),
        Column("Latest Job ID", lambda p: _latest(p).get("id", "")),
        Column("Latest Job Status", lambda p: _status(_latest(p))),
        Column("Checkpoint Sync", lambda p: _sync(_latest(p)) or ""),
        Column("Status Page", lambda p: link(_latest(p).get("flow_run_url"))),
    ]
    spare = ["Checkpoint Sync", "Last Modified", "Created", "Project ID", "Status Page"]
    show_table(terminal, "Training Projects", columns, projects, optional=spare)


def show_jobs(terminal: Terminal, jobs: Sequence[Document], *, title: str) -> None:
    link = make_link_formatter(terminal)
    columns: list[Column] = [
        *_JOB_COLUMNS,
        Column("Status", _status),
        *_CAPACITY_COLUMNS,
        Column("Created By", _user),
        Column("Created", lambda j: format_local_time(j["created_at"])),
        Column("Job Page", lambda j: link(j.get("flow_run_url"))),
    ]
    spare = ["Capacity Type", "Created By", "Instance Type", "Created", "Job Name"]
    show_table(terminal, title, columns, jobs, optional=spare)


def show_queued(terminal: Terminal, jobs: Sequence[Document]) -> None:
    link = make_link_formatter(terminal)
    columns: list[Column] = [
        *_JOB_COLUMNS,
        *_CAPACITY_COLUMNS,
        Column("Priority", lambda j: str(j["priority"])),
        Column("Created By", _user),
        Column("Queued At", lambda j: format_local_time(j["created_at"])),
        Column("Job Page", lambda j: link(j.get("flow_run_url"))),
    ]
    spare = ["Capacity Type", "Created By", "Instance Type", "Job Name"]
    show_table(terminal, "Queued Training Jobs", columns, jobs, optional=spare)


def show_job(terminal: Terminal, job: Document) -> None:
    """One job, field by field, then its attempts."""
    checkpoints = ", ".join(c["checkpoint_id"] for c in job.get("checkpoints") or ())
    error = job.get("error_message")
    fields: list[tuple[str, Cell | None]] = [
        ("Job Name", job.get("name") or ""),
        ("Job ID", job["id"]),
        ("Project ID", job["training_project"]["id"]),
        ("Project Name", job["training_project"]["name"]),
        ("Team", job["training_project"].get("team_name")),
        ("Status", _status(job)),
        ("Instance Type", job["instance_type"]["name"]),
        ("Priority", str(job["priority"])),
        ("Availability Model", job["availability_model"]),
        ("Created By", _user(job)),
        ("Git", format_git(job.get("truss_user_env") or {}) or None),
        ("Pushed From", format_client(job.get("truss_user_env") or {}) or None),
        ("Created", format_local_time(job["created_at"])),
        ("Last Modified", format_local_time(job["updated_at"])),
        ("Job Page", _format_run_url(terminal, job)),
        ("Maximum Run Time", _run_time(job)),
        ("Substrate", job.get("substrate") or ""),
        ("Each Node", _node_resources(job)),
        ("Image", _image(job)),
        ("Store", job.get("store") or ""),
        ("Checkpoint Sync", _sync(job)),
        ("Not Synced", job.get("checkpoint_sync_error")),
        ("Error Message", Text(error, style="red") if error else None),
        ("Checkpoints", checkpoints or None),
        ("Drill", drill["why"] if (drill := job.get("drill")) else None),
        *(
            (
                f"Weights, {weights['mount_location']}",
                f"{weights['source'].partition('?')[0]} at "
                f"{weights['revision'] or 'no revision yet'}",
            )
            for weights in job.get("weights") or ()
        ),
        *(
            (f"Upload, rank {upload['rank']}", str(upload["summary"]))
            for upload in job.get("uploads") or ()
        ),
    ]
    show_fields(terminal, f"Training Job: {job['id']}", fields)
    _show_attempts(terminal, job.get("attempts") or ())


def _show_attempts(terminal: Terminal, attempts: Sequence[Document]) -> None:
    if not attempts:
        return
    columns: list[Column] = [
        Column("Attempt", lambda a: str(a["attempt"])),
        Column("Status", lambda a: a["status"]),
        Column("Started", lambda a: format_local_time(a["started_at"])),
        Column("Ended", lambda a: format_local_time(a.get("ended_at"))),
        Column("Exit Code", lambda a: format_number(a.get("exit_code"))),
        Column("Failed Rank", lambda a: format_number(a.get("failed_rank"))),
        Column("Message", lambda a: a.get("message") or "", min_width=30),
    ]
    terminal.echo()
    spare = ["Failed Rank", "Exit Code", "Ended"]
    show_table(terminal, "Attempts", columns, attempts, optional=spare)


# -- cells ----------------------------------------------------------------------------------


def _capacity_type(job: Document) -> str:
    return "Spot" if job["availability_model"] == "spot" else "On-demand"


_JOB_COLUMNS: list[Column] = [
    Column("Job ID", lambda j: j["id"]),
    Column("Job Name", lambda j: j.get("name") or ""),
    Column("Project", lambda j: j["training_project"]["name"]),
]
_CAPACITY_COLUMNS: list[Column] = [
    Column("Instance Type", lambda j: j["instance_type"]["name"]),
    Column("Capacity Type", _capacity_type),
]


def _run_time(job: Document) -> str | None:
    if not job.get("max_run_time"):
        return None
    limit, used = format_duration(job["max_run_time"]), job.get("run_time")
    return f"{limit}; ended attempts used {format_duration(used)}" if used else limit


def _sync(job: Document) -> str | None:
    """Return the status; a failed or incomplete upload has none."""
    failed = "INCOMPLETE" if job.get("checkpoint_sync_error") else None
    return job.get("checkpoint_sync_status") or failed


def _latest(project: Document) -> Document:
    return project.get("latest_job") or {}


def _format_run_url(terminal: Terminal, job: Document) -> Cell:
    """The address itself: there is room for it here. A job no run has taken up has none yet."""
    if job.get("flow_run_id") and not job.get("flow_run_url"):
        return "none: no Prefect server was up; `prefect-bt up` starts one, with a UI"
    return make_link_formatter(terminal)(job.get("flow_run_url"), short=False)


def _node_resources(job: Document) -> str | None:
    """Return what a node gets, and why; None for documents of older releases."""
    resources: Document = job.get("resources") or {}
    return resources.get("summary")


def _image(job: Document) -> str | None:
    """What the nodes ran in; documents of older releases do not say."""
    image: Document = job.get("image") or {}
    return image.get("pinned")


def _user(job: Document) -> str:
    user: Document = job.get("user") or {}
    return user.get("email") or ""


def _status(job: Document) -> Text:
    status = str(job.get("current_status") or "")
    style = _STYLES.get(JobState(status), "yellow") if status in list(JobState) else ""
    return Text(status, style=style)
