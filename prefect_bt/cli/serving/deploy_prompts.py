"""Prompts for values of `deploy_checkpoints` that neither an option nor the config file gives.

Prompts are on standard error, so that standard output has the result alone.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import questionary
from cyclopts import CycloptsError
from prompt_toolkit.output import create_output

from prefect_bt.cli.ui.terminal import Terminal, can_draw
from prefect_bt.errors import PrefectBtError


def can_ask(terminal: Terminal) -> bool:
    """Return whether a user can answer prompts."""
    return terminal.interactive and can_draw(sys.stderr)


def ask(
    terminal: Terminal, usage: str, prompt: Callable[..., Any], text: str, **settings: Any
) -> Any:
    """Return the answer to a prompt of questionary. Raise KeyboardInterrupt for Ctrl-C and Ctrl-D.

    Raise CycloptsError where nobody can answer; `usage` is the option to give there.
    """
    if not can_ask(terminal):
        option = usage.partition(" ")[0]
        error = CycloptsError(
            msg=f"{option} is missing, and there is no terminal to ask on. Give {usage}."
        )
        error.command_chain = ("deploy_checkpoints",)
        raise error
    question = prompt(text, output=create_output(stdout=sys.stderr), **settings)
    try:
        return question.unsafe_ask()
    except EOFError:
        raise KeyboardInterrupt from None


def ask_text(
    terminal: Terminal, usage: str, text: str, check: Callable[[str], object], *, default: str = ""
) -> str:
    """Return a line of text. `check` raises PrefectBtError for an invalid one."""

    def validate(answer: str) -> bool | str:
        if not answer.strip():
            return "A value is required."
        try:
            check(answer.strip())
        except PrefectBtError as error:
            return str(error)
        return True

    answer: str = ask(terminal, usage, questionary.text, text, default=default, validate=validate)
    return answer.strip()
