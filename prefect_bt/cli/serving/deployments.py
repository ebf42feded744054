"""`prefect-bt deployments`: what serves, and which revision of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from prefect_bt.cli.serving.wait import (
    AwaitedRevision,
    detach_on_interrupt,
    print_failure,
    progress_status,
    wait_for_serving,
)
from prefect_bt.cli.ui.options import InjectedTerminal, JobFilter, Output, Tail, Yes
from prefect_bt.cli.ui.terminal import FAILED, OK, Terminal, format_count
from prefect_bt.errors import ServingError

if TYPE_CHECKING:
    from prefect_bt.ledger.ledger import Ledger

DeploymentName = Annotated[str, Parameter(help="The deployment.")]
RevisionNumber = Annotated[int | None, Parameter(validator=Number(gte=1))]
Wait = Annotated[
    bool, Parameter(negative="--no-wait", help="Stay until it serves, or is known not to.")
]


def list_deployments(*, output: Output = "cli-table", terminal: InjectedTerminal) -> int:
    """List the serving deployments of the store.

    `prefect-bt deployments list -o json`
    """
    from prefect_bt.cli.serving.render import show_deployments
    from prefect_bt.ledger.opening import open_ledger
    from prefect_bt.serving.deployment_records import DeploymentLedger
    from prefect_bt.serving.rollout.revisions import deployment_document

    ledger = open_ledger()
    with terminal.spinner("Looking at the deployments"):
        found = [
            deployment_document(ledger, one.name)
            for one in DeploymentLedger(ledger).list_deployments()
        ]
    if terminal.machine_readable:
        terminal.print_json({"deployments": found})
    else:
        show_deployments(terminal, found)
    return OK


def view_deployment(
    name: DeploymentName, /, *, output: Output = "cli-table", terminal: InjectedTerminal
) -> int:
    """Show a deployment: where it answers, its revisions, what happened.

    `prefect-bt deployments view stories`
    """
    from prefect_bt.cli.serving.render import show_deployment
    from prefect_bt.ledger.opening import open_ledger
    from prefect_bt.serving.rollout.revisions import deployment_document

    ledger = open_ledger()
    found = deployment_document(ledger, name)
    if terminal.machine_readable:
        terminal.print_json(found)
    else:
        show_deployment(terminal, found)
    return OK


def show_logs(
    name: DeploymentName,
    /,
    *,
    revision: Annotated[
        RevisionNumber, Parameter(help="Of this one; of the one that serves when left out.")
    ] = None,
    tail: Tail = False,
    output: Output = "cli-table",
    terminal: InjectedTerminal,
) -> int:
    """Print the log of a revision's server.

    More ways to look at it: `prefect-bt logs` of its job, which `deployments view` names.

    `prefect-bt deployments logs stories --tail`
    """
    from prefect_bt.cli.logs.logs import logs
    from prefect_bt.ledger.opening import open_ledger
    from prefect_bt.serving.rollout.revisions import get_serving_job_id

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
    """Stop a deployment: its servers end, its address answers no more. Its revisions stay.

    Ctrl-C ends the waiting, not the stopping.

    `prefect-bt deployments stop stories`
    """
    from prefect_bt.jobs.job_json import current_user
    from prefect_bt.jobs.stop import wait_for_end
    from prefect_bt.ledger.opening import open_ledger
    from prefect_bt.serving.deployment_records import DeploymentLedger
    from prefect_bt.serving.rollout import revisions

    ledger = open_ledger()
    DeploymentLedger(ledger).get_deployment(name)
    if not yes and not terminal.confirm(f"Stop deployment {name}?"):
        terminal.error("Nothing was stopped.")
        return FAILED
    with terminal.spinner(f"Stopping deployment {name}"):
        jobs = revisions.stop_deployment(ledger, name, by=current_user())
    try:
        with terminal.spinner(f"Waiting for {format_count(len(jobs), 'server')} of {name} to end"):
            for job_id in jobs:
                wait_for_end(ledger, job_id)
    except KeyboardInterrupt:
        terminal.info("")
        terminal.warn(f"Deployment {name} is still being stopped; nobody needs to wait for it.")
        raise
    if terminal.machine_readable:
        terminal.print_json({**revisions.deployment_document(ledger, name), "stopped_jobs": jobs})
        return OK
    ended = f" {format_count(len(jobs), 'server')} ended." if jobs else " No server ran."
    terminal.echo(f"Deployment {name} is stopped.{ended}", style="green")
    return OK


def promote_revision(
    name: DeploymentName,
    /,
    *,
    revision: Annotated[
        int, Parameter(validator=Number(gte=1), help="Which one is to serve from now on.")
    ],
    wait: Wait = True,
    output: Output = "cli-table",
    terminal: InjectedTerminal,
) -> int:
    """Have another revision serve; one whose server has ended is started again.

    The one that serves goes on until the other answers. Ctrl-C ends the waiting only.

    `prefect-bt deployments promote stories --revision 2`
    """
    from prefect_bt.jobs.job_json import current_user
    from prefect_bt.ledger.opening import open_ledger
    from prefect_bt.serving.rollout import revisions

    ledger = open_ledger()
    with terminal.spinner(f"Promoting revision {revision} of {name}"):
        job_id = revisions.promote(ledger, name, revision, by=current_user())
    return _follow_revision(terminal, ledger, AwaitedRevision(name, revision, job_id), wait=wait)


def roll_back(
    name: DeploymentName,
    /,
    *,
    wait: Wait = True,
    output: Output = "cli-table",
    terminal: InjectedTerminal,
) -> int:
    """Have the revision serve again that did before this one.

    `prefect-bt deployments rollback stories`
    """
    from prefect_bt.jobs.job_json import current_user
    from prefect_bt.ledger.opening import open_ledger
    from prefect_bt.serving.rollout import revisions

    ledger = open_ledger()
    with terminal.spinner(f"Rolling {name} back"):
        revision, job_id = revisions.rollback(ledger, name, by=current_user())
    return _follow_revision(terminal, ledger, AwaitedRevision(name, revision, job_id), wait=wait)


def _follow_revision(
    terminal: Terminal, ledger: Ledger, awaited: AwaitedRevision, *, wait: bool
) -> int:
    """Until it serves, unless nobody waits; then the document or a sentence."""
    from prefect_bt.serving.rollout.revisions import deployment_document

    try:
        if wait:
            with (
                detach_on_interrupt(terminal, awaited),
                progress_status(terminal, awaited.label) as tell,
            ):
                wait_for_serving(ledger, awaited, tell)
    except ServingError as error:
        return print_failure(terminal, error)
    if terminal.machine_readable:
        document = deployment_document(ledger, awaited.name)
        told = {"revision": awaited.revision, "job_id": awaited.job_id}
        terminal.print_json({**document, **told})
    elif wait:
        terminal.echo(f"{awaited.label} serves.", style="green")
    else:
        terminal.echo(f"{awaited.label} is to serve; it does once it answers.", style="yellow")
    return OK
