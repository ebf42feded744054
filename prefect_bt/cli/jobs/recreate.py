"""`prefect-bt recreate`: a new job from the stored definition and files of another."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from prefect_bt.cli.jobs.retry_options import NO_RETRY_OPTIONS, RetryOptions
from prefect_bt.cli.jobs.selection import select_job
from prefect_bt.cli.jobs.submission_result import FollowOptions, print_and_follow
from prefect_bt.cli.ui.options import (
    InjectedTerminal,
    JobFilter,
    MaxRunTime,
    Output,
    Remote,
    Tail,
    Yes,
)
from prefect_bt.cli.ui.terminal import FAILED


def recreate(
    *,
    job_id: Annotated[
        str | None, Parameter(help="The job to repeat; the newest when left out.")
    ] = None,
    tail: Tail = False,
    wait: Annotated[
        bool, Parameter(help="Stay until the job is over; exit 0 only if it completed.")
    ] = False,
    deployment: Annotated[
        str | None, Parameter(help="Prefect `flow/deployment` that runs the job.")
    ] = None,
    retrying: RetryOptions = NO_RETRY_OPTIONS,
    max_run_time: MaxRunTime = None,
    yes: Yes = False,
    output: Output = "cli-table",
    remote: Remote = None,
    terminal: InjectedTerminal,
) -> int:
    """Submit a job again, with the same definition, files and retry policy, as a new job.

    `prefect-bt recreate --job-id abc1234 --tail`
    """
    from prefect_bt.jobs.options import SubmitOptions
    from prefect_bt.jobs.submit import recreate as submit_again
    from prefect_bt.ledger.opening import open_ledger

    _ = remote
    chosen = job_id or select_job(open_ledger(), JobFilter(), terminal).id
    if job_id is None and not yes and not terminal.confirm(f"Recreate training job {chosen}?"):
        terminal.error("Training job not recreated.")
        return FAILED
    with terminal.spinner(f"Recreating job {chosen}"):
        options = SubmitOptions(
            deployment=deployment,
            retry_choices=retrying.build_overrides(),
            max_run_time=max_run_time,
        )
        document = submit_again(chosen, options=options)
    return print_and_follow(terminal, document, FollowOptions(tail=tail, wait=wait, output=output))
