"""How the workspace of a push is shown: a line, and more only where something is remarkable."""

from __future__ import annotations

from typing import Final

from prefect_bt.cli.ui.tables import Document
from prefect_bt.cli.ui.terminal import Terminal, format_count
from prefect_bt.workspace.ignore import IGNORE_FILE
from prefect_bt.workspace.limits import format_bytes

_MAX_NAMED: Final = 8


def show_workspace(terminal: Terminal, workspace: Document) -> None:
    """Say what is packed (`pack_summary.workspace_document`); warnings beside the result."""
    count, size = (
        format_count(workspace["file_count"], "file"),
        format_bytes(workspace["size_bytes"]),
    )
    terminal.echo(f"  Workspace: {workspace['root']} ({count}, {size})")
    if workspace["external_dirs"]:
        terminal.echo(f"  External:  {', '.join(workspace['external_dirs'])}")
    if workspace["largest_files"]:
        terminal.echo("  Largest files (above 1 GB, read data from an object store instead):")
    for file in workspace["largest_files"]:
        terminal.echo(f"    {format_bytes(file['size_bytes']):>10}  {file['path']}")
    for sentence in workspace["warnings"]:
        terminal.warn(sentence)
    if workspace["ignored_code"]:
        terminal.warn(_ignored(workspace["ignored_code"]))


def _ignored(names: list[str]) -> str:
    named = ", ".join(names[:_MAX_NAMED])
    more = f" and {len(names) - _MAX_NAMED} more" if len(names) > _MAX_NAMED else ""
    return (
        f"Not packed, though it looks like code: {named}{more}. The built-in ignore list has these "
        f"names; a {IGNORE_FILE} (gitignore syntax) in the workspace root replaces that list."
    )
