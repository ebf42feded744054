"""How long a gang waits for pods that do not start, and what it shows meanwhile."""

from __future__ import annotations

from typing import Any

import pytest

from prefect_bt.attempts.failure_causes import diagnose_node
from prefect_bt.ledger.records import Cause, FailureClass, NodePhase
from tests.cluster.recordings import recorded

from .api_stub import ApiStub, answer
from .gang_site import OpenSite

ACCEPTED = {"phase": "Pending", "startTime": "2026-11-25T22:31:44Z"}
CREATING = recorded("pods")["statuses"]["novolume"]
"""A status whose container waits with ContainerCreating, as during the pull of an image."""
BOUND = {"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "True"}]}
"""A machine was chosen, whose kubelet has not written a status."""


def test_a_pod_that_no_kubelet_accepts_fails_after_the_patience(open_site: OpenSite) -> None:
    site = open_site(BOUND)
    site.gang.observe(0)
    site.now += 59.0
    what = "the kubelet of its machine node-1 has not accepted it"
    assert site.gang.observe(0).waiting == what
    site.now += 2.0
    status = site.gang.observe(0)
    assert (status.phase, status.cause, status.reason) == (
        NodePhase.DONE,
        Cause.LAUNCH_FAILED,
        what,
    )
    assert diagnose_node(status).failure_class is FailureClass.INFRASTRUCTURE


@pytest.mark.parametrize("status", [ACCEPTED, CREATING])
def test_a_large_image_may_be_pulled_for_longer_than_the_patience(
    api: ApiStub, open_site: OpenSite, status: dict[str, Any]
) -> None:
    api.on("GET events", answer(200, {"items": []}))
    site = open_site(status)
    site.gang.observe(0)
    for _ in range(3):
        site.now += 61.0
        status = site.gang.observe(0)
        assert status.phase is NodePhase.LAUNCHED
        assert "being created on node-1" in status.waiting
