"""Definition of interactive sessions on a node."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from prefect_bt.definitions.base import StrictModel

DEFAULT_TIMEOUT_MINUTES: Final = 8 * 60


class InteractiveSessionTrigger(StrEnum):
    """When the session opens."""

    ON_STARTUP = "on_startup"
    ON_FAILURE = "on_failure"
    ON_DEMAND = "on_demand"


class InteractiveSessionProvider(StrEnum):
    """What a person connects with."""

    VS_CODE = "vs_code"
    CURSOR = "cursor"
    SSH = "ssh"


class InteractiveSessionAuthProvider(StrEnum):
    """Who says who the person is."""

    GITHUB = "github"
    MICROSOFT = "microsoft"


class InteractiveSession(StrictModel):
    """`timeout_minutes=-1` is as good as forever (ten years)."""

    trigger: InteractiveSessionTrigger = InteractiveSessionTrigger.ON_DEMAND
    timeout_minutes: int = DEFAULT_TIMEOUT_MINUTES
    session_provider: InteractiveSessionProvider = InteractiveSessionProvider.VS_CODE
    auth_provider: InteractiveSessionAuthProvider = InteractiveSessionAuthProvider.MICROSOFT
