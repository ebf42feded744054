"""`prefect-bt automations`: what Prefect does by itself when jobs fail, complete or recover."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

from cyclopts import Parameter

from prefect_bt.cli.ui.options import InjectedTerminal, Output
from prefect_bt.cli.ui.terminal import OK


def create_automations(
    *,
    notify: Annotated[
        str, Parameter(help="Block that sends notifications, as TYPE/NAME: slack-webhook/team.")
    ] = "",
    output: Output = "cli-table",
    terminal: InjectedTerminal,
) -> int:
    """Create Prefect automations that notify of failures and serve checkpoints, or update them.

    One notifies when the user's code failed, one when a job is recovered, one deploys the newest
    checkpoint of a completed training. Without --notify the first two are left out.

    `prefect-bt automations --notify slack-webhook/team`
    """
    from prefect_bt.prefect_api.automations import ensure_automations

    with terminal.spinner("Asking Prefect"):
        done = ensure_automations(notify)
    if terminal.machine_readable:
        terminal.print_json([asdict(one) for one in done])
        return OK
    for one in done:
        terminal.echo(f"{one.status:<9} {one.name} {one.id}".rstrip())
        if one.reason:
            terminal.info(one.reason)
    return OK
