"""Pods with the statuses of tests/cluster/recordings."""

from __future__ import annotations

from typing import Any

from tests.cluster.recordings import recorded


def pod_object(status: dict[str, Any], *, rank: int = 0, **metadata: object) -> dict[str, Any]:
    """A pod of a gang with this status."""
    return {
        "metadata": {
            "name": f"prefect-bt-abc1234-0-{rank}-x7k2p",
            "annotations": {"batch.kubernetes.io/job-completion-index": str(rank)},
            "resourceVersion": "980",
            **metadata,
        },
        "spec": {"nodeName": "node-1"},
        "status": status,
    }


def recorded_pod(name: str, **containers: str) -> dict[str, Any]:
    """A recorded pod; `containers` are our names for its own."""
    status = recorded("pods")["statuses"][name]
    for kind in ("containerStatuses", "initContainerStatuses"):
        for one in status.get(kind, []):
            one["name"] = containers.get(one["name"], one["name"])
    return pod_object(status)
