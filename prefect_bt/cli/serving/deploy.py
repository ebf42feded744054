"""`prefect-bt deploy_checkpoints`: serve selected checkpoints."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from prefect_bt.cli.serving.deploy_input import DeploymentResolver
from prefect_bt.cli.serving.deploy_options import NO_SERVING_OPTIONS, ServingOptions
from prefect_bt.cli.serving.deployments import wait_on_terminal
from prefect_bt.cli.ui.options import NO_FILTER, InjectedTerminal, JobFilter, Output
from prefect_bt.cli.ui.terminal import Terminal
from prefect_bt.definitions import DeployCheckpointsConfig, load_deploy_checkpoints_config
from prefect_bt.errors import DefinitionError
from prefect_bt.host.service import is_loopback
from prefect_bt.ledger.open_ledger import open_ledger
from prefect_bt.serving.curl_example import CHAT, EXAMPLE_PROMPT, TRANSCRIPTION, format_curl
from prefect_bt.serving.deployment_records import ReadinessVerdict
from prefect_bt.serving.engines.truss_config import truss_config_text, write_truss_config
from prefect_bt.serving.rollout.deploy import (
    DeployedRevision,
    DeployOptions,
    deploy,
    plan_document,
    plan_serving,
)
from prefect_bt.serving.rollout.revisions import deployment_document
from prefect_bt.serving.served_model import ModelSelection
from prefect_bt.serving.serving_job import ServingJob


def deploy_checkpoints(
    *,
    which: JobFilter = NO_FILTER,
    config: Path | None = None,
    given: ServingOptions = NO_SERVING_OPTIONS,
    dry_run: bool = False,
    truss_config_output_dir: Path | None = None,
    wait: Annotated[bool, Parameter(negative="--no-wait")] = True,
    output: Output = "cli-table",
    terminal: InjectedTerminal,
) -> int:
    """Start a revision of a deployment, from one model or from LoRA adapters of one base model.

    A terminal asks for missing values: the checkpoints of the newest job, the base model, the model
    name, the accelerator and the secret with the Hugging Face token. Options override the config
    file. If the deployment serves already, the new revision replaces the old one once it is ready.
    Ctrl-C ends the waiting; the server continues.

    Args:
        config: Load a Python file with one DeployCheckpointsConfig.
        dry_run: Print the plan and write the truss config. Start nothing.
        truss_config_output_dir: Write the truss config to this folder.
        wait: Wait until the server is ready, or fails.

    Examples:

    `prefect-bt deploy_checkpoints --job-id abc1234 --checkpoint latest --model-name stories`

    `prefect-bt deploy_checkpoints --config deploy.py --dry-run`
    """
    ledger = open_ledger()
    loaded = load_deploy_checkpoints_config(config) if config else DeployCheckpointsConfig()
    selection, options = DeploymentResolver(terminal, ledger, loaded, which, given).resolve()
    serving, planned = plan_serving(selection, options)
    _show_plan(terminal, serving, planned)
    path = None
    if dry_run or truss_config_output_dir:
        path = _write_truss_config(terminal, selection, options, truss_config_output_dir)
    if dry_run:
        return _finish_dry_run(terminal, serving, planned, path)
    with terminal.spinner("Starting the server"):
        deployed = deploy(selection, options)
    for note in deployed.notes[len(selection.notes) :]:
        terminal.info(f"note: {note}", style="dim")
    verdict = None
    if wait:
        verdict = wait_on_terminal(terminal, ledger, deployed.awaited, serving=not options.hold)
    document = {
        **deployment_document(ledger, deployed.name),
        "revision": deployed.revision.number,
        "job_id": deployed.job_id,
        "notes": list(deployed.notes),
        "truss_config": str(path) if path else None,
    }
    runs = ledger.runs.list(deployed.job_id)
    url = runs[-1].url or "none, `prefect-bt up` starts one" if runs else ""
    return terminal.print_result(
        document, lambda: _show_deployed(terminal, deployed, verdict, url=url, held=options.hold)
    )


def _show_plan(terminal: Terminal, serving: ServingJob, options: DeployOptions) -> None:
    selection, spec = serving.selection, serving.project.job.compute.accelerator
    terminal.echo(f"Deployment {options.model_name}", style="bold")
    for one in selection.models:
        name = f" as {one.name}" if one.name != one.checkpoint else ""
        what = f"{one.checkpoint} of job {one.job_id} ({one.format.value}){name}"
        _show_line(terminal, "Checkpoint", what)
    if base := selection.base:
        _show_line(terminal, "Tokenizer" if base.tokenizer_only else "Base model", base.model)
    gpus = f"{spec.count} {spec.accelerator.value}" if spec and spec.accelerator else "CPUs"
    _show_line(terminal, "Engine", f"{serving.engine} on {options.substrate}, {gpus}")
    for note in selection.notes:
        terminal.info(f"note: {note}", style="dim")
    if options.host and not (is_loopback(options.host) or options.key_secret):
        terminal.warn(
            f"The deployment answers everyone who can reach {options.host}. "
            "--api-key-secret NAME requires a key."
        )


def _write_truss_config(
    terminal: Terminal, selection: ModelSelection, options: DeployOptions, folder: Path | None
) -> Path | None:
    """Write the config to `folder`, by default a new one in `truss_configs`. Print its path.

    Without `folder`, warn and return None for models that vLLM cannot serve. `options` has the
    compute as requested, not as available on this machine.
    """
    server = options.server
    try:
        text = truss_config_text(selection, options.model_name, server.compute, server.environment)
    except DefinitionError as error:
        if folder:
            raise
        terminal.warn(f"No truss config was written: {error}")
        return None
    path = write_truss_config(text, folder)
    terminal.echo(f"The truss config was written to {path}")
    _show_line(terminal, "View it", f"cat {shlex.quote(str(path))}")
    return path


def _finish_dry_run(
    terminal: Terminal, serving: ServingJob, options: DeployOptions, path: Path | None
) -> int:
    """Print the image, the commands, the weights and the truss config."""
    job = serving.project.job
    document = plan_document(serving, options, truss_config=path)

    def show() -> None:
        if options.substrate != "local":
            _show_line(terminal, "Image", job.image.base_image)
        for command in job.runtime.start_commands:
            _show_line(terminal, "Command", command.removeprefix("exec "))
        for source in job.weights:
            _show_line(terminal, "Weights", f"{source.source} at {source.mount_location}")
        if path:
            terminal.echo(f"\n{path.read_text('utf-8').rstrip()}\n", style="dim")
            _show_line(terminal, "Deploy it", f"cd {shlex.quote(str(path.parent))} && truss push")
        terminal.echo("Dry run: nothing was deployed.", style="yellow")

    return terminal.print_result(document, show)


def _show_deployed(
    terminal: Terminal,
    deployed: DeployedRevision,
    verdict: ReadinessVerdict | None,
    *,
    url: str,
    held: bool,
) -> None:
    """Print where the deployment answers and how to try it. `verdict`: None if it is not ready."""
    name, revision = deployed.name, deployed.revision
    terminal.echo(f"Successfully created deployment: {name}", style="green")
    _show_line(terminal, "Revision", f"{revision.number} ({revision.engine})")
    _show_line(terminal, "Job", deployed.job_id)
    _show_line(terminal, "Address", f"{deployed.address}/v1")
    _show_line(terminal, "Logs", f"prefect-bt deployments logs {name} --tail")
    _show_line(terminal, "Details", f"prefect-bt deployments view {name}")
    if url:
        _show_line(terminal, "UI", url)
    if held:
        promote = f"prefect-bt deployments promote {name} --revision {revision.number}"
        terminal.echo(f"Revision {revision.number} is on hold. Serve it: {promote}", style="yellow")
    elif verdict is None:
        terminal.echo(f"Revision {revision.number} serves once it is ready.", style="yellow")
    model, names = revision.models[0], json.dumps([*revision.models, name])
    terminal.echo(f"\nThe request field `model` must be one of {names}:")
    expected = TRANSCRIPTION if revision.kind == "whisper" else CHAT
    endpoint = verdict.way if verdict else expected
    if endpoint == CHAT:
        messages = [{"role": "user", "content": EXAMPLE_PROMPT}]
        terminal.echo(f"  {json.dumps({'model': model, 'messages': messages})}")
    has_key = bool(revision.key_secret)
    terminal.echo(f"  {format_curl(deployed.address, model, has_key=has_key, endpoint=endpoint)}")


def _show_line(terminal: Terminal, label: str, value: str) -> None:
    terminal.echo(f"  {label + ':':12}{value}")
