"""Options that several commands share, each explained once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from cyclopts import Parameter

from prefect_bt.cli.ui.terminal import Terminal

OutputFormat = Literal["cli-table", "json"]

InjectedTerminal = Annotated[Terminal, Parameter(parse=False)]
"""The terminal, handed in by the launcher."""

Output = Annotated[
    OutputFormat,
    Parameter(
        name=["--output", "-o", "--output-format"],
        help="Print tables and text, or one JSON document and nothing else.",
    ),
]

Remote = Annotated[str | None, Parameter(help="Accepted for compatibility with truss and ignored.")]

Yes = Annotated[bool, Parameter(name=["--yes", "-y"], help="Do not ask for confirmation.")]

MaxRunTime = Annotated[
    str | None,
    Parameter(
        help="Stop the job once its commands have run so long in all attempts: 12h, 90m, seconds."
    ),
]

Tail = Annotated[bool, Parameter(help="Follow the job's log until the job is over.")]


@Parameter(name="*")
@dataclass(frozen=True)
class JobFilter:
    """Which jobs are meant; `project` wins over `project_id`, both take a name or an id."""

    job_id: Annotated[str | None, Parameter(help="The job.")] = None
    project: Annotated[str | None, Parameter(help="Only jobs of this project (name or id).")] = None
    project_id: Annotated[
        str | None, Parameter(help="As --project, which wins when both are given.")
    ] = None
    remote: Remote = None

    @property
    def selected_project(self) -> str | None:
        return self.project or self.project_id


NO_FILTER = JobFilter()
