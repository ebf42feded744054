"""Render projects and jobs as tables. Times are local."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from prefect_bt.checkpoints.uncommitted import commit_command
from prefect_bt.cli.ui.tables import (
    Column,
    Document,
    format_time,
    list_fields,
    show_fields,
    show_table,
)
from prefect_bt.cli.ui.terminal import Terminal
from prefect_bt.jobs.metrics.run_summary import format_class, format_goodput, format_training
from prefect_bt.jobs.provenance import format_client, format_git
from prefect_bt.ledger.states import JobState
from prefect_bt.text.durations import format_duration
from prefect_bt.text.quantities import format_elapsed

STATE_STYLES = {
    JobState.COMPLETED: "green",
    JobState.RUNNING: "cyan",
    JobState.FAILED: "red",
    JobState.DEPLOY_FAILED: "red",
}


def format_status(status: str | None) -> Text:
    known = status in list(JobState)
    return Text(status or "", style=STATE_STYLES.get(JobState(status), "yellow") if known else "")


def _format_capacity_type(model: str) -> str:
    return "Spot" if model == "spot" else "On-demand"


_TEAM = Column("Team", "team_name")
_PROJECT_COLUMNS = [
    Column("Project ID", "id", hide=4),
    Column("Name", "name", wrap=True),
    Column("Created", "created_at", format_time, hide=3),
    Column("Last Modified", "updated_at", format_time, hide=2),
    Column("Latest Job ID", "latest_job.id"),
    Column("Latest Job Status", "latest_job.current_status", format_status),
    Column("Checkpoint Sync", "latest_job", lambda job: _format_sync(job or {}) or "", hide=1),
    Column("Status Page", "latest_job.flow_run_url", link=True, hide=5),
]
_NAMES = [
    Column("Job ID", "id"),
    Column("Job Name", "name", wrap=True, hide=5),
    Column("Project", "training_project.name", wrap=True),
]
_CAPACITY = [
    Column("Instance Type", "instance_type.name", wrap=True, hide=3),
    Column("Capacity Type", "availability_model", _format_capacity_type, hide=1),
]
_OWNER = Column("Created By", "user.email", hide=2)
_PAGE = Column("Job Page", "flow_run_url", link=True, hide=6)
_JOB_COLUMNS = [
    *_NAMES,
    Column("Status", "current_status", format_status),
    *_CAPACITY,
    _OWNER,
    Column("Created", "created_at", format_time, hide=4),
    _PAGE,
]
_QUEUED_COLUMNS = [
    *_NAMES,
    *_CAPACITY,
    Column("Priority", "priority"),
    _OWNER,
    Column("Queued At", "created_at", format_time, hide=4),
    _PAGE,
]
_ATTEMPT_COLUMNS = [
    Column("Attempt", "attempt"),
    Column("Status", "status"),
    Column("Started", "started_at", format_time),
    Column("Ended", "ended_at", format_time, hide=3),
    Column("Exit Code", "exit_code", hide=2),
    Column("Failed Rank", "failed_rank", hide=1),
    Column("Message", "message", wrap=True),
]

_PHASE_COLUMNS = [
    Column("Phase", "class", format_class),
    Column("Attempt", "attempt"),
    Column("Began", "started_at", format_time, hide=1),
    Column("Took", "seconds", format_elapsed),
]


def show_projects(terminal: Terminal, projects: Sequence[Document], option: str) -> None:
    """Print the projects, the newest last."""
    if not projects:
        terminal.echo(f"No training projects yet. Start one: prefect-bt push config.py{option}")
        return
    columns = list(_PROJECT_COLUMNS)
    if any(project.get("team_name") for project in projects):
        columns.insert(2, _TEAM)
    show_table(terminal, "Training Projects", columns, projects)


def show_overview(terminal: Terminal, overview: Document, option: str) -> None:
    """Print the document of `view`: projects, queued jobs, active jobs."""
    show_projects(terminal, overview["training_projects"], option)
    if queued := overview["queued_jobs"]:
        terminal.echo()
        show_table(terminal, "Queued Training Jobs", _QUEUED_COLUMNS, queued)
        if more := overview["total_queued"] - len(queued):
            terminal.warn(f"{more} more in the queue. All: prefect-bt queue --all{option}")
    if active := overview["active_jobs"]:
        terminal.echo()
        show_table(terminal, "Active Training Jobs", _JOB_COLUMNS, active)
    if not queued and not active:
        terminal.echo()
        terminal.echo("No queued or active training jobs.", style="yellow")


def show_details(terminal: Terminal, document: Document) -> None:
    """Print one job in detail, several as a table."""
    jobs, total = document["training_jobs"], document["total_jobs"]
    if total == 1:
        show_job(terminal, jobs[0])
    else:
        show_table(terminal, "Training Job Details", _JOB_COLUMNS, jobs)
    if len(jobs) < total:
        terminal.warn(f"Showing the newest {len(jobs)} of {total} jobs. More: --limit N, or --all.")


def show_active(terminal: Terminal, jobs: Sequence[Document]) -> None:
    show_table(terminal, "Active Training Jobs", _JOB_COLUMNS, jobs)


def show_job(terminal: Terminal, job: Document) -> None:
    """Print one job field by field, then its attempts."""
    fields = list_fields(_JOB_FIELDS, job)
    for weights in job.get("weights") or ():
        source, revision = weights["source"].partition("?")[0], weights["revision"]
        name = f"Weights, {weights['mount_location']}"
        fields.append((name, f"{source} at {revision or 'no revision yet'}"))
    for upload in job.get("uploads") or ():
        fields.append((f"Upload, rank {upload['rank']}", str(upload["summary"])))
    fields += [("Warning", Text(text, style="yellow")) for text in job.get("warnings") or ()]
    for advice in job.get("advice") or ():
        fields.append(("Advice", Text(advice["text"], style="yellow")))
    show_fields(terminal, f"Training Job: {job['id']}", fields)
    if attempts := job.get("attempts"):
        terminal.echo()
        show_table(terminal, "Attempts", _ATTEMPT_COLUMNS, attempts)
    goodput: Document | None = job.get("goodput")
    if goodput is not None and goodput["phases"]:
        terminal.echo()
        show_table(terminal, "Phases", _PHASE_COLUMNS, goodput["phases"])


def _format_checkpoints(checkpoints: Sequence[Document]) -> str | None:
    return ", ".join(checkpoint["checkpoint_id"] for checkpoint in checkpoints) or None


def _format_run_time(job: Document) -> str | None:
    if not job.get("max_run_time"):
        return None
    limit, used = format_duration(job["max_run_time"]), job.get("run_time")
    return f"{limit}; ended attempts used {format_duration(used)}" if used else limit


def _format_sync(job: Document) -> str | None:
    """Return the status; a failed or incomplete upload has none."""
    failed = "INCOMPLETE" if job.get("checkpoint_sync_error") else None
    return job.get("checkpoint_sync_status") or failed


def _format_kept(job: Document) -> str | None:
    kept = dict.fromkeys(one["kept_in"] for one in job.get("uncommitted") or () if one["kept_in"])
    return ", ".join(kept) or None


def _format_commit_command(job: Document) -> str | None:
    return f"{commit_command(job['id'])} NAME" if _format_kept(job) else None


def _format_page(job: Document) -> str:
    """Return the URL of the flow run; a job has none before its run starts."""
    if job.get("flow_run_id") and not job.get("flow_run_url"):
        return "none: no Prefect server was up; `prefect-bt up` starts one, with a UI"
    return job.get("flow_run_url") or ""


_JOB_FIELDS = [
    Column("Job Name", "name"),
    Column("Job ID", "id"),
    Column("Project ID", "training_project.id"),
    Column("Project Name", "training_project.name"),
    Column("Team", "training_project.team_name"),
    Column("Status", "current_status", format_status),
    Column("Instance Type", "instance_type.name"),
    Column("Place in Queue", "queue_context.place"),
    Column("Waits For", "queue_context.waiting_for"),
    Column("Starts", "queue_context.starts_at", format_time),
    Column("Machine", "queue_context.machine"),
    Column("Only On", "only_on"),
    Column("Runs On", "live.machine"),
    Column("Last Heard", "live.last_heard_at", format_time),
    Column("Nodes", "live.summary"),
    Column("Priority", "priority"),
    Column("Availability Model", "availability_model"),
    Column("Created By", "user.email"),
    Column("Git", "truss_user_env", lambda environment: format_git(environment) or None),
    Column("Pushed From", "truss_user_env", lambda environment: format_client(environment) or None),
    Column("Created", "created_at", format_time),
    Column("Last Modified", "updated_at", format_time),
    Column("Job Page", "", _format_page),
    Column("Maximum Run Time", "", _format_run_time),
    Column("Substrate", "substrate"),
    Column("Each Node", "resources.summary"),
    Column("Goodput", "goodput", format_goodput),
    Column("Training", "training", format_training),
    Column("Image", "image.pinned"),
    Column("Store", "store"),
    Column("Checkpoint Sync", "", _format_sync),
    Column("Not Synced", "checkpoint_sync_error"),
    Column("Kept In", "", _format_kept),
    Column("Commit As It Is", "", _format_commit_command),
    Column("Error Message", "error_message", lambda error: Text(error, style="red")),
    Column("Checkpoints", "checkpoints", _format_checkpoints),
]
