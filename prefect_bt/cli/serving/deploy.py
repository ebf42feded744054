"""`prefect-bt deploy_checkpoints`: from chosen checkpoints to a server that answers."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from prefect_bt.cli.serving.deploy_options import NO_SERVING_OPTIONS, ServingOptions
from prefect_bt.cli.ui.options import NO_FILTER, InjectedTerminal, JobFilter, Output
from prefect_bt.cli.ui.terminal import OK, Terminal
from prefect_bt.errors import DefinitionError, ServingError

if TYPE_CHECKING:
    from prefect_bt.definitions import Compute, DeployCheckpointsConfig
    from prefect_bt.ledger.ledger import Ledger
    from prefect_bt.serving.deployment_records import ReadinessVerdict
    from prefect_bt.serving.rollout.deploy import DeployedRevision, DeployOptions
    from prefect_bt.serving.serving_job import ServingJob

_VERB = "deploy_checkpoints"


def deploy_checkpoints(
    *,
    which: JobFilter = NO_FILTER,
    config: Annotated[
        Path | None, Parameter(help="Python file with one DeployCheckpointsConfig.")
    ] = None,
    given: ServingOptions = NO_SERVING_OPTIONS,
    dry_run: Annotated[
        bool, Parameter(help="Show what would run, write its truss config; start nothing.")
    ] = False,
    truss_config_output_dir: Annotated[
        Path | None, Parameter(help="Write the truss config into this folder.")
    ] = None,
    wait: Annotated[
        bool, Parameter(negative="--no-wait", help="Stay until it answers, or is known not to.")
    ] = True,
    output: Output = "cli-table",
    terminal: InjectedTerminal,
) -> int:
    """Serve checkpoints of a job behind an address with OpenAI's API.

    A terminal is asked for what is left out: checkpoints of the newest job, a base model that the
    adapters do not tell, a name, an accelerator. Deployed under a name that serves already, they
    take over once they answer, and not before; Ctrl-C ends the waiting only.

    For example:

    `prefect-bt deploy_checkpoints --job-id abc1234 --checkpoint latest --model-name stories`

    `prefect-bt deploy_checkpoints --config deploy.py --dry-run`
    """
    from prefect_bt.cli.serving.render_deploy import show_choice
    from prefect_bt.cli.serving.resolve import DeployInputs, resolve_deployment
    from prefect_bt.cli.serving.wizard import Wizard
    from prefect_bt.ledger.opening import open_ledger
    from prefect_bt.serving.rollout.deploy import plan_serving

    ledger = open_ledger()
    desk = DeployInputs(ledger, _load(config), which, given, Wizard(terminal, _VERB))
    choice, options = resolve_deployment(desk)
    serving, filled = plan_serving(choice, options)
    terminal.echo(f"Deployment {options.model_name}", style="bold")
    show_choice(terminal, serving, filled)
    path = None
    if dry_run or truss_config_output_dir:
        compute = options.server.compute  # as it was asked for, not as this machine has it
        path = _write_config(terminal, serving, filled, compute, truss_config_output_dir)
    if dry_run:
        return _print_dry_run(terminal, serving, filled, path)
    if path:
        _print_config_path(terminal, path)
    return _deploy(terminal, ledger, serving, options, path, wait=wait)


def _load(config: Path | None) -> DeployCheckpointsConfig:
    from prefect_bt.definitions import DeployCheckpointsConfig, load_deploy_checkpoints_config

    return load_deploy_checkpoints_config(config) if config else DeployCheckpointsConfig()


def _print_dry_run(
    terminal: Terminal, serving: ServingJob, options: DeployOptions, path: Path | None
) -> int:
    from prefect_bt.cli.serving.render_deploy import dry_run_document, show_dry_run

    if terminal.machine_readable:
        terminal.print_json(dry_run_document(serving, options, path))
        return OK
    show_dry_run(terminal, serving, options)
    if path:
        terminal.echo()
        terminal.echo(path.read_text("utf-8").rstrip(), style="dim")
        terminal.echo()
        _print_config_path(terminal, path, dry_run=True)
    terminal.echo("This was a dry run: nothing was deployed.", style="yellow")
    return OK


# -- the truss config -------------------------------------------------------------------------


def _write_config(
    terminal: Terminal,
    serving: ServingJob,
    options: DeployOptions,
    compute: Compute,
    folder: Path | None,
) -> Path | None:
    """Its path; None where vLLM does not serve this, unless somebody named the folder."""
    from prefect_bt.serving.engines.truss_config import FILE_NAME, truss_config_text

    environment = options.server.environment
    try:
        text = truss_config_text(serving.selection, options.model_name, compute, environment)
    except DefinitionError as error:
        if folder:
            raise
        terminal.warn(f"There is no truss config of it: {error}")
        return None
    target = folder or Path("truss_configs") / f"dry_run_{time.strftime('%Y%m%d_%H%M%S')}"
    try:
        target.mkdir(parents=True, exist_ok=True)
        (target / FILE_NAME).write_text(text, "utf-8")
    except OSError as error:
        raise DefinitionError(
            f"The truss config cannot be written to {target}: {error.strerror}.",
            next_step="Name another folder with --truss-config-output-dir.",
        ) from error
    return target / FILE_NAME


def _print_config_path(terminal: Terminal, path: Path, *, dry_run: bool = False) -> None:
    from prefect_bt.cli.serving.render_deploy import print_config_path

    print_config_path(terminal, path, dry_run=dry_run)


# -- deploying --------------------------------------------------------------------------------


def _deploy(
    terminal: Terminal,
    ledger: Ledger,
    serving: ServingJob,
    options: DeployOptions,
    path: Path | None,
    *,
    wait: bool,
) -> int:
    from prefect_bt.cli.serving.render_deploy import print_curl_example, print_deployed
    from prefect_bt.cli.serving.wait import print_failure
    from prefect_bt.serving.rollout.deploy import deploy

    with terminal.spinner("Starting the deployment"):
        deployed = deploy(serving.selection, options)
    for note in deployed.notes[len(serving.selection.notes) :]:
        terminal.info(f"note: {note}", style="dim")
    verdict = None
    if wait:
        try:
            verdict = _wait_until_ready(terminal, ledger, deployed, hold=options.hold)
        except ServingError as error:
            return print_failure(terminal, error)
    if terminal.machine_readable:
        terminal.print_json(_document(ledger, deployed, path))
        return OK
    print_deployed(terminal, ledger, deployed, serving)
    _print_state(terminal, deployed, options, waited=wait)
    key = bool(deployed.revision.key_secret)
    print_curl_example(terminal, deployed, key=key, verdict=verdict)
    return OK


def _wait_until_ready(
    terminal: Terminal, ledger: Ledger, deployed: DeployedRevision, *, hold: bool
) -> ReadinessVerdict:
    from prefect_bt.cli.serving.wait import (
        AwaitedRevision,
        detach_on_interrupt,
        progress_status,
        wait_for_serving,
    )
    from prefect_bt.serving.rollout.deploy import wait_for_ready

    awaited = AwaitedRevision(deployed.name, deployed.revision.number, deployed.job_id)
    with detach_on_interrupt(terminal, awaited), progress_status(terminal, awaited.label) as tell:
        verdict = wait_for_ready(ledger, deployed, tell)
        if not hold:
            wait_for_serving(ledger, awaited, tell)
    return verdict


def _print_state(
    terminal: Terminal, deployed: DeployedRevision, options: DeployOptions, *, waited: bool
) -> None:
    name, number = deployed.name, deployed.revision.number
    if options.hold:
        terminal.echo(
            f"Revision {number} stands by. Have it serve: "
            f"prefect-bt deployments promote {name} --revision {number}",
            style="yellow",
        )
    elif not waited:
        terminal.echo(f"Revision {number} is starting; it serves once it answers.", style="yellow")


def _document(ledger: Ledger, deployed: DeployedRevision, path: Path | None) -> dict[str, Any]:
    from prefect_bt.serving.rollout.revisions import deployment_document

    return {
        **deployment_document(ledger, deployed.name),
        "revision": deployed.revision.number,
        "job_id": deployed.job_id,
        "notes": list(deployed.notes),
        "truss_config": str(path) if path else None,
    }
