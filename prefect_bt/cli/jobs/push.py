"""`prefect-bt push`: submit the job of a config file."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from prefect_bt.cli.jobs.retry_options import NO_RETRY_OPTIONS, RetryOptions
from prefect_bt.cli.jobs.submission_result import FollowOptions, print_and_follow
from prefect_bt.cli.ui.options import (
    Deployment,
    DryRun,
    InjectedTerminal,
    MaxRunTime,
    Output,
    PositiveCount,
    Remote,
    Tail,
    Wait,
)
from prefect_bt.cli.ui.terminal import Terminal

if TYPE_CHECKING:
    from prefect_bt.definitions import Overrides, TrainingProject
    from prefect_bt.jobs.options import SubmitOptions
    from prefect_bt.jobs.start import JobLauncher

Trigger = Literal["on_startup", "on_failure", "on_demand"]


def push(
    config: Annotated[Path, Parameter(help="Python file that defines one TrainingProject.")],
    /,
    *,
    tail: Tail = False,
    wait: Wait = False,
    job_name: Annotated[str | None, Parameter(help="Name of the job.")] = None,
    team: Annotated[
        str | None, Parameter(help="Team that owns the project; `default` is the default team.")
    ] = None,
    accelerator: Annotated[
        str | None, Parameter(help="GPUs of each node, as TYPE[:N], or `none` for a CPU job.")
    ] = None,
    node_count: Annotated[int | None, Parameter(help="Number of nodes.")] = None,
    entrypoint: Annotated[
        str | None, Parameter(help="One start command that replaces those of the config.")
    ] = None,
    priority: Annotated[
        int | None, Parameter(help="Priority in the queue; higher starts first.")
    ] = None,
    spot: Annotated[bool, Parameter(help="Use nodes that can be preempted.")] = False,
    interactive: Annotated[
        Trigger | None, Parameter(help="When an interactive session opens.")
    ] = None,
    interactive_timeout_minutes: Annotated[
        int | None, Parameter(help="Minutes after which an unused session closes.")
    ] = None,
    substrate: Annotated[
        str | None,
        Parameter(
            help="Where nodes run: local, docker or kubernetes; default: PREFECT_BT_SUBSTRATE."
        ),
    ] = None,
    retrying: RetryOptions = NO_RETRY_OPTIONS,
    keep_last: Annotated[
        PositiveCount,
        Parameter(help="Keep only the last N checkpoints; default: keep all."),
    ] = None,
    keep_every: Annotated[
        PositiveCount, Parameter(help="Also keep checkpoints whose step is a multiple of N.")
    ] = None,
    max_run_time: MaxRunTime = None,
    deployment: Deployment = None,
    dry_run: DryRun = False,
    output: Output = "cli-table",
    remote: Remote = None,
    terminal: InjectedTerminal,
) -> int:
    """Pack the folder of the config file, validate and plan the job, and start it.

    Options override the config file. With --tail or --wait, Ctrl-C detaches and the job continues.

    Examples:

    `prefect-bt push config.py --tail`

    `prefect-bt push config.py --accelerator none --entrypoint "python train.py --steps 10" --wait`

    `prefect-bt push config.py --dry-run -o json`
    """
    with _open_launcher(deployment, dry_run=dry_run) as launcher:  # starts while the job is planned
        from prefect_bt.definitions import Overrides
        from prefect_bt.jobs.options import SubmitOptions
        from prefect_bt.jobs.submit import submit
        from prefect_bt.settings import Settings

        overrides = Overrides(
            job_name=job_name,
            team=team,
            interactive=interactive,
            interactive_timeout_minutes=interactive_timeout_minutes,
            accelerator=accelerator,
            node_count=node_count,
            entrypoint=entrypoint,
            priority=priority,
            spot=spot,
        )
        options = SubmitOptions(
            substrate=substrate or Settings().substrate,
            retry_choices=retrying.build_overrides(),
            deployment=deployment,
            keep_last=keep_last,
            keep_every=keep_every,
            max_run_time=max_run_time,
        )
        project = _load(terminal, config, overrides)
        if dry_run:
            return _show_plan(terminal, project, config, options)
        with terminal.spinner("Submitting the job"):
            folder = config.absolute().parent
            document = submit(project, source_dir=folder, options=options, launcher=launcher)
    return print_and_follow(terminal, document, FollowOptions(tail, wait))


def _open_launcher(
    deployment: str | None, *, dry_run: bool
) -> AbstractContextManager[JobLauncher | None]:
    from prefect_bt.jobs.start import open_launcher

    return nullcontext() if dry_run else open_launcher(deployment)


def _load(terminal: Terminal, config: Path, overrides: Overrides) -> TrainingProject:
    from prefect_bt.definitions import apply_overrides, load_training_project

    project, warnings = apply_overrides(load_training_project(config), overrides)
    for warning in warnings:
        terminal.warn(warning)
    return project


def _show_plan(
    terminal: Terminal, project: TrainingProject, config: Path, options: SubmitOptions
) -> int:
    from prefect_bt import codec
    from prefect_bt.cli.jobs.render_plan import show_plan
    from prefect_bt.jobs.submit import dry_run
    from prefect_bt.workspace.pack_summary import workspace_document

    plan, contents = dry_run(project, source_dir=config.absolute().parent, options=options)
    workspace = workspace_document(contents)
    return terminal.print_result(
        {**codec.encode(plan), **workspace},
        lambda: show_plan(terminal, plan, workspace.get("workspace")),
    )
