"""The `prefect-bt` command: which verbs there are, and how a run of one ends.

A verb's module is imported when it is called, so that `prefect-bt` starts fast; nothing here or in
those modules imports Prefect or a cloud's SDK before it is needed.

Exit codes: 0 it was done, 1 it was not, 2 it was asked for in a wrong way, 130 Ctrl-C.
"""

from __future__ import annotations

import logging
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Annotated, Any, Literal

from cyclopts import App, CycloptsError, Group, Parameter

from prefect_bt.cli.summaries import get_summary, to_markup
from prefect_bt.cli.ui.terminal import FAILED, INTERRUPTED, OK, USAGE, Terminal, open_terminal
from prefect_bt.errors import PrefectBtError

LogLevel = Literal[
    "humanfriendly", "W", "WARNING", "I", "INFO", "D", "DEBUG", "warning", "info", "debug"
]

_HELP = frozenset({"--help", "-h"})
_GLOBAL = Group("Global options", sort_key=9)
_COMMANDS = "prefect_bt.cli"
_GROUPS = frozenset({"cache", "checkpoints", "deployments", "weights"})
_ABOUT = "Training jobs on Prefect, from one config file. Verbs as in `truss train`."
_FIRST_STEPS = "First steps: `prefect-bt init`, then `prefect-bt push config.py --tail`."


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("prefect-bt")
    except PackageNotFoundError:
        return "0+unknown"


class LazyHelpApp(App):
    """An app that prints its list of commands without importing their modules."""

    def command(self, obj: Any = None, name: Any = None, **options: Any) -> Any:
        """Register a command; one given by its import path gets its line of cli.summaries."""
        if isinstance(obj, str):
            options["help"] = to_markup(get_summary(obj))
        return super().command(obj, name, **options)


def _make_app(kind: type[App] = App) -> App:
    app = kind(
        name="prefect-bt",
        help=_ABOUT if kind is App else to_markup(_ABOUT),
        help_epilogue=_FIRST_STEPS if kind is App else to_markup(_FIRST_STEPS),
        help_format="markdown" if kind is App else "rich",
        version=_version,
        version_flags=["--version"],
        default_parameter=Parameter(negative="", show_default=_format_default),
        result_action="return_value",
        suppress_keyboard_interrupt=False,
    )
    for command in (
        "jobs.push:push",
        "jobs.recreate:recreate",
        "jobs.retry:retry",
        "logs.logs:logs",
        "jobs.stop:stop",
        "jobs.view:view",
        "jobs.download:download",
        "init:init",
    ):
        verb = command.rpartition(":")[2]
        app.command(f"{_COMMANDS}.{command}", name=verb, help_epilogue="")
    app.command(
        f"{_COMMANDS}.checkpoints.list:get_checkpoint_urls",
        name="get_checkpoint_urls",
        alias="get-checkpoint-urls",
        help_epilogue="",
    )
    checkpoints = kind(
        name="checkpoints", help="List, fetch, check and delete checkpoints.", help_epilogue=""
    )
    checkpoints.command(f"{_COMMANDS}.checkpoints.list:list_checkpoints", name="list")
    checkpoints.command(f"{_COMMANDS}.checkpoints.download:download_checkpoints", name="download")
    checkpoints.command(f"{_COMMANDS}.checkpoints.show:show_checkpoint", name="show")
    checkpoints.command(f"{_COMMANDS}.checkpoints.serve:serve_checkpoints", name="serve")
    checkpoints.command(f"{_COMMANDS}.checkpoints.verify:verify_checkpoints", name="verify")
    checkpoints.command(f"{_COMMANDS}.checkpoints.prune:prune_checkpoints", name="prune")
    app.command(checkpoints)
    cache = kind(name="cache", help="See what a project's training cache holds.", help_epilogue="")
    cache.command(f"{_COMMANDS}.machine.training_cache:summarize", name="summarize")
    app.command(cache)
    weights = kind(name="weights", help="Mirror, list, check and remove weights.", help_epilogue="")
    weights.command(f"{_COMMANDS}.weights.list:list_weights", name="list")
    weights.command(f"{_COMMANDS}.weights.mirror:mirror_weights", name="mirror")
    weights.command(f"{_COMMANDS}.weights.verify:verify_weights", name="verify")
    weights.command(f"{_COMMANDS}.weights.prune:prune_weights", name="prune")
    app.command(weights)
    app.command(
        f"{_COMMANDS}.serving.deploy:deploy_checkpoints",
        name="deploy_checkpoints",
        alias=("deploy-checkpoints", "deploy_checkpoint"),
        help_epilogue="",
    )
    deployments = kind(
        name="deployments", help="See, ask, change and stop what is served.", help_epilogue=""
    )
    deployments.command(f"{_COMMANDS}.serving.deployments:list_deployments", name="list")
    deployments.command(f"{_COMMANDS}.serving.deployments:view_deployment", name="view")
    deployments.command(f"{_COMMANDS}.serving.call:call_deployment", name="call")
    deployments.command(f"{_COMMANDS}.serving.deployments:show_logs", name="logs")
    deployments.command(f"{_COMMANDS}.serving.deployments:promote_revision", name="promote")
    deployments.command(f"{_COMMANDS}.serving.deployments:roll_back", name="rollback")
    deployments.command(f"{_COMMANDS}.serving.deployments:stop_deployment", name="stop")
    app.command(deployments)
    app.command(f"{_COMMANDS}.jobs.delete:delete", name="delete", help_epilogue="")
    app.command(f"{_COMMANDS}.jobs.drill:drill", name="drill", help_epilogue="")
    app.command(f"{_COMMANDS}.machine.gc:gc", name="gc", help_epilogue="")
    app.command(f"{_COMMANDS}.machine.up_down:up", name="up", help_epilogue="")
    app.command(f"{_COMMANDS}.machine.up_down:down", name="down", help_epilogue="")
    app.command(
        f"{_COMMANDS}.machine.automations:create_automations", name="automations", help_epilogue=""
    )
    app.meta.default(_launcher(app))
    return app


