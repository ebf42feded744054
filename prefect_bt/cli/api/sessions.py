"""Commands of truss for interactive sessions, which prefect-bt does not have yet."""

from __future__ import annotations

from typing import Annotated, NoReturn

from cyclopts import Parameter

from prefect_bt.cli.ui.options import InjectedTerminal
from prefect_bt.errors import UsageError

_Rest = Annotated[str, Parameter(allow_leading_hyphen=True, show=False)]


def isession(*arguments: _Rest, terminal: InjectedTerminal) -> int:
    """Say that interactive sessions come later."""
    _refuse("isession")


def update_session(*arguments: _Rest, terminal: InjectedTerminal) -> int:
    """Say that interactive sessions come later."""
    _refuse("update_session")


def workstation(*arguments: _Rest, terminal: InjectedTerminal) -> int:
    """Say that workstations come later."""
    _refuse("workstation")


def ssh(*arguments: _Rest, terminal: InjectedTerminal) -> int:
    """Say that SSH comes later."""
    _refuse("ssh")


def _refuse(command: str) -> NoReturn:
    raise UsageError(
        f"`{command}` comes in a later release: no interactive session opens yet.",
        next_step="A shell in a node of a running job: prefect-bt shell --job-id ID",
    )
