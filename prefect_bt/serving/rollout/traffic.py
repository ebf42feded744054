"""What a revision that answers does next, given who is to serve and who does. Pure."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum

from prefect_bt.serving.deployment_records import NO_REVISION


class RevisionAction(Enum):
    SERVE = "serve"
    """New requests are its own."""
    STANDBY = "stand by"
    """It answers, and nobody has named it yet."""
    DRAIN = "finish"
    """Another has taken over: what is in flight is answered, then it stops."""
    STOP = "stop"
    """Nobody is to serve."""


@dataclass(frozen=True)
class RoutingState:
    """`desired`: the revision that is to serve; `routed`: the one that does, None for none.

    `ever_desired`: every revision that was ever to serve.
    """

    desired: int
    routed: int | None
    ever_desired: Collection[int]


def choose_action(revision: int, scene: RoutingState) -> RevisionAction:
    """Return what a revision does; the routed one serves until another one has taken over.

    >>> choose_action(1, RoutingState(desired=2, routed=1, ever_desired={1, 2}))
    <RevisionAction.SERVE: 'serve'>
    >>> choose_action(1, RoutingState(desired=2, routed=2, ever_desired={1, 2}))
    <RevisionAction.DRAIN: 'finish'>
    """
    if revision == scene.desired:
        return RevisionAction.SERVE
    if scene.desired == NO_REVISION:
        return RevisionAction.STOP if revision in scene.ever_desired else RevisionAction.STANDBY
    if revision == scene.routed:
        return RevisionAction.SERVE
    return RevisionAction.DRAIN if revision in scene.ever_desired else RevisionAction.STANDBY
