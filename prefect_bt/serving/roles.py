"""What a revision that answers does next, given who is to serve and who does. Pure."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum

from prefect_bt.serving.deployments import NONE


class Role(Enum):
    SERVE = "serve"
    """New requests are its own."""
    STAND_BY = "stand by"
    """It answers, and nobody has named it yet."""
    FINISH = "finish"
    """Another has taken over: what is in flight is answered, then it stops."""
    STOP = "stop"
    """Nobody is to serve."""


@dataclass(frozen=True)
class Scene:
    """`wanted`: the revision that is to serve; `routed`: the one that does, None for none.

    `named`: every revision that was ever to serve.
    """

    wanted: int
    routed: int | None
    named: Collection[int]


def role_of(revision: int, scene: Scene) -> Role:
    """The one that serves goes on until another has taken over: a wish alone changes nothing.

    >>> role_of(1, Scene(wanted=2, routed=1, named={1, 2}))
    <Role.SERVE: 'serve'>
    >>> role_of(1, Scene(wanted=2, routed=2, named={1, 2}))
    <Role.FINISH: 'finish'>
    """
    if revision == scene.wanted:
        return Role.SERVE
    if scene.wanted == NONE:
        return Role.STOP if revision in scene.named else Role.STAND_BY
    if revision == scene.routed:
        return Role.SERVE
    return Role.FINISH if revision in scene.named else Role.STAND_BY
