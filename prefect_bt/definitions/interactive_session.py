"""Definition of interactive sessions on a node."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from prefect_bt.definitions.base import Integer, StrictModel

DEFAULT_TIMEOUT_MINUTES: Final = 8 * 60


class InteractiveSessionTrigger(StrEnum):
    """When the session opens."""

    ON_STARTUP = "on_startup"
    ON_FAILURE = "on_failure"
    ON_DEMAND = "on_demand"


class InteractiveSessionProvider(StrEnum):
    """Program that connects to the session."""

    VS_CODE = "vs_code"
    CURSOR = "cursor"
    SSH = "ssh"


class InteractiveSessionAuthProvider(StrEnum):
    """Service that authenticates the user of the session."""

    GITHUB = "github"
    MICROSOFT = "microsoft"


class InteractiveSession(StrictModel):
    """Remote session on a node of a job. It has no effect here yet."""

    trigger: InteractiveSessionTrigger = InteractiveSessionTrigger.ON_DEMAND
    """When the session opens. `on_startup` and `on_failure` are refused here."""
    timeout_minutes: Integer = DEFAULT_TIMEOUT_MINUTES
    """Minutes until the session expires; -1: ten years. No effect yet."""
    session_provider: InteractiveSessionProvider = InteractiveSessionProvider.VS_CODE
    """Program that connects to the session. No effect yet."""
    auth_provider: InteractiveSessionAuthProvider = InteractiveSessionAuthProvider.MICROSOFT
    """Service that authenticates the user. No effect yet."""
