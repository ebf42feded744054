"""Replace environment variables of a definition by values given at push, recreate or retry.

An error names the variable and where it was given, never its value.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from prefect_bt.definitions.job import TrainingProject
from prefect_bt.errors import DefinitionError
from prefect_bt.reserved_variables import RESERVED_NAMES, RESERVED_PREFIX, is_reserved
from prefect_bt.text.usable_text import describe_unusable_text, is_too_long


def check_variables(variables: Mapping[str, str], *, source: str = "env") -> dict[str, str]:
    """Return the variables; raise DefinitionError for one that no node could have.

    `source`: the option or parameter, or the line of a file, for messages.
    """
    for name, value in cast("Mapping[object, object]", variables).items():
        if problem := _find_problem(name, value):
            message, next_step = problem
            raise DefinitionError(f"{source} {message}.", next_step=next_step, field=source)
    return dict(variables)


def override_variables(project: TrainingProject, variables: Mapping[str, str]) -> TrainingProject:
    """Return the project with these variables; a text also replaces a secret reference."""
    if not variables:
        return project
    changed = project.model_copy(deep=True)
    runtime = changed.job.runtime
    runtime.environment_variables = {**runtime.environment_variables, **variables}
    return changed


def _find_problem(name: object, value: object) -> tuple[str, str] | None:
    """Return what is wrong and the next step; None for a usable variable."""
    if not isinstance(name, str) or not name.strip() or "=" in name:
        return "has a variable without a valid name", "Write KEY=VALUE."
    if is_reserved(name):
        ours = f"{RESERVED_PREFIX}, {' and '.join(RESERVED_NAMES)} are the platform's"
        return f"sets {name}; names that begin with {ours}", "Choose another name."
    if not isinstance(value, str):
        return f"sets {name} to a {type(value).__name__}", "Write a string; numbers in quotes."
    if why := describe_unusable_text(name) or describe_unusable_text(value):
        return f"sets {name!r}, whose text {why}", "Write it in UTF-8, or as base64."
    if is_too_long(f"{name}={value}"):
        return (
            f"sets {name}, which has {len(value)} characters, more than Linux takes in a variable",
            "Put it into a file of the workspace.",
        )
    return None
