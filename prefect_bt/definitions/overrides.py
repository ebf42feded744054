"""Apply the options of push that override values of the config file.

None means that an option was not given; a value that equals a default still counts as given. A
warning names each value of the config file that an option replaces. Which replacements warn:
docs/compatibility.md, Validation at push.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from pydantic import ValidationError

from prefect_bt.definitions.compute import AcceleratorSpec, AvailabilityModel, parse_accelerator
from prefect_bt.definitions.error_messages import definition_error
from prefect_bt.definitions.interactive_session import (
    DEFAULT_TIMEOUT_MINUTES,
    InteractiveSession,
    InteractiveSessionTrigger,
)
from prefect_bt.definitions.job import TrainingJob, TrainingProject
from prefect_bt.errors import DefinitionError

NO_ACCELERATOR: Final = "none"


@dataclass(frozen=True)
class Overrides:
    """One field for each option of push.

    `interactive` is a trigger (`on_startup`, `on_failure`, `on_demand`); `accelerator` is
    `TYPE[:N]`, or `none` (ours) for a CPU job; `spot=False` is the same as not given.
    """

    job_name: str | None = None
    team: str | None = None
    interactive: InteractiveSessionTrigger | str | None = None
    interactive_timeout_minutes: int | None = None
    accelerator: str | None = None
    node_count: int | None = None
    entrypoint: str | None = None
    priority: int | None = None
    spot: bool = False


def apply_overrides(
    project: TrainingProject, overrides: Overrides
) -> tuple[TrainingProject, list[str]]:
    """Return a changed copy of `project`, and the warnings to print. Raise DefinitionError."""
    changed = project.model_copy(deep=True)
    warnings = list(_iter_warnings(changed.job, overrides))
    try:
        _replace_values(changed, overrides)
    except ValidationError as error:
        raise definition_error(error, TrainingProject, where="Overrides") from error
    return changed, warnings


def _iter_warnings(job: TrainingJob, overrides: Overrides) -> Iterator[str]:
    """Yield a warning for each value of the config file, other than the default, to replace."""
    session = job.interactive_session or InteractiveSession()
    accelerator = job.compute.accelerator.model_dump() if job.compute.accelerator else None
    timeout, commands = overrides.interactive_timeout_minutes, job.runtime.start_commands or None
    minutes, usual = session.timeout_minutes, DEFAULT_TIMEOUT_MINUTES
    trigger = None if overrides.interactive is None else str(overrides.interactive)
    for flag, new, name, old, default in (
        ("--job-name", overrides.job_name, "name", job.name, None),
        ("--entrypoint", overrides.entrypoint, "start_commands", commands, None),
        ("--priority", overrides.priority, "priority", job.priority, None),
        ("--interactive", trigger, "interactive trigger", session.trigger.value, "on_demand"),
        ("--interactive-timeout-minutes", timeout, "interactive timeout", minutes, usual),
        ("--accelerator", overrides.accelerator, "accelerator", accelerator, None),
        ("--node-count", overrides.node_count, "node_count", job.compute.node_count, 1),
    ):
        if new is not None and old != default:
            yield f"The config file's {name} {old!r} is ignored: {flag} {new!r} was given."


def _replace_values(project: TrainingProject, overrides: Overrides) -> None:
    job, timeout = project.job, overrides.interactive_timeout_minutes
    session = job.interactive_session or InteractiveSession()
    for target, field, value in (
        (project, "team_name", overrides.team),
        (job, "name", overrides.job_name),
        (job, "priority", overrides.priority),
        (job.compute, "node_count", overrides.node_count),
        (session, "timeout_minutes", timeout),
    ):
        if value is not None:
            setattr(target, field, value)
    if overrides.entrypoint is not None:
        job.runtime.start_commands = [overrides.entrypoint]
    if overrides.interactive is not None:
        session.trigger = _parse_trigger(overrides.interactive)
    if overrides.interactive is not None or timeout is not None:
        job.interactive_session = session
    if overrides.accelerator is not None:
        job.compute.accelerator = parse_accelerator_option(overrides.accelerator)
    if overrides.spot:
        job.compute.availability_model = AvailabilityModel.SPOT


def _parse_trigger(value: InteractiveSessionTrigger | str) -> InteractiveSessionTrigger:
    try:
        return InteractiveSessionTrigger(value)
    except ValueError as error:
        raise DefinitionError(
            f"--interactive {value!r} is not a trigger.",
            next_step=f"Write one of {', '.join(InteractiveSessionTrigger)}.",
            field="interactive",
            value=value,
        ) from error


def parse_accelerator_option(text: str) -> AcceleratorSpec | None:
    """Return the accelerator of `--accelerator`; None for `none`. Raise DefinitionError."""
    if text.strip().lower() == NO_ACCELERATOR:
        return None
    try:
        kind, count = parse_accelerator(text)
    except ValueError as error:
        raise DefinitionError(
            f"--accelerator {text!r} is not valid: {error}.",
            next_step=f"Write TYPE or TYPE:N, or {NO_ACCELERATOR!r} to use CPUs.",
            field="accelerator",
            value=text,
        ) from error
    return AcceleratorSpec(accelerator=kind, count=count)
