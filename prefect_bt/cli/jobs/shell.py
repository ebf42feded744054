"""`prefect-bt shell`: a shell, or a command, in a node of a running job."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from prefect_bt.attempts.job_context import open_job_context
from prefect_bt.attempts.node_shell import open_shell
from prefect_bt.cli.ui.options import InjectedTerminal
from prefect_bt.cli.ui.terminal import Terminal
from prefect_bt.errors import PrefectBtError
from prefect_bt.host.terminal import ShellRequest
from prefect_bt.job_service.store_service import StoreJobs
from prefect_bt.jobs.job_json import current_user
from prefect_bt.ledger.ledger import Ledger
from prefect_bt.ledger.open_ledger import open_ledger
from prefect_bt.ledger.records import JobRecord
from prefect_bt.ledger.states import JobState


def shell(
    *command: Annotated[str, Parameter(allow_leading_hyphen=True)],
    job_id: str | None = None,
    rank: Annotated[int, Parameter(validator=Number(gte=0))] = 0,
    with_secrets: bool = False,
    terminal: InjectedTerminal,
) -> int:
    """Open a shell in a node, with its files and the variables of its commands.

    It starts in the folder of the workspace, and ends with the commands of the node. Write a
    command after `--` to run it instead of a shell; its exit code is the exit code. Variables that
    contain a secret are left out. Each shell is a line in the log of the job.

    Args:
        command: Command to run instead of a shell, after `--`.
        job_id: ID of the job; default: the newest that runs.
        rank: Rank of the node.
        with_secrets: Pass on variables that contain secrets.

    Examples:

    `prefect-bt shell --job-id abc1234 --rank 1`

    `prefect-bt shell -- nvidia-smi`

    `echo hi | prefect-bt shell -- cat`
    """
    ledger = open_ledger()
    record = ledger.get_job(job_id) if job_id else _select_running_job(ledger, terminal)
    site = open_job_context(ledger, record)
    return open_shell(site, rank, ShellRequest(command, with_secrets), user=current_user())


def _select_running_job(ledger: Ledger, terminal: Terminal) -> JobRecord:
    unfinished = StoreJobs(ledger, warn=terminal.warn).list_unfinished_ids(None)
    running = [one for one in unfinished if ledger.get_state(one) is JobState.RUNNING]
    if not running:
        raise PrefectBtError("No training job runs.", next_step="See: prefect-bt view")
    if len(running) > 1:
        terminal.warn(f"{len(running)} jobs run; using the newest: {running[-1]}.")
    return ledger.get_job(running[-1])
