"""The `prefect-bt` command: its commands, the options of all of them, and its exit codes.

Commands are registered by import path, so that `prefect-bt --help` imports none of their modules.
Nothing here imports Prefect or the SDK of a cloud.
"""

from __future__ import annotations

import inspect
import logging
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Annotated, Final, Literal

from cyclopts import App, CycloptsError, Group, Parameter

from prefect_bt.cli.ui.terminal import FAILED, INTERRUPTED, OK, USAGE, Terminal, open_terminal
from prefect_bt.errors import PrefectBtError

LogLevel = Literal[
    "humanfriendly", "W", "WARNING", "I", "INFO", "D", "DEBUG", "warning", "info", "debug"
]

_GLOBAL_OPTIONS: Final = Group("Global options", sort_key=9)
_JOBS: Final = Group("Jobs", sort_key=1)
_CHECKPOINTS: Final = Group("Checkpoints", sort_key=2)
_WEIGHTS: Final = Group("Weights and caches", sort_key=3)
_SERVING: Final = Group("Serving", sort_key=4)
_MACHINE: Final = Group("Machine", sort_key=5)

_GROUP_HELP: Final = {
    "checkpoints": (_CHECKPOINTS, "List, download, verify, prune and serve checkpoints."),
    "weights": (_WEIGHTS, "List, mirror, verify and prune weights."),
    "cache": (_WEIGHTS, "Show the training cache of a project."),
    "deployments": (_SERVING, "List, view, promote, roll back and stop deployments."),
}

