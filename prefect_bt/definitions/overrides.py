"""Apply the options of push that override values of the config file.

None means that an option was not given; a value that equals a default still counts as given. A
warning names each value of the config file that an option replaces. Which replacements warn:
docs/compatibility.md, Validation at push.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from pydantic import ValidationError

from prefect_bt.definitions.compute import (
    AcceleratorSpec,
    AvailabilityModel,
    Compute,
    parse_accelerator,
    parse_memory,
)
from prefect_bt.definitions.error_messages import definition_error
from prefect_bt.definitions.interactive_session import (
    DEFAULT_TIMEOUT_MINUTES,
    InteractiveSession,
    InteractiveSessionTrigger,
)
from prefect_bt.definitions.job import TrainingJob, TrainingProject
from prefect_bt.definitions.variable_overrides import override_variables
from prefect_bt.errors import DefinitionError

NO_ACCELERATOR: Final = "none"
_LEAST_MEMORY: Final = 1024**2
"""Bytes below which a unit was forgotten: `--memory 2`."""


@dataclass(frozen=True)
class Overrides:
    """One field for each option of push.

    `interactive` is a trigger (`on_startup`, `on_failure`, `on_demand`); `accelerator` is
    `TYPE[:N]`, or `none` (ours) for a CPU job; `cpu_count` and `memory` (ours) are those of
    Compute; `spot=False` is the same as not given. `env` was checked by `check_variables`.
    """

    job_name: str | None = None
    team: str | None = None
    interactive: InteractiveSessionTrigger | str | None = None
    interactive_timeout_minutes: int | None = None
    accelerator: str | None = None
    cpu_count: int | None = None
    memory: str | None = None
    node_count: int | None = None
    entrypoint: str | None = None
    priority: int | None = None
    spot: bool = False
    env: Mapping[str, str] = field(default_factory=dict[str, str])


def apply_overrides(
    project: TrainingProject, overrides: Overrides
) -> tuple[TrainingProject, list[str]]:
    """Return a changed copy of `project`, and the warnings to print. Raise DefinitionError."""
    _validate_sizes(overrides)
    changed = project.model_copy(deep=True)
    warnings = list(_iter_warnings(changed.job, overrides))
    try:
        _replace_values(changed, overrides)
    except ValidationError as error:
        raise definition_error(error, TrainingProject, where="Overrides") from error
    return override_variables(changed, overrides.env), warnings


def _iter_warnings(job: TrainingJob, overrides: Overrides) -> Iterator[str]:
    """Yield a warning for each value of the config file, other than the default, to replace."""
    session = job.interactive_session or InteractiveSession()
    accelerator = job.compute.accelerator.model_dump() if job.compute.accelerator else None
    timeout, commands = overrides.interactive_timeout_minutes, job.runtime.start_commands or None
    minutes, usual = session.timeout_minutes, DEFAULT_TIMEOUT_MINUTES
    compute, default = job.compute, Compute()
    trigger = None if overrides.interactive is None else str(overrides.interactive)
    for flag, new, name, old, unset in (
        ("--job-name", overrides.job_name, "name", job.name, None),
        ("--entrypoint", overrides.entrypoint, "start_commands", commands, None),
        ("--priority", overrides.priority, "priority", job.priority, None),
        ("--interactive", trigger, "interactive trigger", session.trigger.value, "on_demand"),
        ("--interactive-timeout-minutes", timeout, "interactive timeout", minutes, usual),
        ("--accelerator", overrides.accelerator, "accelerator", accelerator, None),
        ("--cpu-count", overrides.cpu_count, "cpu_count", compute.cpu_count, default.cpu_count),
        ("--memory", overrides.memory, "memory", compute.memory, default.memory),
        ("--node-count", overrides.node_count, "node_count", compute.node_count, 1),
    ):
        if new is not None and old != unset:
            yield f"The config file's {name} {old!r} is ignored: {flag} {new!r} was given."
    variables = job.runtime.environment_variables
    for variable in sorted(variables.keys() & overrides.env.keys()):
        value = variables[variable]
        if value != overrides.env[variable]:  # values can be secrets: they are not shown
            what = "value" if isinstance(value, str) else "secret"
            yield f"The config file's {what} of {variable} is ignored: --env {variable} was given."


def _replace_values(project: TrainingProject, overrides: Overrides) -> None:
    job, timeout = project.job, overrides.interactive_timeout_minutes
    session = job.interactive_session or InteractiveSession()
    for target, name, value in (
        (project, "team_name", overrides.team),
        (job, "name", overrides.job_name),
        (job, "priority", overrides.priority),
        (job.compute, "node_count", overrides.node_count),
        (job.compute, "cpu_count", overrides.cpu_count),
        (job.compute, "memory", overrides.memory),
        (session, "timeout_minutes", timeout),
    ):
        if value is not None:
            setattr(target, name, value)
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


def _validate_sizes(overrides: Overrides) -> None:
    """Raise DefinitionError for CPUs or memory that no node can have."""
    cpus, memory = overrides.cpu_count, overrides.memory
    if cpus is not None and cpus < 1:
        raise DefinitionError(
            f"--cpu-count {cpus} is not valid: a node needs at least 1 CPU.",
            next_step="Write for example --cpu-count 2.",
            field="cpu_count",
            value=cpus,
        )
    if memory is None:
        return
    try:
        size = parse_memory(memory)
    except DefinitionError as error:
        why, cause = error.message[0].lower() + error.message[1:].rstrip("."), error
    else:
        if size >= _LEAST_MEMORY:
            return
        why, cause = f"it is {size} bytes", None
    raise DefinitionError(
        f"--memory {memory!r} is not valid: {why}.",
        next_step='Write a number and a unit, for example "512Mi", "64Gi" or "64GB".',
        field="memory",
        value=memory,
    ) from cause


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
