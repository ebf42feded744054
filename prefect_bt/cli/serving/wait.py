"""Wait for a revision on the terminal."""

from __future__ import annotations

import sys

from prefect_bt.cli.ui.terminal import Terminal
from prefect_bt.errors import ServingError
from prefect_bt.ledger.ledger import Ledger
from prefect_bt.serving.deployment_records import ReadinessVerdict
from prefect_bt.serving.rollout.wait import AwaitedRevision, wait_for_revision


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