_REGISTRY: Final = {
    _JOBS: (
        ("init", "init:init", "Create a training project, or copy examples."),
        ("push", "jobs.push:push", "Submit the job of a config file."),
        ("view", "jobs.view:view", "Show projects, jobs, or one job."),
        ("logs", "logs.logs:logs", "Print or follow the log of a job."),
        ("stop", "jobs.stop:stop", "Stop a job; save its last checkpoint."),
        ("retry", "jobs.recreate:retry", "Run a failed or stopped job again under its ID."),
        ("drill", "jobs.drill:drill", "Kill a rank of a job and see whether it resumes."),
        ("recreate", "jobs.recreate:recreate", "Submit a copy of a job as a new job."),
        ("download", "jobs.download:download", "Download the files that a job was pushed with."),
        ("delete", "jobs.delete:delete", "Delete a job or a project permanently."),
    ),
    _CHECKPOINTS: (
        ("checkpoints list", "checkpoints.list:list_checkpoints",
         "List or browse the checkpoints of a job."),
        ("checkpoints download", "checkpoints.download:download_checkpoints",
         "Download checkpoints as folders."),
        ("checkpoints verify", "checkpoints.verify:verify_checkpoints",
         "Hash every committed file again and report damage."),
        ("checkpoints prune", "checkpoints.prune:prune_checkpoints",
         "Delete checkpoints by name or by a retention policy."),
        ("checkpoints serve", "checkpoints.serve:serve_checkpoints",
         "Serve the checkpoint files of a local store over HTTP."),
        ("get_checkpoint_urls", "checkpoints.urls:get_checkpoint_urls",
         "Write a file with a URL for every checkpoint file of a job."),
    ),
    _WEIGHTS: (
        ("weights list", "weights.list:list_weights", "List mirrored sources and their sizes."),
        ("weights mirror", "weights.mirror:mirror_weights",
         "Download weights before a job needs them."),
        ("weights verify", "weights.verify:verify_weights",
         "Hash every mirrored file again and report damage."),
        ("weights prune", "weights.prune:prune_weights",
         "Delete mirrored sources from this machine or from the store."),
        ("cache summarize", "machine.training_cache:summarize",
         "List the files of a project's training cache."),
    ),
    _SERVING: (
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
    _MACHINE: (
        ("up", "machine.up_down:up", "Start a local Prefect server, its UI and a worker."),
        ("down", "machine.up_down:down", "Stop the local Prefect server and worker."),
        ("gc", "machine.gc:gc", "Find and delete files that no job owns any more."),
        ("automations", "machine.automations:create_automations",
         "Create Prefect automations for failed and completed jobs."),
    ),
}  # fmt: skip
"""Group -> name, import path below prefect_bt.cli, and help of its commands."""
COMMANDS: Final = tuple(name for commands in _REGISTRY.values() for name, _, _ in commands)
"""Names of all commands, such as `checkpoints list`."""

_ALIASES: Final = {
    "get_checkpoint_urls": ["get-checkpoint-urls"],
    "deploy_checkpoints": ["deploy-checkpoints", "deploy_checkpoint"],
}

_HELP_FLAGS: Final = frozenset({"--help", "-h"})
_ABOUT: Final = "Run training jobs on your own machines with Prefect, from one config file."
_EPILOGUE: Final = """\
First steps: prefect-bt init, then prefect-bt push truss-train-init/config.py --tail

Exit codes: 0 success, 1 failure, 2 wrong usage, 130 interrupted with Ctrl-C."""


def make_app(*, help_format: Literal["markdown", "plaintext"] = "markdown") -> App:
    """Return the app with every command registered and none imported."""
    app = App(
        name="prefect-bt",
        help=_ABOUT,
        help_epilogue=_EPILOGUE,
        help_format=help_format,
        version=_version,
        version_flags=["--version"],
        default_parameter=Parameter(negative="", show_default=_format_default),
        result_action="return_value",
        suppress_keyboard_interrupt=False,
    )
    for name, (group, about) in _GROUP_HELP.items():
        app.command(App(name=name, help=about, group=group, help_epilogue=""))
    listed = [(group, *command) for group, commands in _REGISTRY.items() for command in commands]
    for order, (group, name, path, about) in enumerate(listed):
        parent, _, verb = name.rpartition(" ")
        for alias in (verb, *_ALIASES.get(name, ())):
            (app[parent] if parent else app).command(
                f"prefect_bt.cli.{path}",
                name=alias,
                help=about,
                help_epilogue="",
                sort_key=order,
                show=alias == verb,
                group=None if parent else group,
            )
    for flag in ("--help", "--version"):
        app[flag].group = _GLOBAL_OPTIONS
    app.command(
        "prefect_bt.cli.completion:install_completion",
        name="--install-completion",
        help="Install completion for the current shell.",
        group=_GLOBAL_OPTIONS,
    )
    app.meta.default(_make_launcher(app))
    return app


def describe_command(app: App, words: Sequence[str]) -> App:
    """Import the command that `words` begin with, and return it with its docstring as help.

    The examples of the docstring follow the options.
    """
    command = app
    for word in words:
        if not word.startswith("-") and word in command:
            command = command[word]
        elif command is not app:  # options before the command are skipped
            break
    if (function := command.default_command) and command is not app:
        text, _, examples = (inspect.getdoc(function) or "").partition("Examples:\n")
        command.help = f"{command.help}\n\n{text.partition('Args:')[0]}"
        command.help_epilogue = f"Examples:\n\n{examples.strip()}" if examples else ""
    return command


def main(tokens: Sequence[str] | None = None) -> int:
    """Run one command; return the exit code."""
    given = list(sys.argv[1:] if tokens is None else tokens)
    terminal = open_terminal(interactive=True, debug=_is_debug_requested(given))
    # Rendering Markdown costs an import that a list of commands can do without.
    app = make_app(help_format="plaintext" if is_command_list(given) else "markdown")
    try:
        if _HELP_FLAGS & set(given):
            describe_command(app, given)
        code = app.meta(given, exit_on_error=False, print_error=False)
        sys.stdout.flush()
    except BrokenPipeError:
        return _handle_broken_pipe()
    except KeyboardInterrupt:
        return INTERRUPTED
    except Exception as error:  # every error of a command is reported here
        return _report(terminal, error)
    return code if isinstance(code, int) else OK


def is_command_list(tokens: Sequence[str]) -> bool:
    """Return whether the command prints a list of commands: all, or those of a group."""
    words = [token for token in tokens if token not in _HELP_FLAGS]
    return not words or (len(words) == 1 and words[0] in _GROUP_HELP)


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("prefect-bt")
    except PackageNotFoundError:
        return "0+unknown"


def _format_default(value: object) -> str | None:
    return (
        str(value) if isinstance(value, (int, float, str)) and value and value is not True else None
    )


def _make_launcher(app: App) -> Callable[..., object]:
    def launch(
        *tokens: Annotated[str, Parameter(show=False, allow_leading_hyphen=True)],
        non_interactive: Annotated[
            bool,
            Parameter(group=_GLOBAL_OPTIONS, help="Ask nothing; agree to every confirmation."),
        ] = False,
        log: Annotated[
            LogLevel,
            Parameter(
                group=_GLOBAL_OPTIONS,
                help="Log level on standard error; DEBUG adds tracebacks.",
                show_choices=False,
            ),
        ] = "humanfriendly",
    ) -> object:
        command, bound, ignored = app.parse_args(tokens, exit_on_error=False, print_error=False)
        _set_up_logging(log)
        terminal = open_terminal(
            interactive=not non_interactive,
            debug=log.lower() in {"d", "debug"},
            output=bound.arguments.get("output", "cli-table"),
        )
        extra = {"terminal": terminal} if "terminal" in ignored else {}
        return command(*bound.args, **bound.kwargs, **extra)

    return launch


def _set_up_logging(level: LogLevel) -> None:
    levels = {"d": logging.DEBUG, "i": logging.INFO}
    logging.basicConfig(
        level=levels.get(level[0].lower(), logging.WARNING),
        format="%(levelname)s %(name)s: %(message)s",
        stream=sys.stderr,
    )


def _is_debug_requested(tokens: Sequence[str]) -> bool:
    """Return whether --log debug is given; read before parsing, which itself can fail."""
    levels = [b for a, b in pairwise(tokens) if a == "--log"]
    levels += [token.removeprefix("--log=") for token in tokens if token.startswith("--log=")]
    return any(level.lower() in {"d", "debug"} for level in levels)


def _report(terminal: Terminal, error: Exception) -> int:
    if terminal.debug:
        traceback.print_exception(error)
    if isinstance(error, CycloptsError):
        command = " ".join(["prefect-bt", *(error.command_chain or ())])
        terminal.error(f"{error}\nSee: {command} --help")
        return USAGE
    from prefect_bt.settings import format_settings_error

    if isinstance(error, PrefectBtError):
        terminal.error(str(error))
    elif invalid := format_settings_error(error):
        terminal.error(invalid)
    else:
        again = "" if terminal.debug else " Run it again with --log debug to see the traceback."
        terminal.error(f"{type(error).__name__}: {error}.{again}")
    return FAILED


def _handle_broken_pipe() -> int:
    """Drop the rest of the output, which has no reader (`| head`)."""
    devnull = os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, sys.stdout.fileno())
    return FAILED
