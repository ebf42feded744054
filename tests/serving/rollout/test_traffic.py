"""Who serves, who waits and who leaves: a wish alone changes nothing."""

from __future__ import annotations

import pytest

from prefect_bt.serving.deployment_records import NO_REVISION
from prefect_bt.serving.rollout.traffic import RevisionAction, choose_action


@pytest.mark.parametrize(
    ("mine", "scene", "role"),
    [
        (1, (1, None, {1}), RevisionAction.SERVE),
        (1, (2, 1, {1, 2}), RevisionAction.SERVE),
        (2, (2, 1, {1, 2}), RevisionAction.SERVE),
        (1, (2, 2, {1, 2}), RevisionAction.DRAIN),
        (2, (1, 1, {1}), RevisionAction.STANDBY),
        (2, (1, None, {1, 2}), RevisionAction.DRAIN),
        (2, (1, 2, {1, 2}), RevisionAction.SERVE),
        (1, (NO_REVISION, 1, {1, NO_REVISION}), RevisionAction.STOP),
        (3, (NO_REVISION, 1, {1, NO_REVISION}), RevisionAction.STANDBY),
        (1, (NO_REVISION, None, set()), RevisionAction.STANDBY),
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
def test_roles(mine: int, scene: tuple, role: RevisionAction) -> None:
    desired, routed, ever = scene
    assert choose_action(mine, desired=desired, routed=routed, ever_desired=ever) is role


def test_somebody_serves_whatever_is_wished() -> None:
    """Of two that answer, at least one takes requests, whoever is wanted and routed."""
    for wanted in (1, 2):
        for routed in (1, 2):
            scene = {"desired": wanted, "routed": routed, "ever_desired": {1, 2}}
            roles = [choose_action(one, **scene) for one in (1, 2)]
            assert RevisionAction.SERVE in roles
            # The one that is finished is never the one that requests go to.
            assert roles[routed - 1] is RevisionAction.SERVE
