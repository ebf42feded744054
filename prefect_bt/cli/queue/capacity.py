"""`prefect-bt capacity`: show what machines have and jobs hold, and set limits of GPU types."""

from __future__ import annotations

from typing import Annotated, Any, Final

from cyclopts import Parameter
from cyclopts.validators import Number

from prefect_bt.cli.ui.options import InjectedTerminal, Output, Remote
from prefect_bt.cli.ui.tables import Column, Document, show_table
from prefect_bt.cli.ui.terminal import Terminal
from prefect_bt.errors import UsageError
from prefect_bt.ledger.open_ledger import open_ledger
from prefect_bt.ledger.projects import normalize_team
from prefect_bt.queue.overview import capacity_document, change_limit, find_team_row

_GPUS: Final = [
    Column("GPU Type", "gpu_type"),
    Column("Baseline", "baseline"),
    Column("Limit", "limit"),
    Column("On-Demand", "dedicated_usage_count"),
    Column("Spot", "spot_usage_count"),
]
_TEAMS: Final = [Column("Team", "team_name"), *_GPUS]


def view_capacity(
    *, output: Output = "cli-table", remote: Remote = None, terminal: InjectedTerminal
) -> int:
    """Show limits and use of each GPU type, of all jobs and by team, and what machines have.

    The limit of a GPU type is the number of GPUs of all machines, unless one is set. Its baseline
    is the sum of the teams'. A machine is absent if it has not reported lately.

    Examples:

    `prefect-bt capacity view`

    `prefect-bt capacity view -o json`
    """
    document = capacity_document(open_ledger().store)
    return terminal.print_result(document, lambda: _show(terminal, document))


def update_capacity(
    *,
    gpu_type: str,
    team: str | None = None,
    capacity: str | None = None,
    baseline: Annotated[int | None, Parameter(validator=Number(gte=0))] = None,
    output: Output = "cli-table",
    remote: Remote = None,
    terminal: InjectedTerminal,
) -> int:
    """Set how many GPUs of a type jobs hold at once, and how many are kept free for a team.

    Spot jobs may exceed the limit of their team. A value that is not given stays as it is.

    Args:
        gpu_type: Type of the GPUs, such as H100.
        team: Name of the team; `default` is the default team. Without it: all jobs.
        capacity: Limit in GPUs; `none`: no limit.
        baseline: GPUs that are kept free for the team, except for spot jobs.

    Examples:

    `prefect-bt capacity update --gpu-type H100 --capacity 8`

    `prefect-bt capacity update --gpu-type H100 --team research --capacity 4 --baseline 2`

    `prefect-bt capacity update --gpu-type H100 --team research --capacity none`
    """
    changes = _read_changes(team, capacity, baseline)
    store = open_ledger().store
    change_limit(store, gpu_type, None if team is None else normalize_team(team), **changes)
    return _print_limit(terminal, capacity_document(store), gpu_type, team)


def _print_limit(terminal: Terminal, document: Document, gpu_type: str, team: str | None) -> int:
    if team is None:
        title, columns, key = "Training GPU Capacity", _GPUS, "gpu_capacity"
        [row] = [row for row in document["gpu_capacities"] if row["gpu_type"] == gpu_type]
    else:
        title, columns, key = "Team Training GPU Capacity", _TEAMS, "team_gpu_capacity"
        row = find_team_row(document, normalize_team(team), gpu_type)
    return terminal.print_result({key: row}, lambda: show_table(terminal, title, columns, [row]))


def _read_changes(team: str | None, capacity: str | None, baseline: int | None) -> dict[str, Any]:
    """Return the fields of the limit that the options change."""
    if capacity is None and baseline is None:
        raise UsageError("There is nothing to change.", next_step="Give --capacity or --baseline.")
    if team is None and baseline is not None:
        raise UsageError("A baseline belongs to a team.", next_step="Add --team NAME.")
    changes: dict[str, Any] = {} if baseline is None else {"baseline": baseline}
    if capacity is None:
        return changes
    if capacity == "none":
        return {**changes, "maximum": None}
    if not (capacity.isascii() and capacity.isdigit()):
        raise UsageError(
            f"--capacity {capacity!r} is not a number of GPUs.", next_step="Write 0, 8 or none."
        )
    return {**changes, "maximum": int(capacity)}


def _show(terminal: Terminal, document: Document) -> None:
    """Print the tables that have rows."""
    for title, columns, key in (
        ("Training GPU Capacity", _GPUS, "gpu_capacities"),
        ("Team Training GPU Capacity", _TEAMS, "team_gpu_capacities"),
        ("Machines", _MACHINES, "machines"),
    ):
        if document[key]:
            show_table(terminal, title, columns, document[key])
            terminal.echo()
    if not document["machines"]:
        terminal.echo("No machine takes jobs of this store yet. A push registers its machine.")


def _format_machine(machine: Document) -> str:
    return machine["name"] if machine["present"] else f"{machine['name']} (absent)"


def _format_gpus(gpus: list[Document]) -> str:
    return ", ".join(f"{gpu['used']}/{gpu['count']} {gpu['gpu_type']}" for gpu in gpus)


def _format_memory(machine: Document) -> str:
    from prefect_bt.planning.resource_amounts import format_memory  # JSON does not need it

    used = format_memory(machine["memory_used"]) if machine["memory_used"] else "0"
    return f"{used} / {format_memory(machine['memory'])}"


_MACHINES: Final = [
    Column("Machine", "", _format_machine),
    Column("GPUs", "gpus", _format_gpus),
    Column("CPUs", "", lambda machine: f"{machine['cpus_used']}/{machine['cpus']}"),
    Column("Memory", "", _format_memory),
    Column("Jobs", "jobs", wrap=True),
]
