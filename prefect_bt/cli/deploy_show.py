"""How a deployment looks before it starts, and once it serves (§11.4)."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prefect_bt.cli.terminal import Terminal

if TYPE_CHECKING:
    from prefect_bt.deploying import Deployed, DeployOptions
    from prefect_bt.ledger import Ledger
    from prefect_bt.serving.deployments import Verdict
    from prefect_bt.serving.project import ServingJob

Document = dict[str, Any]


def show_choice(terminal: Terminal, serving: ServingJob, options: DeployOptions) -> None:
    """What is served as what, from what, on what."""
    choice, job = serving.choice, serving.project.job
    for number, one in enumerate(choice.models):
        head = "Serves:" if number == 0 else ""
        what = f"{one.checkpoint} of job {one.job_id} ({one.format.value})"
        terminal.say(f"  {head:12}{what}{f' as {one.name}' if one.name != one.checkpoint else ''}")
    if choice.base:
        role = "Tokenizer:" if choice.base.tokenizer_only else "Base model:"
        terminal.say(f"  {role:12}{choice.base.model}")
    spec = job.compute.accelerator
    gpus = f"{spec.count} {spec.accelerator.value}" if spec and spec.accelerator else "CPUs"
    terminal.say(f"  {'Engine:':12}{serving.engine} on {options.substrate}, {gpus}")
    for note in choice.notes:
        terminal.note(f"note: {note}", style="dim")
    if options.host and not options.key_secret and not _is_this_machine(options.host):
        terminal.warn(
            f"Whoever reaches {options.host} is answered; --api-key-secret NAME asks for a key."
        )


def show_dry_run(terminal: Terminal, serving: ServingJob, options: DeployOptions) -> None:
    """What would run, in addition to `show_choice`."""
    job = serving.project.job
    if options.substrate != "local":
        terminal.say(f"  {'Image:':12}{job.image.base_image}")
    for number, command in enumerate(job.runtime.start_commands):
        terminal.say(f"  {'Command:' if number == 0 else '':12}{command.removeprefix('exec ')}")
    for number, source in enumerate(job.weights):
        head = "Weights:" if number == 0 else ""
        terminal.say(f"  {head:12}{source.source} at {source.mount_location}")


def dry_run_document(
    serving: ServingJob, options: DeployOptions, truss_config: Path | None
) -> Document:
    """`definition`: the serving job's, as JSON."""
    from prefect_bt.definitions import project_document

    choice = serving.choice
    return {
        "dry_run": True,
        "name": options.model_name,
        "engine": serving.engine,
        "substrate": options.substrate,
        "models": list(serving.names),
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


def say_config(terminal: Terminal, path: Path, *, dry_run: bool) -> None:
    """Where the truss config lies, and what can be done with it."""
    terminal.say(f"The truss config was written to {path}")
    terminal.say(f"  See it:    cat {shlex.quote(str(path))}")
    if dry_run:
        terminal.say(f"  Deploy it: cd {shlex.quote(str(path.parent))} && truss push")


def say_deployed(
    terminal: Terminal, ledger: Ledger, deployed: Deployed, serving: ServingJob
) -> None:
    """The success block, up to what is still to come."""
    name, revision = deployed.name, deployed.revision
    terminal.say(f"Successfully created deployment: {name}", style="green")
    terminal.say(f"  Revision: {revision.number} ({serving.engine}), job {deployed.job_id}")
    terminal.say(f"  Address:  {deployed.address}/v1")
    terminal.say(f"  Logs:     prefect-bt deployments logs {name} --tail")
    terminal.say(f"  Details:  prefect-bt deployments view {name}")
    runs = ledger.runs_of_job(deployed.job_id)
    if runs:
        page = runs[-1].url or "none; `prefect-bt up` starts a server with one"
        terminal.say(f"  UI:       {page}")


def say_how_to_ask(
    terminal: Terminal, deployed: Deployed, *, key: bool, verdict: Verdict | None
) -> None:
    """Which names a request may say, and one that can be pasted. No `verdict` yet: a guess."""
    from prefect_bt.serving.calling import CHAT, QUESTION, TRANSCRIPTION, curl_line

    revision = deployed.revision
    first = revision.models[0]
    terminal.say()
    names = json.dumps([*revision.models, deployed.name])
    terminal.say(f"The field `model` of a request must be one of {names}:")
    if revision.kind != "whisper" and (verdict is None or verdict.way == CHAT):
        messages = [{"role": "user", "content": QUESTION}]
        terminal.say(f"  {json.dumps({'model': first, 'messages': messages})}")
    way = verdict.way if verdict else TRANSCRIPTION if revision.kind == "whisper" else CHAT
    line = curl_line(deployed.address, first, key=key, way=way)
    terminal.say(f"  {line}")
    if revision.kind != "whisper":
        terminal.say(f"  prefect-bt deployments call {deployed.name} {shlex.quote(QUESTION)}")


def _is_this_machine(host: str) -> bool:
    return host in {"localhost", "::1"} or host.startswith("127.")
