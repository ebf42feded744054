"""Render the plan of `push --dry-run`, and the workspace of a push."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Final

from prefect_bt.cli.ui.tables import Column, Document, show_table
from prefect_bt.cli.ui.terminal import Terminal, format_count
from prefect_bt.planning.plan import GangPlan, NodePlan
from prefect_bt.planning.resource_amounts import format_memory, format_resources
from prefect_bt.text.durations import format_duration
from prefect_bt.workspace.limits import format_bytes

_MAX_VALUES: Final = 4
"""Values shown of a variable that differs between nodes."""


def show_plan(terminal: Terminal, plan: GangPlan, workspace: Document | None = None) -> None:
    """Print a summary of the plan; `-o json` prints all of it."""
    leader = plan.nodes[0]
    terminal.echo(f"Dry run of job {plan.job_name} of project {plan.project_name}", style="bold")
    terminal.echo(f"  Substrate: {plan.substrate}")
    if plan.machine:
        terminal.echo(f"  Machine:   {plan.machine}")
    terminal.echo(f"  Image:     {leader.image.reference}")
    terminal.echo(f"  Each node: {format_resources(leader.resources)}")
    if workspace:
        show_workspace(terminal, workspace)
    terminal.echo(f"  Secrets:   {', '.join(plan.secret_names) or 'none'}")
    if plan.max_run_time is not None:
        terminal.echo(f"  Run time:  at most {format_duration(plan.max_run_time)}")
    for number, command in enumerate(leader.commands, start=1):
        terminal.echo(f"  Command {number}: {command}")
    terminal.echo()
    show_table(terminal, "Nodes", _NODE_COLUMNS, _node_rows(plan.nodes))
    terminal.echo()
    show_table(terminal, "Environment", _NAME_VALUE, _environment(plan))
    terminal.echo()
    _show_volumes(terminal, plan)
    for note in plan.notes:
        terminal.echo(f"note: {note}")
    terminal.echo("Nothing was written or started.", style="yellow")


_NODE_COLUMNS = [
    Column("Rank", "rank"),
    Column("CPUs", "cpus"),
    Column("Memory", "memory"),
    Column("GPUs", "gpus"),
    Column("Grace", "grace"),
]
_NAME_VALUE = [Column("Name", "name"), Column("Value", "value", wrap=True)]
_VOLUME_COLUMNS = [
    Column("Path", "path", wrap=True),
    Column("Kind", "kind"),
    Column("Of", "of", wrap=True),
    Column("Mode", "mode"),
]


def _node_rows(nodes: Sequence[NodePlan]) -> list[Document]:
    """Return a row for each run of consecutive ranks with equal resources."""
    rows: list[Document] = []
    for _, equal in groupby(nodes, key=_node_resources):
        ranks = [node.rank for node in equal]
        first, last = nodes[ranks[0]], ranks[-1]
        rank = str(first.rank) if last == first.rank else f"{first.rank} to {last}"
        rows.append({"rank": rank, **_node_resources(first)})
    return rows


def _node_resources(node: NodePlan) -> Document:
    needs = node.resources
    return {
        "cpus": str(needs.cpus),
        "memory": format_memory(needs.memory),
        "gpus": f"{needs.gpus} {needs.gpu_type}".strip(),
        "grace": f"{node.grace:g} s",
    }


def _environment(plan: GangPlan) -> list[Document]:
    """Return the variables of the leader; values that differ between nodes are listed."""
    leader = plan.nodes[0]
    values = [
        {"name": name, "value": _values([node.environment[name] for node in plan.nodes])}
        for name in sorted(leader.environment)
    ]
    secrets = sorted(leader.secret_environment.items())
    return values + [{"name": name, "value": f"<secret {ref}>"} for name, ref in secrets]


def _values(values: Sequence[str]) -> str:
    different = list(dict.fromkeys(values))
    shown = different if len(different) <= _MAX_VALUES else [different[0], "...", different[-1]]
    return " / ".join(shown)


def _show_volumes(terminal: Terminal, plan: GangPlan) -> None:
    sources = {weights.key: weights.source for weights in plan.weights}
    rows = [
        {
            "path": volume.target,
            "kind": volume.kind.value.replace("_", " "),
            "of": sources.get(volume.key, volume.key),
            "mode": "read-only" if volume.read_only else "",
        }
        for volume in plan.nodes[0].volumes
    ]
    show_table(terminal, "Volumes", _VOLUME_COLUMNS, rows)


def show_workspace(terminal: Terminal, workspace: Document) -> None:
    """Print what is packed, a document of `pack_summary.workspace_document`, and its warnings."""
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
