"""Commands of truss for interactive sessions, which prefect-bt does not have yet."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from prefect_bt.cli.ui.options import InjectedTerminal
from prefect_bt.errors import UsageError


def refuse_session(
    *arguments: Annotated[str, Parameter(allow_leading_hyphen=True, show=False)],
    terminal: InjectedTerminal,
) -> int:
    """Say that interactive sessions, SSH and workstations come in a later release."""
    raise UsageError(
        "This command comes in a later release: no interactive session opens yet.",
        next_step="A shell in a node of a running job: prefect-bt shell --job-id ID",
    )
