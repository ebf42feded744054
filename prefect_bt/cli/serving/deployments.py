"""`prefect-bt deployments`: list, show and stop deployments, and choose the serving revision."""

from __future__ import annotations

import sys
from typing import Annotated, Final

from cyclopts import Parameter
from cyclopts.validators import Number
from rich.text import Text

from prefect_bt.cli.logs.logs import logs
from prefect_bt.cli.ui.options import InjectedTerminal, JobFilter, Output, PositiveCount, Tail, Yes
from prefect_bt.cli.ui.tables import (
    Column,
    Document,
    format_time,
    format_value,
    list_fields,
    show_fields,
    show_table,
)
from prefect_bt.cli.ui.terminal import Terminal, format_count
from prefect_bt.errors import ServingError
from prefect_bt.jobs.job_json import current_user
from prefect_bt.jobs.stop import wait_for_end
from prefect_bt.ledger.ledger import Ledger
from prefect_bt.ledger.open_ledger import open_ledger
from prefect_bt.serving.deployment_records import DeploymentLedger, ReadinessVerdict
from prefect_bt.serving.rollout import revisions
from prefect_bt.serving.rollout.wait import AwaitedRevision, wait_for_revision

DeploymentName = Annotated[str, Parameter(help="Name of the deployment.")]
Wait = Annotated[
    bool, Parameter(negative="--no-wait", help="Wait until the revision serves requests, or fails.")
]
_STYLES: Final = {"serving": "green", "ready": "cyan", "failed": "red", "stopped": ""}


def _format_state(state: str) -> Text:
    return Text(state, style=_STYLES.get(state, "yellow"))


_DEPLOYMENTS: Final = [
    Column("Name", "name"),
    Column("Status", "status", _format_state),
    Column("Serving Revision", "serving_revision", hide=2),
    Column("Models", "models", wrap=True),
    Column("Address", "address"),
    Column("Created", "created_at", format_time, hide=1),
]
_FIELDS: Final = [
    *_DEPLOYMENTS,
    Column("Router", "router"),
    Column("API Key Secret", "api_key_secret"),
    Column("Wanted Revision", "wanted_revision"),
]
_REVISIONS: Final = [
    Column("Revision", "number"),
    Column("State", "state", _format_state),
    Column("Engine", "engine", hide=5),
    Column("Type", "kind", hide=6),
    Column("Models", "models", wrap=True),
    Column("Checkpoints", "checkpoints", lambda pairs: format_value(["/".join(p) for p in pairs]),
           wrap=True, hide=2),
    Column("Base Model", "base_model", wrap=True, hide=3),
    Column("Job ID", "job_id"),
    Column("In Flight", "in_flight", hide=4),
    Column("Created", "at", format_time, hide=1),
    Column("Message", "message", wrap=True),
]  # fmt: skip
_PROMOTIONS: Final = [
    Column("Time", "at", format_time),
    Column("Revision", "revision", lambda number: str(number or "none")),
    Column("Reason", "why"),
    Column("By", "by", hide=1),
]


def list_deployments(*, output: Output = "cli-table", terminal: InjectedTerminal) -> int:
    """Show the status, the serving revision and the address of every deployment of the store.

    Examples:

    `prefect-bt deployments list -o json`
    """
    ledger = open_ledger()
    with terminal.spinner("Reading deployments"):
        names = [one.name for one in DeploymentLedger(ledger).list_deployments()]
        rows = [revisions.deployment_document(ledger, name) for name in names]

    def show() -> None:
        if rows:
            show_table(terminal, "Deployments", _DEPLOYMENTS, rows)
        else:
            terminal.echo("There are no deployments. Create one: prefect-bt deploy_checkpoints")

    return terminal.print_result({"deployments": rows}, show)


def view_deployment(
    name: DeploymentName, /, *, output: Output = "cli-table", terminal: InjectedTerminal
) -> int:
    """Print a curl command to try the deployment, and the reason why a revision failed.

    Examples:

    `prefect-bt deployments view stories`
    """
    document = revisions.deployment_document(open_ledger(), name)
    return terminal.print_result(document, lambda: _show_deployment(terminal, document))


def _show_deployment(terminal: Terminal, document: Document) -> None:
    show_fields(terminal, "Deployment", list_fields(_FIELDS, document))
    for title, columns, key in (
        ("Revisions", _REVISIONS, "revisions"),
        ("Promotions", _PROMOTIONS, "promotions"),
    ):
        if rows := document[key]:
            terminal.echo()
            show_table(terminal, title, columns, rows)
    if document["curl"]:
        terminal.echo(f"\n{document['curl']}")


