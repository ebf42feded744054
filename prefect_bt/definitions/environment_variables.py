"""Definitions of environment variables and of secret references."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Discriminator, Tag

from prefect_bt.definitions.base import StrictModel


class SecretReference(StrictModel):
    """Reference to a secret by its name; in JSON, `{"name": "..."}`."""

    name: str
    """Name of the secret. Its value is looked up when the job starts."""


def _value_tag(value: Any) -> str | None:
    if isinstance(value, str):
        return "text"
    return "secret" if isinstance(value, (dict, SecretReference)) else None


EnvironmentValue = Annotated[
    Annotated[str, Tag("text")] | Annotated[SecretReference, Tag("secret")],
    Discriminator(
        _value_tag,
        custom_error_type="environment_value",
        custom_error_message="write a string (numbers and booleans in quotes) "
        'or SecretReference(name="...")',
    ),
]
"""Value of an environment variable: text, or a reference to a secret; not a number."""

EnvironmentVariables = dict[str, EnvironmentValue]


def secret_names(variables: EnvironmentVariables) -> dict[str, str]:
    """Return variable name -> name of the secret, for the variables that refer to one."""
    return {k: v.name for k, v in variables.items() if isinstance(v, SecretReference)}


def literal_variables(variables: EnvironmentVariables) -> dict[str, str]:
    """Return the variables whose value is in the definition itself."""
    return {k: v for k, v in variables.items() if isinstance(v, str)}