def is_command_list(tokens: Sequence[str]) -> bool:
    """Whether the output is a list of commands: of all of them, or of one group."""
    words = [token for token in tokens if token not in _HELP]
    return not words or (len(words) == 1 and words[0] in _GROUPS)


def _format_default(value: object) -> str | None:
    return str(value) if isinstance(value, (int, str)) and value and value is not True else None


def main(tokens: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    given = list(sys.argv[1:] if tokens is None else tokens)
    terminal = open_terminal(interactive=True, debug=_is_debug_requested(given))
    app = _make_app(LazyHelpApp if is_command_list(given) else App)
    try:
        code = app.meta(given, exit_on_error=False, print_error=False)
        sys.stdout.flush()
    except BrokenPipeError:
        return _handle_broken_pipe()
    except KeyboardInterrupt:
        return INTERRUPTED
    except Exception as error:  # one of the few places where anything may arrive: it must be told
        return _report(terminal, error)
    return code if isinstance(code, int) else OK


def _launcher(app: App) -> Callable[..., object]:
    def launch(
        *tokens: Annotated[str, Parameter(show=False, allow_leading_hyphen=True)],
        non_interactive: Annotated[
            bool, Parameter(group=_GLOBAL, help="Never ask; take the answer that goes on.")
        ] = False,
        log: Annotated[
            LogLevel,
            Parameter(
                group=_GLOBAL,
                help="What to tell on standard error; DEBUG adds tracebacks.",
                show_choices=False,
            ),
        ] = "humanfriendly",
    ) -> object:
        command, bound, ignored = app.parse_args(tokens, exit_on_error=False, print_error=False)
        _set_up_logging(log)
        debug = log.lower() in {"d", "debug"}
        terminal = open_terminal(interactive=not non_interactive, debug=debug)
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
    """Known before the tokens are parsed, because parsing may be what fails."""
    debug = {"d", "debug"}
    levels = [b for a, b in pairwise(tokens) if a == "--log"]
    levels += [token.removeprefix("--log=") for token in tokens if token.startswith("--log=")]
    return any(level.lower() in debug for level in levels)


def _report(terminal: Terminal, error: Exception) -> int:
    if terminal.debug:
        traceback.print_exception(error)
    if isinstance(error, CycloptsError):
        terminal.error(f"{error}\nSee: {_help_for(error)}")
        return USAGE
    if isinstance(error, PrefectBtError):
        terminal.error(str(error))
        return FAILED
    settings = _settings_error(error)
    if settings:
        terminal.error(settings)
        return FAILED
    again = "" if terminal.debug else " Run it again with --log debug to see where."
    terminal.error(f"{type(error).__name__}: {error}.{again}")
    return FAILED


def _settings_error(error: Exception) -> str:
    """What is wrong with PREFECT_BT_* variables, if that is the error."""
    from pydantic import ValidationError

    from prefect_bt.settings import Settings, variable_name

    if not isinstance(error, ValidationError) or error.title != Settings.__name__:
        return ""
    return "; ".join(
        f"{variable_name('_'.join(map(str, e['loc'])))} is {e['input']!r}: {e['msg']}."
        for e in error.errors()
    )


def _help_for(error: CycloptsError) -> str:
    return " ".join(["prefect-bt", *(error.command_chain or ()), "--help"])


def _handle_broken_pipe() -> int:
    """Whoever read our output (`| head`) has gone; what is still buffered has no reader."""
    devnull = os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, sys.stdout.fileno())
    return FAILED


if __name__ == "__main__":
    sys.exit(main())
