"""`prefect-bt deployments`: list, show and stop deployments, and choose the serving revision."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from prefect_bt.cli.logs.logs import logs
from prefect_bt.cli.serving.render import show_deployment, show_deployments
from prefect_bt.cli.serving.wait import wait_on_terminal
from prefect_bt.cli.ui.options import InjectedTerminal, JobFilter, Output, Tail, Yes
from prefect_bt.cli.ui.terminal import Terminal, format_count
from prefect_bt.jobs.job_json import current_user
from prefect_bt.jobs.stop import wait_for_end
from prefect_bt.ledger.ledger import Ledger
from prefect_bt.ledger.opening import open_ledger
from prefect_bt.serving.deployment_records import DeploymentLedger
from prefect_bt.serving.rollout import revisions
from prefect_bt.serving.rollout.revisions import deployment_document, get_serving_job_id
from prefect_bt.serving.rollout.wait import AwaitedRevision

DeploymentName = Annotated[str, Parameter(help="Name of the deployment.")]
Wait = Annotated[
    bool,
    Parameter(negative="--no-wait", help="Wait until the revision serves requests, or fails."),
]
_REVISION = Number(gte=1)


def list_deployments(*, output: Output = "cli-table", terminal: InjectedTerminal) -> int:
    """Show the status, the serving revision and the address of every deployment of the store.

    Examples:

    `prefect-bt deployments list -o json`
    """

    ledger = open_ledger()
    with terminal.spinner("Reading deployments"):
        deployments = [
            deployment_document(ledger, one.name)
            for one in DeploymentLedger(ledger).list_deployments()
        ]
    return terminal.print_result(
        {"deployments": deployments}, lambda: show_deployments(terminal, deployments)
    )


def view_deployment(
    name: DeploymentName, /, *, output: Output = "cli-table", terminal: InjectedTerminal
) -> int:
    """Print a curl command to try the deployment, and the reason why a revision failed.

    Examples:

    `prefect-bt deployments view stories`
    """

    document = deployment_document(open_ledger(), name)
    return terminal.print_result(document, lambda: show_deployment(terminal, document))


def show_logs(
    name: DeploymentName,
    /,
    *,
    revision: Annotated[
        int | None,
        Parameter(
            validator=_REVISION,
            help="Print the log of this revision. The default is the serving one, else the newest.",
        ),
    ] = None,
    tail: Tail = False,
    output: Output = "cli-table",
    terminal: InjectedTerminal,
) -> int:
    """Read the log of the job that runs the server.

    For filters by time or text run `prefect-bt logs` with the job ID that `deployments view` shows.

    Examples:

    `prefect-bt deployments logs stories --tail`

    `prefect-bt deployments logs stories --revision 2`
    """

    job_id = get_serving_job_id(open_ledger(), name, revision)
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
    try:
        with terminal.spinner(f"Waiting for {format_count(len(jobs), 'server')} to stop"):
            for job_id in jobs:
                wait_for_end(ledger, job_id)
    except KeyboardInterrupt:
        terminal.warn(f"\nDetached. The servers of {name} are still stopping.")
        raise
    stopped = f"{format_count(len(jobs), 'server')} stopped" if jobs else "no server was running"
    return terminal.print_result(
        {**revisions.deployment_document(ledger, name), "stopped_jobs": jobs},
        lambda: terminal.echo(f"Deployment {name} is stopped: {stopped}.", style="green"),
    )


def promote_revision(
    name: DeploymentName,
    /,
    *,
    revision: Annotated[
        int, Parameter(validator=_REVISION, help="Send requests to this revision.")
    ],
    wait: Wait = True,
    output: Output = "cli-table",
    terminal: InjectedTerminal,
) -> int:
    """Choose the revision that serves from now on. Start its server if it has stopped.

    The current revision serves until the new one is ready. Ctrl-C ends the waiting only.

    Examples:

    `prefect-bt deployments promote stories --revision 2`
    """

    ledger = open_ledger()
    with terminal.spinner(f"Promoting revision {revision} of {name}"):
        job_id = revisions.promote(ledger, name, revision, by=current_user())
    return _finish_promotion(terminal, ledger, name, revision, job_id, wait=wait)


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
    return _finish_promotion(terminal, ledger, name, revision, job_id, wait=wait)


def _finish_promotion(
    terminal: Terminal, ledger: Ledger, name: str, revision: int, job_id: str, *, wait: bool
) -> int:

    awaited = AwaitedRevision(name, revision, job_id)
    if wait:
        wait_on_terminal(terminal, ledger, awaited)
        text, style = f"{awaited.label} serves.", "green"
    else:
        text, style = f"{awaited.label} serves once it is ready.", "yellow"
    document = {**deployment_document(ledger, name), "revision": revision, "job_id": job_id}
    return terminal.print_result(document, lambda: terminal.echo(text, style=style))
