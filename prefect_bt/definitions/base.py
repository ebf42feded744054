"""Base classes of all definitions: strict and closed, or lax and open."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Final

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    StringConstraints,
    ValidationError,
)
from pydantic_core import PydanticKnownError

NonEmptyStr = Annotated[str, StringConstraints(min_length=1)]


MAX_INTEGER: Final = 2**63 - 1


def _check_integer(value: object) -> object:
    if isinstance(value, bool):
        raise PydanticKnownError("int_type")
    if isinstance(value, int) and abs(value) > MAX_INTEGER:
        raise PydanticKnownError("int_parsing_size")
    return value


Integer = Annotated[int, BeforeValidator(_check_integer)]
"""A signed integer of 64 bits; unlike pydantic's, JSON's `true` is none."""


class _ValidatedAssignment(BaseModel):
    """Model that validates assignments; an assignment that fails changes nothing.

    pydantic alone keeps a refused value if a check between fields refused it, and so does truss.
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
    """Model with exact types and without unknown fields; nested models may be dicts.

    A refused value may be a secret in the wrong field, so pydantic's own error text never shows
    inputs; `error_messages.definition_error` shows the safe ones.
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(
        strict=True,
        extra="forbid",
        validate_assignment=True,
        hide_input_in_errors=True,
        protected_namespaces=(),
    )


class OpenModel(_ValidatedAssignment):
    """Model that converts values where pydantic can, and keeps unknown fields."""

    model_config: ClassVar[ConfigDict] = ConfigDict(
        extra="allow",
        validate_assignment=True,
        hide_input_in_errors=True,
        protected_namespaces=(),
    )


def find_definition_class(name: str) -> type[BaseModel] | None:
    """Return the definition class of that name, or None."""
    waiting: list[type[BaseModel]] = [_ValidatedAssignment]
    while waiting:
        kind = waiting.pop()
        if kind.__name__ == name:
            return kind
        waiting += kind.__subclasses__()
    return None
