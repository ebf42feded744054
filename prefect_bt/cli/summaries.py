"""The line of each command in a list of commands, without importing the command's module.

Importing all of them takes half a second of CPU. Each line is the first sentence of the command's
docstring; tests/cli/test_imports.py compares the two.
"""

from __future__ import annotations

import re
from importlib import import_module
from typing import Any, Final

_PACKAGE: Final = "prefect_bt.cli."

SUMMARIES: Final[dict[str, str]] = {
    "machine.training_cache:summarize": (
        "List the files in a project's training cache, with their sizes."
    ),
    "checkpoints.list:get_checkpoint_urls": (
        "Write `<project>_<job>_checkpoints.json` with an address for every checkpoint file."
    ),
    "checkpoints.list:list_checkpoints": (
        "List the committed checkpoints of a job, by default of the newest one."
    ),
    "checkpoints.download:download_checkpoints": (
        "Get committed checkpoints as folders, by default all of the newest job."
    ),
    "checkpoints.prune:prune_checkpoints": (
        "Delete committed checkpoints: those named, and those that a policy lets go."
    ),
    "checkpoints.show:show_checkpoint": (
        "Show the tensors of a .safetensors file: names, types, shapes, sizes. Reads its "
        "header only."
    ),
    "checkpoints.verify:verify_checkpoints": (
        "Re-hash all committed files of a job, by default of the newest one."
    ),
    "jobs.delete:delete": (
        "Delete a job with its checkpoints and logs, or a project with all its jobs and its cache."
    ),
    "serving.deploy:deploy_checkpoints": (
        "Serve checkpoints of a job behind an address with OpenAI's API."
    ),
    "serving.deployments:list_deployments": "List the serving deployments of the store.",
    "serving.deployments:promote_revision": (
        "Have another revision serve; one whose server has ended is started again."
    ),
    "serving.deployments:roll_back": "Have the revision serve again that did before this one.",
    "serving.deployments:show_logs": "Print the log of a revision's server.",
    "serving.deployments:stop_deployment": (
        "Stop a deployment: its servers end, its address answers no more. Its revisions stay."
    ),
    "serving.deployments:view_deployment": (
        "Show a deployment: where it answers, its revisions, what happened."
    ),
    "serving.call:call_deployment": (
        "Ask a deployment something, as a chat; as plain text where the model knows no chat."
    ),
    "jobs.download:download": (
        "Get the files that a job was pushed with, as a folder `<project>_<job>`."
    ),
    "jobs.drill:drill": (
        "Start a job, kill a rank once a checkpoint is committed, and see it go on from there."
    ),
    "checkpoints.serve:serve_checkpoints": (
        "Serve the checkpoint files of a store in a local folder, until Ctrl-C."
    ),
    "machine.automations:create_automations": (
        "Create Prefect automations that notify of failures and serve checkpoints, or update them."
    ),
    "machine.gc:gc": (
        "Find what no living job owns, on this machine and in its store, and remove it."
    ),
    "init:init": (
        "Make a training project to start from: config.py and run.sh, or copies of examples."
    ),
    "machine.up_down:down": (
        "Stop the server and worker that `prefect-bt up` started; jobs on this machine go on."
    ),
    "machine.up_down:up": (
        "Start a local Prefect server with its UI, and a worker; pushes then start in a second."
    ),
    "logs.logs:logs": "Print the log of a job, by default the newest one's.",
    "jobs.push:push": "Submit the job of a config file.",
    "jobs.recreate:recreate": (
        "Submit a job again, with the same definition, files and retry policy, as a new job."
    ),
    "jobs.retry:retry": "Try a job again under its own id, from its last committed checkpoint.",
    "jobs.stop:stop": "Stop a job: polite signal, grace, a last save of what is whole.",
    "jobs.view:view": (
        "Show projects and what is queued or active; with a filter, the jobs it lets through."
    ),
    "weights.list:list_weights": (
        "List mirrored sources with their revision, size, last use, and the jobs that use them."
    ),
    "weights.mirror:mirror_weights": (
        "Mirror the sources of a config file, or those given, before a job needs them."
    ),
    "weights.prune:prune_weights": (
        "Remove mirrored sources from this machine, or their copies from the store."
    ),
    "weights.verify:verify_weights": "Re-hash all mirrored files of this machine.",
}
"""`module:function` below prefect_bt.cli -> the first sentence of its docstring."""


def get_summary(path: str) -> str:
    """Return the line of the command at `path`; from its docstring where none is written here."""
    return SUMMARIES.get(path.removeprefix(_PACKAGE)) or read_summary(path)


def read_summary(path: str) -> str:
    """Import the command at `path` and return the first sentence of its docstring."""
    module, _, name = path.partition(":")
    command: Any = getattr(import_module(module), name)
    return " ".join((command.__doc__ or "").strip().partition("\n\n")[0].split())


def to_markup(text: str) -> str:
    """Convert Markdown's `code` to Rich's markup, which needs no Markdown parser."""
    return re.sub(r"`([^`]+)`", r"[bold cyan]\1[/]", text.replace("[", r"\["))
