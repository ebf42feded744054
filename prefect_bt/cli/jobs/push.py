"""`prefect-bt push`: from a config file to a running job."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from prefect_bt.cli.jobs.retry_options import NO_RETRY_OPTIONS, RetryOptions
from prefect_bt.cli.jobs.submission_result import FollowOptions, print_and_follow
from prefect_bt.cli.ui.options import InjectedTerminal, MaxRunTime, Output, Remote, Tail
from prefect_bt.cli.ui.terminal import OK, Terminal

if TYPE_CHECKING:
    from prefect_bt.definitions import Overrides, TrainingProject
    from prefect_bt.jobs.options import SubmitOptions
    from prefect_bt.jobs.start import JobLauncher

Trigger = Literal["on_startup", "on_failure", "on_demand"]


def push(
    config: Annotated[Path, Parameter(help="Python file with one TrainingProject.")],
    /,
    *,
    tail: Tail = False,
    wait: Annotated[
        bool, Parameter(help="Stay until the job is over; exit 0 only if it completed.")
    ] = False,
    job_name: Annotated[str | None, Parameter(help="Name of the job.")] = None,
    team: Annotated[
        str | None, Parameter(help="Team that owns the project; `default` is the default team.")
    ] = None,
    accelerator: Annotated[
        str | None, Parameter(help="TYPE[:N] GPUs a node, or `none` for a CPU job.")
    ] = None,
    node_count: Annotated[int | None, Parameter(help="Nodes of the gang.")] = None,
    entrypoint: Annotated[
        str | None, Parameter(help="One start command instead of the config's.")
    ] = None,
    priority: Annotated[int | None, Parameter(help="Higher ones leave the queue first.")] = None,
    spot: Annotated[bool, Parameter(help="Take nodes that may be preempted.")] = False,
    interactive: Annotated[Trigger | None, Parameter(help="When a session opens.")] = None,
    interactive_timeout_minutes: Annotated[
        int | None, Parameter(help="Minutes until an unused session closes.")
    ] = None,
    substrate: Annotated[
        str | None,
        Parameter(help="Where the nodes run: local, docker or kubernetes (PREFECT_BT_SUBSTRATE)."),
    ] = None,
    retrying: RetryOptions = NO_RETRY_OPTIONS,
    keep_last: Annotated[
        int | None, Parameter(help="Let go of checkpoints but the last N; all stay when left out.")
    ] = None,
    keep_every: Annotated[
        int | None, Parameter(help="Keep those whose step is a multiple of it, too.")
    ] = None,
    max_run_time: MaxRunTime = None,
    deployment: Annotated[
        str | None, Parameter(help="Prefect `flow/deployment` that runs the job.")
    ] = None,
    dry_run: Annotated[
        bool, Parameter(help="Print what would run; write nothing, start nothing.")
    ] = False,
    output: Output = "cli-table",
    remote: Remote = None,
    terminal: InjectedTerminal,
) -> int:
    """Submit the job of a config file.

    The folder of the config file is packed and goes along. Options win over the config file.
    Ctrl-C during --tail or --wait leaves the job running.

    For example:

    `prefect-bt push config.py --tail`

    `prefect-bt push config.py --accelerator none --entrypoint "python train.py --steps 10" --wait`

    `prefect-bt push config.py --dry-run -o json`
    """
    _ = remote
    with _open_launcher(
        deployment, dry_run=dry_run
    ) as starter:  # first: it gets ready while we plan
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
            folder = _folder(config)
            document = submit(project, source_dir=folder, options=options, launcher=starter)
    return print_and_follow(terminal, document, FollowOptions(tail=tail, wait=wait, output=output))


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


def _folder(config: Path) -> Path:
    return config.absolute().parent


def _show_plan(
    terminal: Terminal, project: TrainingProject, config: Path, options: SubmitOptions
) -> int:
    from prefect_bt import codec
    from prefect_bt.cli.jobs.render_plan import show_plan
    from prefect_bt.jobs.submit import dry_run
    from prefect_bt.workspace.pack_summary import workspace_document

    plan, contents = dry_run(project, source_dir=_folder(config), options=options)
    workspace = workspace_document(contents)
    if terminal.machine_readable:
        terminal.print_json({**codec.encode(plan), **workspace})
    else:
        show_plan(terminal, plan, workspace.get("workspace"))
    return OK
