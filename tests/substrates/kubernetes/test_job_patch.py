"""Amounts in a job patch, which Kubernetes would refuse when the job exists."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from prefect_bt.kubernetes_settings import ClusterSettings


def patch_of(**spec: Any) -> dict[str, Any]:
    return {"spec": {"template": {"spec": spec}}}


def resources(kind: str, amount: object, name: str = "memory") -> dict[str, Any]:
    return {"name": "commands", "resources": {kind: {name: amount}}}


POD = "spec.template.spec"


@pytest.mark.parametrize(
    ("patch", "path"),
    [
        *(
            (patch_of(**{part: [resources(kind, amount)]}), f"{part}[commands].resources.{kind}")
            for part in ("containers", "initContainers")
            for kind in ("limits", "requests")
            for amount in ("12 gigs", "", "2GB", "2gi", "-1", "1,5", True, [])
        ),
        (patch_of(containers=[{"resources": {"limits": {"cpu": "4 cores"}}}]), "containers[0]"),
        (patch_of(resources={"limits": {"cpu": "four"}}), f"{POD}.resources.limits.cpu"),
        (patch_of(overhead={"memory": "much"}), f"{POD}.overhead.memory"),
        (
            patch_of(volumes=[{"name": "shm", "emptyDir": {"sizeLimit": "half"}}]),
            f"{POD}.volumes[shm].emptyDir.sizeLimit",
        ),
    ],
)
def test_an_amount_that_is_no_quantity_is_refused_with_its_path(
    patch: dict[str, Any], path: str
) -> None:
    with pytest.raises(ValidationError) as caught:
        ClusterSettings(job_patch=patch)
    assert "job_patch" in str(caught.value)
    assert path in str(caught.value)


@pytest.mark.parametrize("amount", ["12Gi", "500m", "1.5", ".5", "2.", "1e3", "1E", "3", 3, 1.5])
@pytest.mark.parametrize("name", ["memory", "nvidia.com/gpu"])
def test_an_amount_of_kubernetes_is_kept(amount: object, name: str) -> None:
    patch = patch_of(containers=[resources("limits", amount, name)])
    assert ClusterSettings(job_patch=patch).job_patch == patch


def test_amounts_may_be_deleted() -> None:
    patch = patch_of(containers=[resources("limits", None), {"name": "x", "resources": None}])
    assert ClusterSettings(job_patch=patch).job_patch == patch
