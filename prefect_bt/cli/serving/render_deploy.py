"""Render a deployment before it starts and after it is ready."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prefect_bt.cli.ui.terminal import Terminal

if TYPE_CHECKING:
    from prefect_bt.ledger.ledger import Ledger
    from prefect_bt.serving.deployment_records import ReadinessVerdict
    from prefect_bt.serving.rollout.deploy import DeployedRevision, DeployOptions
    from prefect_bt.serving.serving_job import ServingJob

Document = dict[str, Any]


def show_choice(terminal: Terminal, serving: ServingJob, options: DeployOptions) -> None:
    """What is served as what, from what, on what."""
    choice, job = serving.selection, serving.project.job
    for number, one in enumerate(choice.models):
        head = "Serves:" if number == 0 else ""
        what = f"{one.checkpoint} of job {one.job_id} ({one.format.value})"
        terminal.echo(f"  {head:12}{what}{f' as {one.name}' if one.name != one.checkpoint else ''}")
    if choice.base:
        role = "Tokenizer:" if choice.base.tokenizer_only else "Base model:"
        terminal.echo(f"  {role:12}{choice.base.model}")
    spec = job.compute.accelerator
    gpus = f"{spec.count} {spec.accelerator.value}" if spec and spec.accelerator else "CPUs"
    terminal.echo(f"  {'Engine:':12}{serving.engine} on {options.substrate}, {gpus}")
    for note in choice.notes:
        terminal.info(f"note: {note}", style="dim")
    if options.host and not options.key_secret and not _is_loopback(options.host):
        terminal.warn(
            f"Whoever reaches {options.host} is answered; --api-key-secret NAME asks for a key."
        )


def show_dry_run(terminal: Terminal, serving: ServingJob, options: DeployOptions) -> None:
    """What would run, in addition to `show_choice`."""
    job = serving.project.job
    if options.substrate != "local":
        terminal.echo(f"  {'Image:':12}{job.image.base_image}")
    for number, command in enumerate(job.runtime.start_commands):
        terminal.echo(f"  {'Command:' if number == 0 else '':12}{command.removeprefix('exec ')}")
    for number, source in enumerate(job.weights):
        head = "Weights:" if number == 0 else ""
        terminal.echo(f"  {head:12}{source.source} at {source.mount_location}")


def dry_run_document(
    serving: ServingJob, options: DeployOptions, truss_config: Path | None
) -> Document:
    """`definition`: the serving job's, as JSON."""
    from prefect_bt.definitions import project_document

    choice = serving.selection
    return {
        "dry_run": True,
        "name": options.model_name,
        "engine": serving.engine,
        "substrate": options.substrate,
        "models": list(serving.served_names),
        "checkpoints": [
            {"job_id": one.job_id, "checkpoint": one.checkpoint, "type": one.format.value}
            for one in choice.models
        ],
        "base_model": choice.base.model if choice.base else None,
        "start_commands": list(serving.project.job.runtime.start_commands),
        "definition": project_document(serving.project),
        "notes": list(choice.notes),
        "truss_config": str(truss_config) if truss_config else None,
    }


def print_config_path(terminal: Terminal, path: Path, *, dry_run: bool) -> None:
    """Where the truss config lies, and what can be done with it."""
    terminal.echo(f"The truss config was written to {path}")
    terminal.echo(f"  See it:    cat {shlex.quote(str(path))}")
    if dry_run:
        terminal.echo(f"  Deploy it: cd {shlex.quote(str(path.parent))} && truss push")


def print_deployed(
    terminal: Terminal, ledger: Ledger, deployed: DeployedRevision, serving: ServingJob
) -> None:
    """The success block, up to what is still to come."""
    name, revision = deployed.name, deployed.revision
    terminal.echo(f"Successfully created deployment: {name}", style="green")
    terminal.echo(f"  Revision: {revision.number} ({serving.engine}), job {deployed.job_id}")
    terminal.echo(f"  Address:  {deployed.address}/v1")
    terminal.echo(f"  Logs:     prefect-bt deployments logs {name} --tail")
    terminal.echo(f"  Details:  prefect-bt deployments view {name}")
    runs = ledger.list_runs(deployed.job_id)
    if runs:
        page = runs[-1].url or "none; `prefect-bt up` starts a server with one"
        terminal.echo(f"  UI:       {page}")


def print_curl_example(
    terminal: Terminal, deployed: DeployedRevision, *, key: bool, verdict: ReadinessVerdict | None
) -> None:
    """Which names a request may say, and one that can be pasted. No `verdict` yet: a guess."""
    from prefect_bt.serving.curl_example import CHAT, EXAMPLE_PROMPT, TRANSCRIPTION, format_curl

    revision = deployed.revision
    first = revision.models[0]
    terminal.echo()
    names = json.dumps([*revision.models, deployed.name])
    terminal.echo(f"The field `model` of a request must be one of {names}:")
    if revision.kind != "whisper" and (verdict is None or verdict.way == CHAT):
        messages = [{"role": "user", "content": EXAMPLE_PROMPT}]
        terminal.echo(f"  {json.dumps({'model': first, 'messages': messages})}")
    way = verdict.way if verdict else TRANSCRIPTION if revision.kind == "whisper" else CHAT
    line = format_curl(deployed.address, first, has_key=key, endpoint=way)
    terminal.echo(f"  {line}")
    if revision.kind != "whisper":
        terminal.echo(
            f"  prefect-bt deployments call {deployed.name} {shlex.quote(EXAMPLE_PROMPT)}"
        )


def _is_loopback(host: str) -> bool:
    return host in {"localhost", "::1"} or host.startswith("127.")
