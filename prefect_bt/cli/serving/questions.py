"""Ask for values of `deploy_checkpoints` that neither an option nor the config file gives.

Prompts are on standard error, so that standard output has the result alone.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any, Final

import questionary
from cyclopts import CycloptsError
from prompt_toolkit.output import create_output
from questionary import Choice

from prefect_bt.cli.ui.terminal import Terminal
from prefect_bt.definitions import Accelerator, AcceleratorSpec, ModelWeightsFormat
from prefect_bt.errors import PrefectBtError
from prefect_bt.serving.base_model import parse_base_model
from prefect_bt.serving.checkpoint_selection import check_model_name
from prefect_bt.serving.servable_checkpoints import LATEST, ServableCheckpoints
from prefect_bt.serving.served_model import ModelSelection
from prefect_bt.substrates.protocol import Capacity
from prefect_bt.text.control_characters import escape_controls

NONE: Final = "none"
_DEFAULT_HF_SECRET: Final = "hf_access_token"
_OTHER: Final = "other"
_SELECT: Final = "(arrow keys move, enter confirms)"


def can_ask(terminal: Terminal) -> bool:
    """Return whether a user can answer prompts, on a terminal that can move its cursor."""
    has_cursor = sys.stderr.isatty() and os.environ.get("TERM", "dumb") not in {"", "dumb"}
    return terminal.interactive and has_cursor


def ask(
    terminal: Terminal, usage: str, prompt: Callable[..., Any], text: str, **settings: Any
) -> Any:
    """Return the answer to a prompt of questionary. Raise KeyboardInterrupt for Ctrl-C and Ctrl-D.

    Raise CycloptsError where nobody can answer; `usage` is the option to give there.
    """
    if not can_ask(terminal):
        option = usage.partition(" ")[0]
        error = CycloptsError(msg=f"{option} is missing, and nobody can be asked. Give {usage}.")
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


def ask_checkpoints(terminal: Terminal, found: ServableCheckpoints) -> tuple[str, ...]:
    """Return the names of the checkpoints that the user selects; a single one needs no question."""
    newest_first = found.servable[::-1]
    if len(newest_first) == 1:
        return (newest_first[0].name,)
    choices = [
        Choice(escape_controls(f"{one.name}  {one.contents.format or ''}".rstrip()), one.name)
        for one in newest_first
    ]
    return tuple(
        ask(
            terminal,
            f"--checkpoint {LATEST} or --checkpoint NAME. {found.alternatives.rstrip('.')}",
            questionary.checkbox,
            f"Which checkpoints of job {found.job.id}?",
            choices=choices,
            instruction="(space selects, enter confirms)",
            validate=_validate_selection,
        )
    )


def _validate_selection(names: list[str]) -> bool | str:
    return bool(names) or "Select at least one checkpoint with space."


def ask_base_model(terminal: Terminal) -> str:
    return ask_text(
        terminal,
        "--base-model MODEL",
        "Which base model? (Hugging Face ID, weights URI or folder)",
        parse_base_model,
    )


def ask_model_name(terminal: Terminal, selection: ModelSelection) -> str:
    default = suggest_model_name(selection)
    return ask_text(terminal, "--model-name NAME", "Model name?", check_model_name, default=default)


def suggest_model_name(selection: ModelSelection) -> str:
    """Return the last part of the base model's name for LoRA adapters, "" for other models."""
    is_lora = selection.format is ModelWeightsFormat.LORA
    return selection.base.name.rpartition("/")[2] if is_lora and selection.base else ""


def ask_accelerator(terminal: Terminal, capacity: Capacity) -> AcceleratorSpec | None:
    """Return the GPUs that the user selects; None for CPUs, also where there are no GPUs."""
    kinds = list_accelerators(capacity)
    if not kinds:
        return None
    kind = ask(
        terminal,
        f"--accelerator with one of {', '.join([*kinds, NONE])}",
        questionary.select,
        "Which accelerator?",
        choices=[*kinds, Choice("None (CPU)", NONE)],
        instruction=_SELECT,
    )
    if kind == NONE:
        return None
    count = "1"
    if capacity.gpus > 1:
        counts = [str(number) for number in range(1, capacity.gpus + 1)]
        usage = f"--accelerator {kind}:N"
        count = ask(
            terminal, usage, questionary.select, "How many?", choices=counts, instruction=_SELECT
        )
    return AcceleratorSpec(accelerator=Accelerator(kind), count=int(count))


def list_accelerators(capacity: Capacity) -> list[str]:
    """Return the machine's types of GPUs that a config can name."""
    known = {member.value for member in Accelerator}
    return [kind for kind in dict.fromkeys(capacity.gpu_types) if kind in known]


def ask_hf_secret(terminal: Terminal) -> str:
    """Return the name of a secret, or `none`."""
    text, usage = "Which secret holds the Hugging Face token?", "--hf-secret NAME"
    choices = [_DEFAULT_HF_SECRET, Choice("None", NONE), Choice("Another secret", _OTHER)]
    name: str = ask(terminal, usage, questionary.select, text, choices=choices, instruction=_SELECT)
    return ask_text(terminal, usage, "Name of the secret?", str) if name == _OTHER else name
