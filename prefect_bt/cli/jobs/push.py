"""`prefect-bt push`: submit the job of a config file."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Literal

from prefect_bt import codec
from prefect_bt.cli.jobs.render_plan import show_plan
from prefect_bt.cli.jobs.retry_options import NO_RETRY_OPTIONS, RetryOptions
from prefect_bt.cli.jobs.selection import open_jobs
from prefect_bt.cli.jobs.submission_result import print_and_follow
from prefect_bt.cli.jobs.variable_options import NO_VARIABLES, VariableOptions
from prefect_bt.cli.ui.options import (
    Deployment,
    DryRun,
    Here,
    InjectedTerminal,
    MaxRunTime,
    Output,
    PositiveCount,
    Remote,
    Tail,
    Wait,
)
from prefect_bt.cli.ui.tables import Document
from prefect_bt.cli.ui.terminal import Terminal
from prefect_bt.definitions import (
    Overrides,
    apply_overrides,
    load_training_project,
)
from prefect_bt.job_service.run_options import RunOptions
from prefect_bt.jobs.submit import open_job_launcher
from prefect_bt.planning.plan import GangPlan


def push(
    config: Path,
    /,
    *,
    tail: Tail = False,
    wait: Wait = False,
    job_name: str | None = None,
    team: str | None = None,
    accelerator: str | None = None,
    cpu_count: int | None = None,
    memory: str | None = None,
    node_count: int | None = None,
    entrypoint: str | None = None,
    priority: int | None = None,
    spot: bool = False,
    interactive: Literal["on_startup", "on_failure", "on_demand"] | None = None,
    interactive_timeout_minutes: int | None = None,
    substrate: str | None = None,
    retrying: RetryOptions = NO_RETRY_OPTIONS,
    keep_last: PositiveCount = None,
    keep_every: PositiveCount = None,
    max_run_time: MaxRunTime = None,
    variables: VariableOptions = NO_VARIABLES,
    deployment: Deployment = None,
    here: Here = False,
    dry_run: DryRun = False,
    output: Output = "cli-table",
    remote: Remote = None,
    terminal: InjectedTerminal,
) -> int:
    """Pack the folder of the config file, validate and plan the job, and start it.

    Options override the config file. With --tail or --wait, Ctrl-C detaches and the job continues.

    Args:
        config: Python file that defines one TrainingProject.
        job_name: Name of the job.
        team: Team that owns the project; `default` is the default team.
        accelerator: GPUs of each node, as TYPE[:N], or `none` for a CPU job.
        cpu_count: CPU cores of each node, as a minimum.
        memory: Memory of each node, as a minimum, with a unit: `512Mi`, `64Gi`, `64GB`.
        node_count: Number of nodes.
        entrypoint: One start command that replaces those of the config.
        priority: Priority in the queue; higher starts first.
        spot: Use nodes that can be preempted.
        interactive: When an interactive session opens.
        interactive_timeout_minutes: Minutes after which an unused session closes.
        substrate: Where nodes run: local, docker or kubernetes; default: PREFECT_BT_SUBSTRATE.
        keep_last: Keep only the last N checkpoints; default: keep all.
        keep_every: Also keep checkpoints whose step is a multiple of N.

    Examples:

    `prefect-bt push config.py --tail`

    `prefect-bt push config.py --accelerator none --entrypoint "python train.py --steps 10" --wait`

    `prefect-bt push recipe.py --accelerator none --cpu-count 2 --memory 4Gi --node-count 1`

    `prefect-bt push config.py --env LR=3e-4 --env WANDB_MODE`

    `prefect-bt push config.py --dry-run -o json`
    """
    overrides = Overrides(
        job_name=job_name,
        team=team,
        interactive=interactive,
        interactive_timeout_minutes=interactive_timeout_minutes,
        accelerator=accelerator,
        cpu_count=cpu_count,
        memory=memory,
        node_count=node_count,
        entrypoint=entrypoint,
        priority=priority,
        spot=spot,
        env=variables.read(),
    )
    options = RunOptions(
        substrate=substrate,
        retry_choices=retrying.build_overrides(),
        deployment=deployment,
        keep_last=keep_last,
        keep_every=keep_every,
        max_run_time=max_run_time,
        here=here,
    )
    jobs = open_jobs(terminal, remote)
    # The launcher starts while the job is planned.
    starts = jobs.ledger and not dry_run
    with open_job_launcher(options.to_submit_options()) if starts else nullcontext() as launcher:
        folder = config.absolute().parent
        project, warnings = apply_overrides(load_training_project(config), overrides)
        for warning in warnings:
            terminal.warn(warning)
        if dry_run:
            return _show_plan(terminal, jobs.plan(project, folder, options))
        with terminal.spinner("Submitting the job"):
            document = jobs.push(project, folder, options, launcher)
    return print_and_follow(terminal, jobs, document, tail=tail, wait=wait)


def _show_plan(terminal: Terminal, document: Document) -> int:
    plan = codec.decode(GangPlan, document)
    return terminal.print_result(
        document, lambda: show_plan(terminal, plan, document.get("workspace"))
    )
