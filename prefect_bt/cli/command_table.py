"""The commands of `prefect-bt`, and the overview that `prefect-bt --help` prints.

Nothing is imported here but the standard library: the overview is there in an instant.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

HELP_FLAGS: Final = frozenset({"--help", "-h"})

GROUPS: Final = {
    "checkpoints": "List, download, verify, prune, commit and serve checkpoints.",
    "weights": "List, mirror, verify and prune weights.",
    "cache": "Show the training cache of a project.",
    "api-key": "Create, list and revoke keys of the HTTP API.",
    "deployments": "List, view, promote, roll back and stop deployments.",
    "capacity": "Show GPUs, machines and limits, and set limits.",
}
"""First word of commands -> its help."""

REGISTRY: Final = {
    "Jobs": (
        ("init", "init:init", "Create a training project, or copy examples."),
        ("push", "jobs.push:push", "Submit the job of a config file."),
        ("view", "jobs.view:view", "Show projects, jobs, or one job."),
        ("queue", "queue.queue:queue", "Show the jobs that wait, and what they wait for."),
        ("update", "queue.update:update", "Change the priority of a job that waits."),
        ("logs", "logs.logs:logs", "Print or follow the log of a job."),
        ("metrics", "metrics.metrics:metrics", "Show what a job uses, and how its training goes."),
        ("costs", "jobs.costs:costs", "Sum the hours and the cost of jobs."),
        ("shell", "jobs.shell:shell", "Open a shell in a node of a running job."),
        ("stop", "jobs.stop:stop", "Stop a job; save its last checkpoint."),
        ("retry", "jobs.recreate:retry", "Run a failed or stopped job again under its ID."),
        ("drill", "jobs.drill:drill", "Kill a rank of a job and see whether it resumes."),
        ("recreate", "jobs.recreate:recreate", "Submit a copy of a job as a new job."),
        ("download", "jobs.download:download", "Download the files that a job was pushed with."),
        ("delete", "jobs.delete:delete", "Delete a job or a project permanently."),
    ),
    "Checkpoints": (
        ("checkpoints list", "checkpoints.list:list_checkpoints",
         "List or browse the checkpoints of a job."),
        ("checkpoints download", "checkpoints.download:download_checkpoints",
         "Download checkpoints as folders."),
        ("checkpoints verify", "checkpoints.verify:verify_checkpoints",
         "Hash every committed file again and report damage."),
        ("checkpoints prune", "checkpoints.prune:prune_checkpoints",
         "Delete checkpoints by name or by a retention policy."),
        ("checkpoints commit", "checkpoints.commit:commit_checkpoints",
         "Commit checkpoints that a job left on this machine."),
        ("checkpoints serve", "checkpoints.urls:serve_checkpoints",
         "Serve the checkpoint files of a local store (HTTP)."),
        ("get_checkpoint_urls", "checkpoints.urls:get_checkpoint_urls",
         "Write the URLs of a job's checkpoint files to a file."),
    ),
    "Weights and caches": (
        ("weights list", "weights.list:list_weights", "List mirrored sources and their sizes."),
        ("weights mirror", "weights.mirror:mirror_weights",
         "Download weights before a job needs them."),
        ("weights verify", "weights.verify:verify_weights",
         "Hash every mirrored file again and report damage."),
        ("weights prune", "weights.prune:prune_weights",
         "Delete mirrored sources on this machine or in the store."),
        ("cache summarize", "machine.training_cache:summarize",
         "List the files of a project's training cache."),
    ),
    "Serving": (
        ("deploy_checkpoints", "serving.deploy:deploy_checkpoints",
         "Serve checkpoints with an OpenAI-compatible API."),
        ("deployments list", "serving.deployments:list_deployments", "List deployments."),
        ("deployments view", "serving.deployments:view_deployment",
         "Show the address, revisions and history of a deployment."),
        ("deployments logs", "serving.deployments:show_logs",
         "Print or follow the log of a revision's server."),
        ("deployments promote", "serving.deployments:promote_revision",
         "Send requests to another revision."),
        ("deployments rollback", "serving.deployments:roll_back",
         "Send requests to the previous revision."),
        ("deployments stop", "serving.deployments:stop_deployment",
         "Stop the servers of a deployment."),
    ),
    "Capacity": (
        ("capacity view", "queue.capacity:view_capacity",
         "Show GPUs, machines and limits, and what is in use."),
        ("capacity update", "queue.capacity:update_capacity",
         "Limit the GPUs of all jobs or of a team."),
    ),
    "HTTP API": (
        ("api", "api.serve:serve_api", "Serve the Training API for truss and other clients."),
        ("api-key create", "api.api_key:create_key", "Create a key of the API."),
        ("api-key list", "api.api_key:list_keys", "List the keys of the API."),
        ("api-key revoke", "api.api_key:revoke_key", "Revoke a key of the API."),
        ("truss", "api.truss:truss", "Run the installed truss against our server."),
        ("isession", "api.sessions:refuse_session", "Interactive sessions: later."),
        ("update_session", "api.sessions:refuse_session", "Interactive sessions: later."),
        ("workstation", "api.sessions:refuse_session", "Workstations: later."),
        ("ssh", "api.sessions:refuse_session", "SSH: later."),
    ),
    "Machine": (
        ("up", "machine.up_down:up", "Start a local Prefect server, its UI and a worker."),
        ("worker", "machine.worker:worker", "Run jobs of the queue on this machine."),
        ("check", "machine.check:check", "Check that jobs can run here or in a cluster."),
        ("down", "machine.up_down:down", "Stop the local Prefect server and worker."),
        ("gc", "machine.gc:gc", "Find and delete files that no job owns any more."),
        ("automations", "machine.automations:create_automations",
         "Create automations for failed and completed jobs."),
    ),
}  # fmt: skip
"""Heading -> name, import path below prefect_bt.cli, and help of its commands."""
COMMANDS: Final = tuple(name for commands in REGISTRY.values() for name, _, _ in commands)
"""Names of all commands, such as `checkpoints list`."""

REMOTE: Final = frozenset({
    "push", "view", "queue", "logs", "metrics", "stop", "retry", "recreate",
    "list_checkpoints", "download_checkpoints",
})  # fmt: skip
"""Functions of the commands that work through a server."""
WITHOUT_STORE: Final = frozenset({
    "init", "truss", "_install_completion", "refuse_session",
})  # fmt: skip
"""Functions of the commands that need neither a store nor a server."""

_ABOUT: Final = "Run training jobs on your own machines with Prefect, from one config file."
_EPILOGUE: Final = """\
First steps:
  prefect-bt init
  prefect-bt push truss-train-init/config.py --tail

