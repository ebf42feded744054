"""deployments/kubernetes/: manifests that every supported Kubernetes accepts, and no more rights
than the substrate uses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

FOLDER = Path(__file__).parents[2] / "deployments" / "kubernetes"
VERSIONS = ("1.29", "1.31", "1.33", "1.35", "1.37")
RIGHTS = {
    ("batch", "jobs", "create"),
    ("batch", "jobs", "get"),
    ("batch", "jobs", "list"),
    ("batch", "jobs", "patch"),
    ("batch", "jobs", "delete"),
    ("", "pods", "list"),
    ("", "pods", "watch"),
    ("", "pods", "delete"),
    ("", "pods", "deletecollection"),
    ("", "secrets", "create"),
    ("", "services", "create"),
    ("", "events", "list"),
    ("", "persistentvolumeclaims", "create"),
}
"""API group, resource and verb of each call of prefect_bt.substrates.kubernetes."""


def read_manifests(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((FOLDER / name).read_text()))


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("file", sorted(FOLDER.glob("*.yaml")), ids=lambda file: file.name)
def test_every_manifest_is_valid(file: Path, version: str) -> None:
    for manifest in read_manifests(file.name):
        kubernetes_validate.validate(manifest, version, strict=True)


def test_the_role_allows_what_is_called_and_nothing_else() -> None:
    role, binding = read_manifests("rbac.yaml")
    allowed = {
        (group, resource, verb)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    assert allowed == RIGHTS
    assert binding["roleRef"]["name"] == role["metadata"]["name"]


def test_the_binding_names_the_service_account_of_the_namespace() -> None:
    namespace, account = read_manifests("namespace.yaml")
    _, binding = read_manifests("rbac.yaml")
    (subject,) = binding["subjects"]
    assert subject == {"kind": "ServiceAccount", **account["metadata"]}
    assert account["metadata"]["namespace"] == namespace["metadata"]["name"]
    level = namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"]
    assert level == "baseline", "the commands run as root by default"
