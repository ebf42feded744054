"""`prefect-bt deploy_checkpoints`: serve selected checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from prefect_bt.cli.serving import render_deploy
from prefect_bt.cli.serving.deploy_options import NO_SERVING_OPTIONS, ServingOptions
from prefect_bt.cli.serving.resolve import resolve_deployment
from prefect_bt.cli.serving.wait import wait_on_terminal
from prefect_bt.cli.ui.options import NO_FILTER, InjectedTerminal, JobFilter, Output
from prefect_bt.definitions import DeployCheckpointsConfig, load_deploy_checkpoints_config
from prefect_bt.ledger.opening import open_ledger
from prefect_bt.serving.rollout.deploy import deploy, plan_serving


def deploy_checkpoints(
    *,
    which: JobFilter = NO_FILTER,
    config: Annotated[
        Path | None, Parameter(help="Load a Python file with one DeployCheckpointsConfig.")
    ] = None,
    given: ServingOptions = NO_SERVING_OPTIONS,
    dry_run: Annotated[
        bool, Parameter(help="Print the plan and write the truss config. Start nothing.")
    ] = False,
    truss_config_output_dir: Annotated[
        Path | None, Parameter(help="Write the truss config to this folder.")
    ] = None,
    wait: Annotated[
        bool, Parameter(negative="--no-wait", help="Wait until the server is ready, or fails.")
    ] = True,
    output: Output = "cli-table",
    terminal: InjectedTerminal,
) -> int:
    """Start a revision of a deployment, from one model or from LoRA adapters of one base model.

    A terminal asks for missing values: the checkpoints of the newest job, the base model, the model
    name, the accelerator and the secret with the Hugging Face token. Options override the config
    file. If the deployment serves already, the new revision replaces the old one once it is ready.
    Ctrl-C ends the waiting; the server continues.

    Examples:

    `prefect-bt deploy_checkpoints --job-id abc1234 --checkpoint latest --model-name stories`

    `prefect-bt deploy_checkpoints --config deploy.py --dry-run`
    """

    ledger = open_ledger()
    loaded = load_deploy_checkpoints_config(config) if config else DeployCheckpointsConfig()
    selection, options = resolve_deployment(terminal, ledger, loaded, which, given)
    serving, planned = plan_serving(selection, options)
    render_deploy.show_plan(terminal, serving, planned)
    path = None
    if dry_run or truss_config_output_dir:
        path = render_deploy.write_truss_config(
            terminal, selection, options, truss_config_output_dir
        )
    if dry_run:
        return terminal.print_result(
            render_deploy.dry_run_document(serving, planned, path),
            lambda: render_deploy.show_dry_run(terminal, serving, planned, path),
        )
    with terminal.spinner("Starting the server"):
        deployed = deploy(selection, options)
    for note in deployed.notes[len(selection.notes) :]:
        terminal.info(f"note: {note}", style="dim")
    verdict = None
    if wait:
        verdict = wait_on_terminal(terminal, ledger, deployed.awaited, serving=not options.hold)
    return terminal.print_result(
        render_deploy.deployed_document(ledger, deployed, path),
        lambda: render_deploy.show_deployed(
            terminal, ledger, deployed, path, held=options.hold, verdict=verdict
        ),
    )
