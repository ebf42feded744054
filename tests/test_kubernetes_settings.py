"""Quantities in the settings of the cluster: a wrong one is refused before anything is created."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import ValidationError

from prefect_bt.blocks import KubernetesSubstrate
from prefect_bt.kubernetes_settings import ClusterSettings
from prefect_bt.settings import Settings, format_settings_error


def patch_pod(**spec: object) -> dict[str, Any]:
    return {"spec": {"template": {"spec": spec}}}


def patch_commands(**resources: object) -> dict[str, Any]:
    return patch_pod(containers=[{"name": "commands", "resources": resources}])


WHERE = "job_patch.spec.template.spec"
WRONG = [
    (
        patch_commands(limits={"memory": "12 gigs"}),
        f"{WHERE}.containers[0].resources.limits.memory is '12 gigs'",
    ),
    (
        patch_commands(requests={"cpu": "two"}),
        f"{WHERE}.containers[0].resources.requests.cpu is 'two'",
    ),
    (patch_commands(requests={"memory": "12GB"}), "resources.requests.memory is '12GB'"),
    (patch_commands(limits={"cpu": -1}), "resources.limits.cpu is -1"),
    (patch_commands(limits={"cpu": ""}), "resources.limits.cpu is ''"),
    (patch_commands(limits={"cpu": ["1"]}), "resources.limits.cpu is ['1']"),
    (patch_pod(resources={"limits": {"cpu": "1 "}}), f"{WHERE}.resources.limits.cpu is '1 '"),
    (patch_pod(overhead={"cpu": "1core"}), f"{WHERE}.overhead.cpu is '1core'"),
    (
        patch_pod(volumes=[{"name": "x", "emptyDir": {"sizeLimit": "1gi"}}]),
        f"{WHERE}.volumes[0].emptyDir.sizeLimit is '1gi'",
    ),
]


@pytest.mark.parametrize(("patch", "what"), WRONG)
def test_a_wrong_quantity_in_a_patch_is_refused_with_its_field_and_value(
    monkeypatch: pytest.MonkeyPatch, patch: dict[str, Any], what: str
) -> None:
    for make in ClusterSettings, KubernetesSubstrate:
        with pytest.raises(ValidationError, match="is no quantity of Kubernetes") as caught:
            make(job_patch=patch)
        assert what in str(caught.value)
    monkeypatch.setenv("PREFECT_BT_KUBERNETES_JOB_PATCH", json.dumps(patch))
    with pytest.raises(ValidationError) as caught:
        Settings()
    message = format_settings_error(caught.value)
    assert message.startswith("PREFECT_BT_KUBERNETES_JOB_PATCH is ")
    assert what in message


@pytest.mark.parametrize("size", ["lots", "12 gigs", "200GB", ""])
def test_a_wrong_size_of_the_cache_is_refused(size: str) -> None:
    with pytest.raises(ValidationError, match=f"cache_size is '{size}'"):
        ClusterSettings(cache_size=size)


@pytest.mark.parametrize(
    "amount", ["2", "1.5", ".5", "500m", "12Gi", "12G", "1e3", "1E3", "5E", "100u", 2, 0.5, None]
)
def test_a_quantity_of_kubernetes_is_taken(amount: object) -> None:
    """None removes a field of the manifest."""
    patch = patch_commands(limits={"nvidia.com/gpu": amount}, requests={"memory": amount})
    assert ClusterSettings(job_patch=patch).job_patch == patch


def test_other_fields_of_a_patch_are_not_quantities() -> None:
    patch = patch_pod(
        containers=[{"name": "x", "env": [{"name": "limits", "value": "12 gigs"}]}],
        tolerations=[{"key": "requests", "operator": "Exists"}],
    )
    patch["metadata"] = {"annotations": {"limits": "none", "team": "a b"}}
    assert ClusterSettings(job_patch=patch).job_patch == patch