Exit codes: 0 success, 1 failure, 2 wrong usage, 130 interrupted with Ctrl-C."""
GLOBAL_OPTIONS: Final = "Global options"
NON_INTERACTIVE: Final = "Ask nothing; agree to every confirmation."
LOG: Final = "Log level on standard error; DEBUG adds tracebacks."
_OPTIONS: Final = (
    ("--non-interactive", NON_INTERACTIVE),
    ("--log LEVEL", LOG),
    ("--help, -h", "Show this help, or that of a command: prefect-bt push -h"),
    ("--version", "Show the version."),
    ("--install-completion", "Install completion for the current shell."),
)


_NO_COMMAND: Final = re.compile(r"(?<!\S)(?:-h|--help|--non-interactive|--log[= ]\S+)(?!\S)")


def find_overview(words: Sequence[str]) -> str | None:
    """Return the overview of all commands or of a group, if `words` ask for no more than that."""
    named = _NO_COMMAND.sub("", " ".join(words)).split()
    if len(named) > 1 or not GROUPS.keys() >= set(named):
        return None
    group, about = (f"{named[0]} ", GROUPS[named[0]]) if named else ("", _ABOUT)
    lines = [f"Usage: prefect-bt {group}COMMAND [OPTIONS]", "", about]
    for heading, rows in (*REGISTRY.items(), (GLOBAL_OPTIONS, _OPTIONS)):
        if shown := [row for row in rows if row[0].startswith((group, "--"))]:
            lines += ["", heading, *(f"  {name:<20}  {help}" for name, *_, help in shown)]
    return "\n".join(lines if named else [*lines, "", _EPILOGUE])


def color_overview(overview: str) -> str:
    """Return the overview with headings in bold and commands in cyan (ANSI)."""
    bold = re.sub(r"^\w.*(?=\n  )", "\033[1m\\g<0>\033[0m", overview, flags=re.M)
    return re.sub(r"^(  )(.{20})(?=  )", "\\1\033[36m\\2\033[0m", bold, flags=re.M)
