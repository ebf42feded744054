"""Apply the options of push that override values of the config file.

None means that an option was not given; a value that equals a default still counts as given. A
warning names each value of the config file that an option replaces. Which replacements warn:
docs/compatibility.md, Validation at push.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pydantic import ValidationError

from prefect_bt.definitions.compute import AcceleratorSpec, AvailabilityModel, parse_accelerator
from prefect_bt.definitions.error_messages import definition_error
from prefect_bt.definitions.job import TrainingJob, TrainingProject
from prefect_bt.definitions.session import (
    DEFAULT_TIMEOUT_MINUTES,
    InteractiveSession,
    InteractiveSessionTrigger,
)
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
    """A changed copy of `project`, and the warnings to print. Raises DefinitionError."""
    changed = project.model_copy(deep=True)
    warnings: list[str] = []
    try:
        if overrides.team is not None:
            changed.team_name = overrides.team
        _apply_to_job(changed.job, overrides, warnings)
        _apply_to_session(changed.job, overrides, warnings)
        _apply_to_compute(changed.job, overrides, warnings)
    except ValidationError as error:
        raise definition_error(error, TrainingProject, where="Overrides") from error
    return changed, warnings


def _apply_to_job(job: TrainingJob, overrides: Overrides, warnings: list[str]) -> None:
    if overrides.job_name is not None:
        if job.name is not None:
            warnings.append(_warning("name", job.name, flag="--job-name", new=overrides.job_name))
        job.name = overrides.job_name
    if overrides.entrypoint is not None:
        old = job.runtime.start_commands
        if old:
            warnings.append(
                _warning("start_commands", old, flag="--entrypoint", new=overrides.entrypoint)
            )
        job.runtime.start_commands = [overrides.entrypoint]
    if overrides.priority is not None:
        if job.priority is not None:
            warnings.append(
                _warning("priority", job.priority, flag="--priority", new=overrides.priority)
            )
        job.priority = overrides.priority


def _apply_to_session(job: TrainingJob, overrides: Overrides, warnings: list[str]) -> None:
    timeout = overrides.interactive_timeout_minutes
    if overrides.interactive is None and timeout is None:
        return
    session = job.interactive_session or InteractiveSession()
    if overrides.interactive is not None:
        trigger, old = _parse_trigger(overrides.interactive), session.trigger
        if old is not InteractiveSessionTrigger.ON_DEMAND:
            warnings.append(
                _warning("interactive trigger", old.value, flag="--interactive", new=trigger.value)
            )
        session.trigger = trigger
    if timeout is not None:
        before = session.timeout_minutes
        if before != DEFAULT_TIMEOUT_MINUTES:
            flag = "--interactive-timeout-minutes"
            warnings.append(_warning("interactive timeout", before, flag=flag, new=timeout))
        session.timeout_minutes = timeout
    job.interactive_session = session


def _apply_to_compute(job: TrainingJob, overrides: Overrides, warnings: list[str]) -> None:
    compute = job.compute
    if overrides.accelerator is not None:
        old = compute.accelerator.model_dump() if compute.accelerator else None
        if old is not None:
            flag = "--accelerator"
            warnings.append(_warning("accelerator", old, flag=flag, new=overrides.accelerator))
        compute.accelerator = parse_accelerator_option(overrides.accelerator)
    if overrides.node_count is not None:
        nodes = compute.node_count
        if nodes != 1:
            warnings.append(
                _warning("node_count", nodes, flag="--node-count", new=overrides.node_count)
            )
        compute.node_count = overrides.node_count
    if overrides.spot:
        compute.availability_model = AvailabilityModel.SPOT


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


def _warning(option: str, old: object, *, flag: str, new: object) -> str:
    return f"The config file's {option} {old!r} is ignored: {flag} {new!r} was given."
