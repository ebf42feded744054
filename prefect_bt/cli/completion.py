"""`prefect-bt --install-completion`: complete commands and options in the shell."""

from __future__ import annotations

from prefect_bt.cli.app import make_app
from prefect_bt.cli.ui.options import InjectedTerminal


def install_completion(*, terminal: InjectedTerminal) -> None:
    """Write the completion script of bash, zsh or fish, and load it from the shell's start file."""

    path = make_app().install_completion()
    terminal.echo(f"Completion is installed in {path}", style="green")
    terminal.echo("Start a new shell to use it.")
