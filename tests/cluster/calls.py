"""Requests to the API: what was understood of one, and what the log keeps of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .access import Attempt
from .resources import NAMESPACES


@dataclass(frozen=True)
class Request:
    """One line of the request log."""

    time: float
    user: str
    verb: str
    resource: str
    name: str
    status: int


@dataclass(frozen=True)
class Call:
    """A request that was understood."""

    attempt: Attempt
    query: dict[str, str]
    body: Any
    content_type: str

    @property
    def where(self) -> tuple[str, str]:
        """The namespace and the name under which the store has the object."""
        attempt = self.attempt
        return "" if attempt.resource == NAMESPACES else attempt.namespace, attempt.name
