"""Print the plan of a deployment, write its truss config, print the result."""

from __future__ import annotations

import json
import shlex
import time
from pathlib import Path

from prefect_bt.cli.ui.tables import Document
from prefect_bt.cli.ui.terminal import Terminal
from prefect_bt.definitions import project_document
from prefect_bt.errors import DefinitionError
from prefect_bt.ledger.ledger import Ledger
from prefect_bt.serving.curl_example import CHAT, EXAMPLE_PROMPT, TRANSCRIPTION, format_curl
from prefect_bt.serving.deployment_records import ReadinessVerdict
from prefect_bt.serving.engines.truss_config import FILE_NAME, truss_config_text
from prefect_bt.serving.rollout.deploy import DeployedRevision, DeployOptions
from prefect_bt.serving.rollout.revisions import deployment_document
from prefect_bt.serving.served_model import ModelSelection
from prefect_bt.serving.serving_job import ServingJob


def show_plan(terminal: Terminal, serving: ServingJob, options: DeployOptions) -> None:
    """Print the models, the base model, the engine and the hardware."""
    selection = serving.selection
    terminal.echo(f"Deployment {options.model_name}", style="bold")
    for one in selection.models:
        name = f" as {one.name}" if one.name != one.checkpoint else ""
        what = f"{one.checkpoint} of job {one.job_id} ({one.format.value}){name}"
        _show_line(terminal, "Checkpoint", what)
    if base := selection.base:
        _show_line(terminal, "Tokenizer" if base.tokenizer_only else "Base model", base.model)
    spec = serving.project.job.compute.accelerator
    gpus = f"{spec.count} {spec.accelerator.value}" if spec and spec.accelerator else "CPUs"
    _show_line(terminal, "Engine", f"{serving.engine} on {options.substrate}, {gpus}")
    for note in selection.notes:
        terminal.info(f"note: {note}", style="dim")
    if options.host and not options.key_secret and not _is_loopback(options.host):
        terminal.warn(
            f"The deployment answers everyone who can reach {options.host}. "
            "--api-key-secret NAME requires a key."
        )


def write_truss_config(
    terminal: Terminal, selection: ModelSelection, options: DeployOptions, folder: Path | None
) -> Path | None:
    """Write the config to `folder`, by default a new one in `truss_configs`; return its path.

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
    target = folder or Path("truss_configs") / f"dry_run_{time.strftime('%Y%m%d_%H%M%S')}"
    try:
        target.mkdir(parents=True, exist_ok=True)
        (target / FILE_NAME).write_text(text, "utf-8")
    except OSError as error:
        raise DefinitionError(
            f"The truss config cannot be written to {target}: {error.strerror}.",
            next_step="Choose another folder with --truss-config-output-dir.",
        ) from error
    return target / FILE_NAME


def dry_run_document(
    serving: ServingJob, options: DeployOptions, truss_config: Path | None
) -> Document:
    """Return the plan; `definition` is the serving job's."""
    selection = serving.selection
    return {
        "dry_run": True,
        "name": options.model_name,
        "engine": serving.engine,
        "substrate": options.substrate,
        "models": list(serving.served_names),
        "checkpoints": [
            {"job_id": one.job_id, "checkpoint": one.checkpoint, "type": one.format.value}
            for one in selection.models
        ],
        "base_model": selection.base.model if selection.base else None,
        "start_commands": list(serving.project.job.runtime.start_commands),
        "definition": project_document(serving.project),
        "notes": list(selection.notes),
        "truss_config": str(truss_config) if truss_config else None,
    }


def show_dry_run(
    terminal: Terminal, serving: ServingJob, options: DeployOptions, truss_config: Path | None
) -> None:
    """Print the image, the commands, the weights and the truss config."""
    job = serving.project.job
    if options.substrate != "local":
        _show_line(terminal, "Image", job.image.base_image)
    for command in job.runtime.start_commands:
        _show_line(terminal, "Command", command.removeprefix("exec "))
    for source in job.weights:
        _show_line(terminal, "Weights", f"{source.source} at {source.mount_location}")
    if truss_config:
        terminal.echo(f"\n{truss_config.read_text('utf-8').rstrip()}\n", style="dim")
        _show_path(terminal, truss_config)
        folder = shlex.quote(str(truss_config.parent))
        _show_line(terminal, "Deploy it", f"cd {folder} && truss push")
    terminal.echo("Dry run: nothing was deployed.", style="yellow")


def deployed_document(
    ledger: Ledger, deployed: DeployedRevision, truss_config: Path | None
) -> Document:
    return {
        **deployment_document(ledger, deployed.name),
        "revision": deployed.revision.number,
        "job_id": deployed.job_id,
        "notes": list(deployed.notes),
        "truss_config": str(truss_config) if truss_config else None,
    }


def show_deployed(
    terminal: Terminal,
    ledger: Ledger,
    deployed: DeployedRevision,
    truss_config: Path | None,
    *,
    held: bool,
    verdict: ReadinessVerdict | None,
) -> None:
    """Print where the deployment answers and how to try it. `verdict`: None if it is not ready."""
    name, revision = deployed.name, deployed.revision
    if truss_config:
        _show_path(terminal, truss_config)
    terminal.echo(f"Successfully created deployment: {name}", style="green")
    _show_line(terminal, "Revision", f"{revision.number} ({revision.engine})")
    _show_line(terminal, "Job", deployed.job_id)
    _show_line(terminal, "Address", f"{deployed.address}/v1")
    _show_line(terminal, "Logs", f"prefect-bt deployments logs {name} --tail")
    _show_line(terminal, "Details", f"prefect-bt deployments view {name}")
    if runs := ledger.list_runs(deployed.job_id):
        _show_line(terminal, "UI", runs[-1].url or "none, `prefect-bt up` starts one")
    if held:
        promote = f"prefect-bt deployments promote {name} --revision {revision.number}"
        terminal.echo(f"Revision {revision.number} is on hold. Serve it: {promote}", style="yellow")
    elif verdict is None:
        terminal.echo(f"Revision {revision.number} serves once it is ready.", style="yellow")
    _show_request(terminal, deployed, verdict)


def _show_request(
    terminal: Terminal, deployed: DeployedRevision, verdict: ReadinessVerdict | None
) -> None:
    """Print the values of the field `model` and a request to paste into a shell."""
    revision = deployed.revision
    model = revision.models[0]
    names = json.dumps([*revision.models, deployed.name])
    terminal.echo(f"\nThe request field `model` must be one of {names}:")
    expected = TRANSCRIPTION if revision.kind == "whisper" else CHAT
    endpoint = verdict.way if verdict else expected
    if endpoint == CHAT:
        messages = [{"role": "user", "content": EXAMPLE_PROMPT}]
        terminal.echo(f"  {json.dumps({'model': model, 'messages': messages})}")
    has_key = bool(revision.key_secret)
    curl = format_curl(deployed.address, model, has_key=has_key, endpoint=endpoint)
    terminal.echo(f"  {curl}")


def _show_path(terminal: Terminal, truss_config: Path) -> None:
    terminal.echo(f"The truss config was written to {truss_config}")
    _show_line(terminal, "View it", f"cat {shlex.quote(str(truss_config))}")


def _show_line(terminal: Terminal, label: str, value: str) -> None:
    terminal.echo(f"  {label + ':':12}{value}")


def _is_loopback(host: str) -> bool:
    return host in {"localhost", "::1"} or host.startswith("127.")
