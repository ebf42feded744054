"""Base classes of all definitions: strict and closed, or lax and open."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, ValidationError


class _ValidatedAssignment(BaseModel):
    """Assignment after construction is validated, and an assignment that fails changes nothing.

    pydantic alone leaves the refused value in place when the refusal comes from a check between
    fields; truss inherits that, we do not.
    """

    def __setattr__(self, name: str, value: Any) -> None:
        values, given = dict(self.__dict__), set(self.__pydantic_fields_set__)
        try:
            super().__setattr__(name, value)
        except ValidationError:
            object.__setattr__(self, "__dict__", values)
            object.__setattr__(self, "__pydantic_fields_set__", given)
            raise


class StrictModel(_ValidatedAssignment):
    """Exact types, keyword arguments only, unknown fields refused; nested models may be dicts.

    A refused value may be a secret written in the wrong place, so pydantic's own error text never
    shows inputs; `error_messages.definition_error` shows those that are safe.
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(
        strict=True,
        extra="forbid",
        validate_assignment=True,
        hide_input_in_errors=True,
        protected_namespaces=(),
    )


class OpenModel(_ValidatedAssignment):
    """Values are converted where pydantic can, unknown fields are accepted and kept."""

    model_config: ClassVar[ConfigDict] = ConfigDict(
        extra="allow",
        validate_assignment=True,
        hide_input_in_errors=True,
        protected_namespaces=(),
    )


def find_definition_class(name: str) -> type[BaseModel] | None:
    """The definition class of that name, where there is one."""
    waiting: list[type[BaseModel]] = [_ValidatedAssignment]
    while waiting:
        kind = waiting.pop()
        if kind.__name__ == name:
            return kind
        waiting += kind.__subclasses__()
    return None
