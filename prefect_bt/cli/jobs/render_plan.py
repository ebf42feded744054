"""How a plan looks that `push --dry-run` made."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Final

from prefect_bt.cli.jobs.render_workspace import show_workspace
from prefect_bt.cli.ui.tables import Column, Document, show_table
from prefect_bt.cli.ui.terminal import Terminal
from prefect_bt.planning.allocation import format_memory, format_resources
from prefect_bt.planning.plan import GangPlan, NodePlan
from prefect_bt.text.durations import format_duration

_MAX_VALUES: Final = 4
"""Values of one variable on different nodes."""


def show_plan(terminal: Terminal, plan: GangPlan, workspace: Document | None = None) -> None:
    """What a push would run, for a person; `-o json` has all of it."""
    leader = plan.nodes[0]
    terminal.echo(f"Dry run of job {plan.job_name} of project {plan.project_name}", style="bold")
    terminal.echo(f"  Substrate: {plan.substrate}")
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
    Column("Rank", lambda row: row["rank"], no_wrap=True),
    Column("CPUs", lambda row: row["cpus"]),
    Column("Memory", lambda row: row["memory"], no_wrap=True),
    Column("GPUs", lambda row: row["gpus"], no_wrap=True),
    Column("Grace", lambda row: row["grace"], no_wrap=True),
]
_NAME_VALUE = [Column("Name", lambda v: v["name"]), Column("Value", lambda v: v["value"])]


def _node_rows(nodes: Sequence[NodePlan]) -> list[Document]:
    """A row for each run of neighbours that are alike: most gangs are one row."""
    rows: list[Document] = []
    for _, alike in groupby(nodes, key=_node_resources):
        ranks = [node.rank for node in alike]
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
    """The leader's variables; of those that differ from node to node, the first and the last."""
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
    columns: list[Column] = [
        Column("Path", lambda v: v["path"]),
        Column("Kind", lambda v: v["kind"]),
        Column("Of", lambda v: v["of"]),
        Column("Mode", lambda v: v["mode"]),
    ]
    show_table(terminal, "Volumes", columns, rows)
