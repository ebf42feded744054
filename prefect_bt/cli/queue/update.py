"""`prefect-bt update`: change a job that waits."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from prefect_bt.cli.ui.options import InjectedTerminal, Output, Remote
from prefect_bt.definitions import AvailabilityModel
from prefect_bt.errors import UsageError
from prefect_bt.ledger.open_ledger import open_ledger
from prefect_bt.queue.overview import update_waiting_job


def update(
    *,
    job_id: str,
    priority: Annotated[int | None, Parameter(allow_leading_hyphen=True)] = None,
    availability_model: AvailabilityModel | None = None,
    output: Output = "cli-table",
    remote: Remote = None,
    terminal: InjectedTerminal,
) -> int:
    """Print the new place of the job in the queue.

    Args:
        job_id: ID of the job.
        priority: New priority; higher starts first. A job without one has 0.
        availability_model: `spot` nodes can be preempted; `dedicated` ones cannot.

    Examples:

    `prefect-bt update --job-id abc1234 --priority 10`

    `prefect-bt update --job-id abc1234 --availability-model spot`
    """
    if priority is None and availability_model is None:
        raise UsageError(
            "There is nothing to change.", next_step="Give --priority or --availability-model."
        )
    changed = update_waiting_job(
        open_ledger(), job_id, priority=priority, availability_model=availability_model
    )
    where = f"It is number {changed['place']} of the queue."
    done = (
        f"Job {job_id} has priority {changed['priority']} and is {changed['availability_model']}. "
        f"{where if changed['place'] else 'It starts.'}"
    )
    return terminal.print_result(
        {"training_job": changed}, lambda: terminal.echo(done, style="green")
    )
