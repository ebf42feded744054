"""Questions on a terminal, to somebody who left something out; a script is told what to give.

They appear on standard error, so that a document on standard output stays one.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from cyclopts import CycloptsError

from prefect_bt.cli.ui.printable import replace_unprintable
from prefect_bt.cli.ui.terminal import Terminal
from prefect_bt.errors import PrefectBtError

if TYPE_CHECKING:
    from prefect_bt.serving.missing_options import Question

Check = Callable[[str], object]
"""Raises PrefectBtError for an answer that will not do."""

_OTHER_OPTION: Final = "another …"


@dataclass(frozen=True)
class Wizard:
    """`command` is the verb that asks, for the errors of a script."""

    terminal: Terminal
    command: str

    @property
    def can_prompt(self) -> bool:
        """Whether somebody sits at a terminal that can be drawn on."""
        drawn = sys.stderr.isatty() and os.environ.get("TERM", "dumb") not in {"", "dumb"}
        return self.terminal.interactive and drawn

    def ask_one(self, question: Question, option: str, *, check: Check = lambda _: None) -> str:
        """One answer. `option`: how a script gives it; CycloptsError where nobody can be asked."""
        if question.only_option:
            return question.only_option
        self._check_can_prompt(question, option)
        if not question.options:
            return self._text(question, check)
        chosen = self._select(question)
        return self._text(question, check) if chosen == _OTHER_OPTION else chosen

    def ask_many(self, question: Question, option: str) -> tuple[str, ...]:
        """One answer at least, in the order of the options."""
        if question.only_option:
            return (question.only_option,)
        self._check_can_prompt(question, option)
        import questionary

        return tuple(
            self._run_prompt(
                questionary.checkbox,
                question,
                choices=_choices(question),
                initial_choice=question.default or None,
                instruction="(space chooses, enter goes on)",
                validate=_validate_nonempty,
            )
        )

    def _check_can_prompt(self, question: Question, option: str) -> None:
        if self.can_prompt:
            return
        values = ", ".join(one.value for one in question.options)
        error = CycloptsError(
            msg=f"{option.partition(' ')[0]} is missing, and nobody can be asked here. "
            f"Give {option}{f': one of {values}' if values else ''}."
        )
        error.command_chain = (self.command,)
        raise error

    def _select(self, question: Question) -> str:
        import questionary

        more = [questionary.Choice(_OTHER_OPTION)] if question.allows_free_text else []
        return self._run_prompt(
            questionary.select,
            question,
            choices=[*_choices(question), *more],
            default=question.default or None,
            instruction="(arrows choose, enter goes on)",
        )

    def _text(self, question: Question, check: Check) -> str:
        import questionary

        def problem(answer: str) -> bool | str:
            if not answer.strip():
                return "An answer is needed."
            try:
                check(answer.strip())
            except PrefectBtError as error:
                return str(error)
            return True

        default = "" if question.options else question.default
        return self._run_prompt(
            questionary.text, question, default=default, validate=problem
        ).strip()

    def _run_prompt(self, ask: Callable[..., Any], question: Question, **how: Any) -> Any:
        """Ctrl-C, and Ctrl-D, which says that nothing more comes, raise KeyboardInterrupt."""
        from prompt_toolkit.output import create_output

        asked = ask(question.text, output=create_output(stdout=sys.stderr), **how)
        try:
            return asked.unsafe_ask()
        except EOFError:
            raise KeyboardInterrupt from None


def _validate_nonempty(chosen: list[str]) -> bool | str:
    return bool(chosen) or "Choose one at least, with space."


def _choices(question: Question) -> list[Any]:
    import questionary

    return [
        questionary.Choice(replace_unprintable(one.label), one.value) for one in question.options
    ]