def show_logs(
    name: DeploymentName,
    /,
    *,
    revision: PositiveCount = None,
    tail: Tail = False,
    output: Output = "cli-table",
    terminal: InjectedTerminal,
) -> int:
    """Read the log of the job that runs the server.

    For filters by time or text run `prefect-bt logs` with the job ID that `deployments view` shows.

    Args:
        revision: Print the log of this revision. The default is the serving one, else the newest.

    Examples:

    `prefect-bt deployments logs stories --tail`

    `prefect-bt deployments logs stories --revision 2`
    """
    job_id = revisions.get_serving_job_id(open_ledger(), name, revision)
    return logs(which=JobFilter(job_id=job_id), tail=tail, output=output, terminal=terminal)


def stop_deployment(
    name: DeploymentName,
    /,
    *,
    yes: Yes = False,
    output: Output = "cli-table",
    terminal: InjectedTerminal,
) -> int:
    """Stop all servers and the router. The address no longer answers.

    The revisions are kept: `deployments promote` starts one again. Ctrl-C ends the waiting; the
    servers stop anyway.

    Examples:

    `prefect-bt deployments stop stories`
    """
    ledger = open_ledger()
    DeploymentLedger(ledger).get_deployment(name)
    terminal.confirm(f"Stop deployment {name}?", yes=yes)
    with terminal.spinner(f"Stopping deployment {name}"):
        jobs = revisions.stop_deployment(ledger, name, by=current_user())
    count = format_count(len(jobs), "server")
    try:
        with terminal.spinner(f"Waiting for {count} to stop"):
            for job_id in jobs:
                wait_for_end(ledger, job_id)
    except KeyboardInterrupt:
        terminal.warn(f"\nDetached. The servers of {name} are still stopping.")
        raise
    stopped = f"{count} stopped" if jobs else "no server was running"
    return terminal.print_result(
        {**revisions.deployment_document(ledger, name), "stopped_jobs": jobs},
        lambda: terminal.echo(f"Deployment {name} is stopped: {stopped}.", style="green"),
    )


def promote_revision(
    name: DeploymentName,
    /,
    *,
    revision: Annotated[int, Parameter(validator=Number(gte=1))],
    wait: Wait = True,
    output: Output = "cli-table",
    terminal: InjectedTerminal,
) -> int:
    """Choose the revision that serves from now on. Start its server if it has stopped.

    The current revision serves until the new one is ready. Ctrl-C ends the waiting only.

    Args:
        revision: Send requests to this revision.

    Examples:

    `prefect-bt deployments promote stories --revision 2`
    """
    ledger = open_ledger()
    with terminal.spinner(f"Promoting revision {revision} of {name}"):
        job_id = revisions.promote(ledger, name, revision, by=current_user())
    return _finish_promotion(terminal, ledger, AwaitedRevision(name, revision, job_id), wait=wait)


def roll_back(
    name: DeploymentName,
    /,
    *,
    wait: Wait = True,
    output: Output = "cli-table",
    terminal: InjectedTerminal,
) -> int:
    """Choose the revision that served before the current one. Start its server if it has stopped.

    The current revision serves until the other one is ready. Ctrl-C ends the waiting only.

    Examples:

    `prefect-bt deployments rollback stories`
    """
    ledger = open_ledger()
    with terminal.spinner(f"Rolling back {name}"):
        revision, job_id = revisions.rollback(ledger, name, by=current_user())
    return _finish_promotion(terminal, ledger, AwaitedRevision(name, revision, job_id), wait=wait)


def _finish_promotion(
    terminal: Terminal, ledger: Ledger, awaited: AwaitedRevision, *, wait: bool
) -> int:
    if wait:
        wait_on_terminal(terminal, ledger, awaited)
    text = f"{awaited.label} serves{'' if wait else ' once it is ready'}."
    return terminal.print_result(
        {
            **revisions.deployment_document(ledger, awaited.name),
            "revision": awaited.number,
            "job_id": awaited.job_id,
        },
        lambda: terminal.echo(text, style="green" if wait else "yellow"),
    )


def wait_on_terminal(
    terminal: Terminal, ledger: Ledger, awaited: AwaitedRevision, *, serving: bool = True
) -> ReadinessVerdict:
    """Wait for a revision; show its phase in a spinner, or a line for each where there is none.

    Raise as `wait_for_revision` does. Print the end of the log of a server that failed. Ctrl-C ends
    the waiting, not the server.
    """
    try:
        with terminal.spinner(awaited.label) as set_text:
            show = set_text if sys.stderr.isatty() else terminal.info
            return wait_for_revision(
                ledger, awaited, lambda phase: show(f"{awaited.label}: {phase}"), serving=serving
            )
    except KeyboardInterrupt:
        terminal.warn(f"\nDetached. {awaited.label} continues.")
        terminal.info(f"  View it: prefect-bt deployments view {awaited.name}")
        terminal.info(f"  Stop it: prefect-bt stop --job-id {awaited.job_id}")
        raise
    except ServingError as error:
        for line in error.log_tail:
            terminal.info(f"  {line}", style="dim")
        raise
