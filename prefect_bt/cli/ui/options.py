"""Options that several commands share.

The help of an option is in the "Args:" section of its command's docstring. Options whose help is
the same in all commands have it here.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from cyclopts import Parameter, Token
from cyclopts.validators import Number

from prefect_bt.cli.ui.terminal import Terminal
from prefect_bt.text.durations import parse_since

InjectedTerminal = Annotated[Terminal, Parameter(parse=False)]
"""The terminal, passed by the launcher."""

_OUTPUT = Parameter(name=["--output", "-o", "--output-format"], help="Output format.")
Output = Annotated[Literal["cli-table", "json"], _OUTPUT]
TableOutput = Annotated[Literal["cli-table", "csv", "json"], _OUTPUT]
Order = Annotated[Literal["asc", "desc"], Parameter(help="Sort order.")]
Remote = Annotated[
    str | None, Parameter(help="Server to work with: a remote of ~/.trussrc.", metavar="NAME")
]
Yes = Annotated[bool, Parameter(name=["--yes", "-y"], help="Do not ask for confirmation.")]
DryRun = Annotated[bool, Parameter(help="Show what the command would do, and do nothing.")]
MaxRunTime = Annotated[
    str | None,
    Parameter(
        help="Stop the job when its commands have run this long in all attempts: 12h, 90m, seconds."
    ),
]
Deployment = Annotated[
    str | None, Parameter(help="Prefect deployment that runs the job, as FLOW/DEPLOYMENT.")
]
Here = Annotated[bool, Parameter(help="Run the job on this machine only.")]
_TAIL_HELP = "Follow the log until the job ends; without --wait, exit with 0 also if it fails."
Tail = Annotated[bool, Parameter(name=["--tail", "--follow", "-f"], help=_TAIL_HELP)]
Wait = Annotated[bool, Parameter(help="Wait until the job ends; exit with 0 only if it completed.")]
Watch = Annotated[
    bool, Parameter(name=["--watch", "-w"], help="Print the result again when it changes.")
]
CheckpointNames = Annotated[
    tuple[str, ...], Parameter(help="Only this checkpoint, by name or ID. Repeatable.")
]
MetricsListen = Annotated[
    str | None,
    Parameter(
        metavar="HOST:PORT",
        help="Serve metrics for Prometheus at this address, such as 127.0.0.1:9464.",
    ),
]


def _convert_time(_: object, tokens: Sequence[Token]) -> float:
    return parse_since(tokens[0].value, now=time.time()) / 1e9


SinceTime = Annotated[float | None, Parameter(converter=_convert_time, metavar="TIME")]
"""Epoch seconds of an age or a time, such as `2h` or `2026-11-20 14:00`."""
PositiveCount = Annotated[int | None, Parameter(validator=Number(gte=1))]


@Parameter(name="*")
@dataclass(frozen=True)
class JobFilter:
    """Filter of jobs. `project` wins over `project_id`; both take a name or an ID."""

    job_id: str | None = None
    """ID of the job."""
    project: str | None = None
    """Name or ID of the project."""
    project_id: str | None = None
    """Same as --project, which wins if both are given."""
    remote: Remote = None

    @property
    def selected_project(self) -> str | None:
        return self.project or self.project_id


NO_FILTER = JobFilter()
