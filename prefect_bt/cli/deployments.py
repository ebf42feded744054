"""`prefect-bt deployments`: what serves, and which revision of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from prefect_bt.cli.deployments_wait import (
    Awaited,
    await_serving,
    leaving,
    say_failure,
    telling,
)
from prefect_bt.cli.options import Here, JobFilter, Output, Tail, Yes
from prefect_bt.cli.terminal import FAILED, OK, Terminal, counted
from prefect_bt.errors import ServingError

if TYPE_CHECKING:
    from prefect_bt.ledger import Ledger

Name = Annotated[str, Parameter(help="The deployment.")]
Number1 = Annotated[int | None, Parameter(validator=Number(gte=1))]
Wait = Annotated[
    bool, Parameter(negative="--no-wait", help="Stay until it serves, or is known not to.")
]


def list_deployments(*, output: Output = "cli-table", terminal: Here) -> int:
    """List the serving deployments of the store.

    `prefect-bt deployments list -o json`
    """
    from prefect_bt.cli.deployments_show import show_deployments
    from prefect_bt.deployed import deployment_document
    from prefect_bt.jobs import open_ledger
    from prefect_bt.serving.deployments import Deployments

    ledger, beside = open_ledger(), terminal.beside(output)
    with beside.working("Looking at the deployments"):
        found = [deployment_document(ledger, one.name) for one in Deployments(ledger).all()]
    if beside.documents:
        beside.document({"deployments": found})
    else:
        show_deployments(beside, found)
    return OK


def view_deployment(name: Name, /, *, output: Output = "cli-table", terminal: Here) -> int:
    """Show a deployment: where it answers, its revisions, what happened.

    `prefect-bt deployments view stories`
    """
    from prefect_bt.cli.deployments_show import show_deployment
    from prefect_bt.deployed import deployment_document
    from prefect_bt.jobs import open_ledger

    ledger, beside = open_ledger(), terminal.beside(output)
    found = deployment_document(ledger, name)
    if beside.documents:
        beside.document(found)
    else:
        show_deployment(beside, found)
    return OK


def show_logs(
    name: Name,
    /,
    *,
    revision: Annotated[
        Number1, Parameter(help="Of this one; of the one that serves when left out.")
    ] = None,
    tail: Tail = False,
    output: Output = "cli-table",
    terminal: Here,
) -> int:
    """Print the log of a revision's server.

    More ways to look at it: `prefect-bt logs` of its job, which `deployments view` names.

    `prefect-bt deployments logs stories --tail`
    """
    from prefect_bt.cli.logs import logs
    from prefect_bt.deployed import serving_job_of
    from prefect_bt.jobs import open_ledger

    job_id = serving_job_of(open_ledger(), name, revision)
    return logs(which=JobFilter(job_id=job_id), tail=tail, output=output, terminal=terminal)


def stop_deployment(
    name: Name, /, *, yes: Yes = False, output: Output = "cli-table", terminal: Here
) -> int:
    """Stop a deployment: its servers end, its address answers no more. Its revisions stay.

    Ctrl-C ends the waiting, not the stopping.

    `prefect-bt deployments stop stories`
    """
    from prefect_bt import deployed
    from prefect_bt.control import wait_terminal
    from prefect_bt.jobs import open_ledger, who_asks
    from prefect_bt.serving.deployments import Deployments

    ledger, beside = open_ledger(), terminal.beside(output)
    Deployments(ledger).get(name)
    if not yes and not beside.confirm(f"Stop deployment {name}?"):
        beside.error("Nothing was stopped.")
        return FAILED
    with beside.working(f"Stopping deployment {name}"):
        jobs = deployed.stop(ledger, name, by=who_asks())
    try:
        with beside.working(f"Waiting for {counted(len(jobs), 'server')} of {name} to end"):
            for job_id in jobs:
                wait_terminal(ledger, job_id)
    except KeyboardInterrupt:
        beside.note("")
        beside.warn(f"Deployment {name} is still being stopped; nobody needs to wait for it.")
        raise
    if beside.documents:
        beside.document({**deployed.deployment_document(ledger, name), "stopped_jobs": jobs})
        return OK
    ended = f" {counted(len(jobs), 'server')} ended." if jobs else " No server ran."
    beside.say(f"Deployment {name} is stopped.{ended}", style="green")
    return OK


def promote_revision(
    name: Name,
    /,
    *,
    revision: Annotated[
        int, Parameter(validator=Number(gte=1), help="Which one is to serve from now on.")
    ],
    wait: Wait = True,
    output: Output = "cli-table",
    terminal: Here,
) -> int:
    """Have another revision serve; one whose server has ended is started again.

    The one that serves goes on until the other answers. Ctrl-C ends the waiting only.

    `prefect-bt deployments promote stories --revision 2`
    """
    from prefect_bt import deployed
    from prefect_bt.jobs import open_ledger, who_asks

    ledger, beside = open_ledger(), terminal.beside(output)
    with beside.working(f"Promoting revision {revision} of {name}"):
        job_id = deployed.promote(ledger, name, revision, by=who_asks())
    return _stay(beside, ledger, Awaited(name, revision, job_id), wait=wait)


def roll_back(
    name: Name, /, *, wait: Wait = True, output: Output = "cli-table", terminal: Here
) -> int:
    """Have the revision serve again that did before this one.

    `prefect-bt deployments rollback stories`
    """
    from prefect_bt import deployed
    from prefect_bt.jobs import open_ledger, who_asks

    ledger, beside = open_ledger(), terminal.beside(output)
    with beside.working(f"Rolling {name} back"):
        revision, job_id = deployed.rollback(ledger, name, by=who_asks())
    return _stay(beside, ledger, Awaited(name, revision, job_id), wait=wait)


def _stay(terminal: Terminal, ledger: Ledger, awaited: Awaited, *, wait: bool) -> int:
    """Until it serves, unless nobody waits; then the document or a sentence."""
    from prefect_bt.deployed import deployment_document

    try:
        if wait:
            with leaving(terminal, awaited), telling(terminal, awaited.label) as tell:
                await_serving(ledger, awaited, tell)
    except ServingError as error:
        return say_failure(terminal, error)
    if terminal.documents:
        document = deployment_document(ledger, awaited.name)
        told = {"revision": awaited.revision, "job_id": awaited.job_id}
        terminal.document({**document, **told})
    elif wait:
        terminal.say(f"{awaited.label} serves.", style="green")
    else:
        terminal.say(f"{awaited.label} is to serve; it does once it answers.", style="yellow")
    return OK
