"""Resolve secret references to values just before they are used.

Definitions contain only names. A name is looked up in each source in turn; callers choose the
sources (Prefect Secret blocks, then the environment). Values exist only in memory and in the
environment of the commands.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Protocol

from prefect_bt.errors import SecretError
from prefect_bt.reserved_variables import SECRET_PREFIX
from prefect_bt.text.usable_text import describe_unusable_text, is_too_long


class SecretSource(Protocol):
    def find(self, name: str) -> str | None:
        """Return the value; None if this source does not have it."""
        ...

    def lookup_name(self, name: str) -> str:
        """Return the place where this source searches for the name, for messages."""
        ...


def secret_variable(name: str) -> str:
    """Return the variable of a secret: upper case, with `_` for characters that are not allowed.

    >>> secret_variable("hf-access.token")
    'PREFECT_BT_SECRET_HF_ACCESS_TOKEN'
    """
    return SECRET_PREFIX + re.sub(r"\W", "_", name).upper()


@dataclass(frozen=True)
class EnvironmentSecrets:
    """Variables `PREFECT_BT_SECRET_<NAME>`, with the name as written or as `secret_variable`."""

    environment: Mapping[str, str] = field(default_factory=lambda: os.environ, repr=False)

    def find(self, name: str) -> str | None:
        usual = self.environment.get(secret_variable(name))
        return self.environment.get(SECRET_PREFIX + name, usual)

    def lookup_name(self, name: str) -> str:
        """Return the variable in its usual spelling."""
        return secret_variable(name)


@dataclass(frozen=True)
class InMemorySecrets:
    """Values in memory, such as those of a block."""

    values: Mapping[str, str] = field(repr=False)
    label: str = "the secrets block"

    def find(self, name: str) -> str | None:
        return self.values.get(name)

    def lookup_name(self, name: str) -> str:
        """Return the entry."""
        return f"{self.label} ({name})"


def resolve_secrets(
    names: Iterable[str],
    sources: Sequence[SecretSource],
    *,
    team: str = "",
    variables: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, str]:
    """Return every name's value. SecretError names all missing and all unusable ones.

    A value that is not UTF-8 or has a zero byte is unusable: neither a container nor a pod takes
    it. So is one that is too long for its variable; `variables` maps those to names. The team's
    secret `<team>-<name>` in any source wins over the common one (docs/teams.md).
    """
    found: dict[str, str | None] = {}
    for name in names:
        spellings = _candidate_names(name, team)
        values = (source.find(spelling) for spelling in spellings for source in sources)
        found[name] = next((value for value in values if value is not None), None)
    missing = [name for name, value in found.items() if value is None]
    values = {name: value for name, value in found.items() if value is not None}
    unusable = _find_unusable(values, variables)
    if missing or unusable:
        places = [
            source.lookup_name(spelling)
            for name in missing
            for spelling in _candidate_names(name, team)
            for source in sources
        ]
        raise SecretError(missing, list(dict.fromkeys(places)), unusable)
    return values


def _find_unusable(values: Mapping[str, str], variables: Mapping[str, str]) -> dict[str, str]:
    """Return the reason and the remedy for each name whose value no process can get."""
    unusable = dict[str, str]()
    for variable, name in variables.items():
        if is_too_long(f"{variable}={values.get(name, '')}"):
            unusable[name] = (
                f"has {len(values[name])} characters, more than Linux takes in a variable "
                f"({variable}); save it in parts"
            )
    for name, value in values.items():
        if why := describe_unusable_text(value):
            unusable[name] = f"{why}; save it as UTF-8 text, or its bytes in base64"
    return unusable


def _candidate_names(name: str, team: str) -> list[str]:
    """Return the possible names of the secret; a block's name has no blanks and no upper case."""
    own = [f"{team}-{name}", f"{team_prefix(team)}{name}"] if team else []
    return list(dict.fromkeys([*own, name]))


def team_prefix(team: str) -> str:
    """Return what the blocks of a team's own secrets begin with: `ml-research-`."""
    plain = re.sub(r"[^a-z0-9]+", "-", team.lower()).strip("-")
    return f"{plain}-" if plain else ""
