"""The `prefect-bt` command: parse its words, run a command, and report errors with an exit code.

Commands are registered by import path, so that `prefect-bt --help` imports none of their modules.
Nothing here imports Prefect or the SDK of a cloud.
"""

from __future__ import annotations

import inspect
import logging
import re
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from itertools import chain, pairwise
from typing import Annotated, Final, Literal, cast

from cyclopts import App, CycloptsError, Group, Parameter

from prefect_bt.cli import command_table
from prefect_bt.cli.interrupt import INTERRUPTED, raise_on_interrupt, was_interrupted
from prefect_bt.cli.ui.terminal import (
    FAILED,
    OK,
    USAGE,
    Terminal,
    document_alone,
    open_terminal,
)
from prefect_bt.errors import PrefectBtError, UsageError

LogLevel = Literal[
    "humanfriendly", "W", "WARNING", "I", "INFO", "D", "DEBUG", "warning", "info", "debug"
]

_ALIASES: Final = {
    "get_checkpoint_urls": ["get-checkpoint-urls"],
    "deploy_checkpoints": ["deploy-checkpoints", "deploy_checkpoint"],
}

_REWORDED: Final = (
    (r" Available commands: .*", ""),
    (r"^Unused Tokens: \[(.*)\]\.", r"Unexpected argument: \1."),
    (r'^(?:Command ".*" p|P)arameter "?(.*?)"? requires an argument', r"A value is missing: \1"),
    (r"""\"\('(.*)',\)\"""", r'"\1"'),
)
"""Patterns in the messages of cyclopts, and what users read instead."""
_GLOBAL_OPTIONS: Final = Group(command_table.GLOBAL_OPTIONS, sort_key=9)


def make_app() -> App:
    """Return the app with every command registered and none imported."""
    app = App(
        name="prefect-bt",
        version=_version,
        version_flags=["--version"],
        default_parameter=Parameter(negative="", show_default=_format_default),
        result_action="return_value",
        suppress_keyboard_interrupt=False,
    )
    for name, about in command_table.GROUPS.items():
        app.command(App(name=name, help=about))
    for name, path, about in chain.from_iterable(command_table.REGISTRY.values()):
        parent, _, verb = name.rpartition(" ")
        for alias in (verb, *_ALIASES.get(name, ())):
            (app[parent] if parent else app).command(
                f"prefect_bt.cli.{path}", name=alias, help=about, show=alias == verb
            )
    app.command(_install_completion, name="--install-completion", help="Install completion.")
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
    app = make_app()
    try:
        if command_table.HELP_FLAGS & set(given):
            describe_command(app, given)
        code = app.meta(given, exit_on_error=False, print_error=False)
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except KeyboardInterrupt:
        return INTERRUPTED
    except Exception as error:  # every error of a command is reported here
        return INTERRUPTED if was_interrupted() else _report(terminal, error)
    return code if isinstance(code, int) else OK


def _install_completion(*, terminal: Annotated[Terminal, Parameter(parse=False)]) -> None:
    from cyclopts.completion.detect import ShellDetectionError

    try:
        path = make_app().install_completion()
    except ShellDetectionError:
        raise UsageError("The shell is unknown. Set SHELL to bash, zsh or fish.") from None
    terminal.echo(f"Completion is installed in {path}", style="green")
    terminal.echo("Start a new shell to use it.")


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
            bool, Parameter(group=_GLOBAL_OPTIONS, help=command_table.NON_INTERACTIVE)
        ] = False,
        log: Annotated[
            LogLevel,
            Parameter(
                group=_GLOBAL_OPTIONS, help=command_table.LOG, metavar="LEVEL", show_choices=False
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
        _check_server(command.__name__, bound.arguments)
        raise_on_interrupt()
        extra = {"terminal": terminal} if "terminal" in ignored else {}
        with document_alone() if terminal.machine_readable else nullcontext():
            return command(*bound.args, **bound.kwargs, **extra)

    return launch


def _check_server(command: str, arguments: Mapping[str, object]) -> None:
    """Raise UsageError if a command that needs the store would work with another one unnoticed."""
    if command in command_table.REMOTE or command in command_table.WITHOUT_STORE:
        return
    from prefect_bt.job_service.remotes import find_server

    remote = arguments.get("remote") or getattr(arguments.get("which"), "remote", None)
    if server := find_server(cast("str | None", remote)):
        unset = "" if remote else ", and unset PREFECT_BT_API_URL there"
        raise UsageError(
            f"This command does not work through {server.origin} ({server.url}).",
            next_step=f"Run it on a machine that has access to the store{unset}.",
        )


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
        command, text = " ".join(["prefect-bt", *(error.command_chain or ())]), str(error)
        for pattern, replacement in _REWORDED:
            text = re.sub(pattern, replacement, text)
        terminal.error(f"{text}\nSee: {command} --help")
        return USAGE
    from prefect_bt.settings import format_settings_error

    if isinstance(error, PrefectBtError):
        terminal.error(str(error))
        option = str(getattr(error, "field", "")).startswith("--")
        return USAGE if option or isinstance(error, UsageError) else FAILED
    if invalid := format_settings_error(error):
        terminal.error(invalid)
    else:
        again = "" if terminal.debug else " Run it again with --log debug to see the traceback."
        terminal.error(f"{type(error).__name__}: {error}.{again}")
    return FAILED
