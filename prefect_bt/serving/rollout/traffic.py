"""Choose the next action of a ready revision, from the desired and the routed one. Pure."""

from __future__ import annotations

from collections.abc import Collection
from enum import Enum

from prefect_bt.serving.deployment_records import NO_REVISION


class RevisionAction(Enum):
    SERVE = "serve"
    """It gets the new requests."""
    STANDBY = "stand by"
    """It is ready and was never promoted."""
    DRAIN = "finish"
    """Another revision gets the new requests: it answers those in flight and stops."""
    STOP = "stop"
    """The deployment is stopped."""


def choose_action(
    revision: int, *, desired: int, routed: int | None, ever_desired: Collection[int]
) -> RevisionAction:
    """Return the action of a revision. The routed one serves until another is routed.

    `routed` gets the requests; None for none. `ever_desired` has every revision that was ever
    desired.

    >>> choose_action(1, desired=2, routed=1, ever_desired={1, 2})
    <RevisionAction.SERVE: 'serve'>
    >>> choose_action(1, desired=2, routed=2, ever_desired={1, 2})
    <RevisionAction.DRAIN: 'finish'>
    """
    if revision == desired:
        return RevisionAction.SERVE
    if desired == NO_REVISION:
        return RevisionAction.STOP if revision in ever_desired else RevisionAction.STANDBY
    if revision == routed:
        return RevisionAction.SERVE
    return RevisionAction.DRAIN if revision in ever_desired else RevisionAction.STANDBY
