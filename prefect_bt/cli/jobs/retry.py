"""`prefect-bt retry`: another attempt of a job that failed or was stopped."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from prefect_bt.cli.jobs.submission_result import FollowOptions, print_and_follow
from prefect_bt.cli.ui.options import InjectedTerminal, MaxRunTime, Output, Remote, Tail


def retry(
    *,
    job_id: Annotated[str, Parameter(help="The job to take up again.")],
    tail: Tail = False,
    wait: Annotated[
        bool, Parameter(help="Stay until the job is over; exit 0 only if it completed.")
    ] = False,
    max_run_time: MaxRunTime = None,
    output: Output = "cli-table",
    remote: Remote = None,
    terminal: InjectedTerminal,
) -> int:
    """Try a job again under its own id, from its last committed checkpoint.

    BT_RETRY_COUNT is the number of attempts before. A job that has used up its maximum run time
    needs a larger one: it counts all attempts. A new job of the same files is `recreate`.

    `prefect-bt retry --job-id abc1234 --tail`
    """
    from prefect_bt.jobs import resubmit

    _ = remote
    with terminal.spinner(f"Retrying job {job_id}"):
        document = resubmit.retry(job_id, max_run_time=max_run_time)
    return print_and_follow(terminal, document, FollowOptions(tail=tail, wait=wait, output=output))
