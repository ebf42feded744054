"""Who serves, who waits and who leaves: a wish alone changes nothing."""

from __future__ import annotations

import pytest

from prefect_bt.serving.deployments import NONE
from prefect_bt.serving.roles import Role, Scene, role_of


@pytest.mark.parametrize(
    ("mine", "scene", "role"),
    [
        (1, Scene(1, None, {1}), Role.SERVE),
        (1, Scene(2, 1, {1, 2}), Role.SERVE),
        (2, Scene(2, 1, {1, 2}), Role.SERVE),
        (1, Scene(2, 2, {1, 2}), Role.FINISH),
        (2, Scene(1, 1, {1}), Role.STAND_BY),
        (2, Scene(1, None, {1, 2}), Role.FINISH),
        (2, Scene(1, 2, {1, 2}), Role.SERVE),
        (1, Scene(NONE, 1, {1, NONE}), Role.STOP),
        (3, Scene(NONE, 1, {1, NONE}), Role.STAND_BY),
        (1, Scene(NONE, None, set()), Role.STAND_BY),
    ],
    ids=[
        "the one that is to",
        "until another has taken over",
        "takes over as soon as it answers",
        "another has taken over",
        "never named: stands by",
        "was to serve, and is not any more",
        "rolled back, and still routed",
        "the deployment is stopped",
        "stopped, and it was only held",
        "nothing was ever to serve",
    ],
)
def test_roles(mine: int, scene: Scene, role: Role) -> None:
    assert role_of(mine, scene) is role


def test_somebody_serves_whatever_is_wished() -> None:
    """Of two that answer, at least one takes requests, whoever is wanted and routed."""
    for wanted in (1, 2):
        for routed in (1, 2):
            roles = [role_of(one, Scene(wanted, routed, {1, 2})) for one in (1, 2)]
            assert Role.SERVE in roles
            # The one that is finished is never the one that requests go to.
            assert roles[routed - 1] is Role.SERVE
