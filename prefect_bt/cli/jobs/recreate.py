"""`prefect-bt recreate` and `prefect-bt retry`: run a job again."""

from __future__ import annotations

from prefect_bt.cli.jobs.retry_options import NO_RETRY_OPTIONS, RetryOptions
from prefect_bt.cli.jobs.selection import open_jobs
from prefect_bt.cli.jobs.submission_result import print_and_follow
from prefect_bt.cli.jobs.variable_options import NO_VARIABLES, VariableOptions
from prefect_bt.cli.ui.options import (
    Deployment,
    Here,
    InjectedTerminal,
    MaxRunTime,
    Output,
    Remote,
    Tail,
    Wait,
    Yes,
)
from prefect_bt.job_service.run_options import RunOptions


def recreate(
    *,
    job_id: str | None = None,
    tail: Tail = False,
    wait: Wait = False,
    deployment: Deployment = None,
    here: Here = False,
    retrying: RetryOptions = NO_RETRY_OPTIONS,
    max_run_time: MaxRunTime = None,
    variables: VariableOptions = NO_VARIABLES,
    yes: Yes = False,
    output: Output = "cli-table",
    remote: Remote = None,
    terminal: InjectedTerminal,
) -> int:
    """Use the definition, files and retry policy of a job for a new job with its own ID.

    Options that are not given keep the values of the job. To continue a job from its last
    checkpoint, use `prefect-bt retry`. To change its commands, `prefect-bt download` its files and
    push them with --entrypoint.

    Args:
        job_id: ID of the job; default: the newest.

    Examples:

    `prefect-bt recreate --job-id abc1234 --tail`
    """
    env = variables.read()
    jobs = open_jobs(terminal, remote)
    chosen = jobs.find_job(job_id, None).id
    terminal.confirm(f"Recreate training job {chosen}?", yes=yes or job_id is not None)
    with terminal.spinner(f"Recreating job {chosen}"):
        options = RunOptions(
            deployment=deployment,
            retry_choices=retrying.build_overrides(),
            max_run_time=max_run_time,
            here=here,
        )
        document = jobs.recreate(chosen, options, env)
    return print_and_follow(terminal, jobs, document, tail=tail, wait=wait)


def retry(
    *,
    job_id: str,
    tail: Tail = False,
    wait: Wait = False,
    max_run_time: MaxRunTime = None,
    variables: VariableOptions = NO_VARIABLES,
    output: Output = "cli-table",
    remote: Remote = None,
    terminal: InjectedTerminal,
) -> int:
    """Start another attempt, which resumes from the last committed checkpoint.

    BT_RETRY_COUNT is the number of earlier attempts. A job that has used up its maximum run time
    needs a larger --max-run-time, because all attempts count. To start from the beginning as a new
    job, use `prefect-bt recreate`.

    Args:
        job_id: ID of the job.

    Examples:

    `prefect-bt retry --job-id abc1234 --tail`

    `prefect-bt retry --job-id abc1234 --env BATCH_SIZE=8`
    """
    env = variables.read()
    jobs = open_jobs(terminal, remote)
    with terminal.spinner(f"Retrying job {job_id}"):
        document = jobs.retry(job_id, max_run_time, env)
    return print_and_follow(terminal, jobs, document, tail=tail, wait=wait)
