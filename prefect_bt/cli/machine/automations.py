"""`prefect-bt automations`: create Prefect automations for jobs."""

from __future__ import annotations

from dataclasses import asdict
from typing import Final

from prefect_bt.cli.ui.options import InjectedTerminal, Output
from prefect_bt.cli.ui.tables import Column, show_table
from prefect_bt.prefect_api.automations import ensure_automations

_COLUMNS: Final = [
    Column("Status", "status"),
    Column("Name", "name"),
    Column("ID", "id", hide=1),
    Column("Reason", "reason", wrap=True),
]


def create_automations(
    *, notify: str = "", output: Output = "cli-table", terminal: InjectedTerminal
) -> int:
    """Create or update three automations: notify when user code fails, notify when a job is
    recovered, and deploy the newest checkpoint of a completed job.

    Without --notify, only the last one is created.

    Args:
        notify: Notification block, as TYPE/NAME: slack-webhook/team.

    Examples:

    `prefect-bt automations --notify slack-webhook/team`
    """
    with terminal.spinner("Creating automations"):
        rows = [asdict(one) for one in ensure_automations(notify)]
    return terminal.print_result(rows, lambda: show_table(terminal, "Automations", _COLUMNS, rows))
