"""Refuse texts of a definition that cannot be carried to a node exactly. Pure.

A variable of Linux could have any bytes but zero. Docker, Kubernetes and JSON take UTF-8 only, so
the one rule for all substrates is UTF-8 without zero bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

from pydantic import BaseModel

from prefect_bt.definitions import TrainingProject
from prefect_bt.errors import PlanError
from prefect_bt.text.usable_text import describe_unusable_text


def ensure_usable_texts(project: TrainingProject) -> None:
    """Raise PlanError with a sentence for each text of the definition that is not usable."""
    fields = {f"project.{name}": value for name, value in project if name != "job"}
    fields |= {"job.name" if name == "name" else name: value for name, value in project.job}
    problems = [text for path, value in fields.items() for text in _iter_problems(path, value)]
    if problems:
        raise PlanError(
            problems,
            next_step="Remove zero bytes; write text in UTF-8, and other bytes as base64.",
        )


def _iter_problems(path: str, value: object) -> Iterator[str]:
    if isinstance(value, str):
        if why := describe_unusable_text(value):
            yield f"{path} {why}."
    elif isinstance(value, BaseModel):
        for name, item in value:
            yield from _iter_problems(f"{path}.{name}", item)
    elif isinstance(value, dict):
        for key, item in cast("dict[str, object]", value).items():
            inner = f"{path}[{key!r}]"
            yield from _iter_problems(f"The name in {inner}", key)
            yield from _iter_problems(inner, item)
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(cast("list[object]", value)):
            yield from _iter_problems(f"{path}[{index}]", item)
