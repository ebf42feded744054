"""deployments/kubernetes/ and docs/kubernetes.md.

Manifests that every supported Kubernetes accepts, no more rights than the substrate uses, and a
page that names every cause and whose patches are valid.
"""

import json
import re
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from prefect_bt.attempts.failure_causes import CAUSES
from prefect_bt.ledger.records import Cause
from prefect_bt.substrates.kubernetes.json_merge import merge

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deployments" / "kubernetes"
PAGE = (ROOT / "docs" / "kubernetes.md").read_text()
VERSIONS = ("1.29", "1.31", "1.33", "1.35", "1.37")
RIGHTS = {
    *(("batch", "jobs", verb) for verb in ("create", "get", "list", "patch", "delete")),
    *(("", "pods", verb) for verb in ("list", "watch", "delete", "deletecollection")),
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


def test_the_role_allows_exactly_the_calls_of_the_substrate() -> None:
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


def test_the_page_names_every_cause_with_its_class() -> None:
    table = re.findall(r"^\| `([a-z_]+)` \| ([a-z ]+) \| .+ \| .+ \|$", PAGE, flags=re.MULTILINE)
    for name, failure_class in table:
        assert failure_class == CAUSES[Cause(name)].failure_class.replace("_", " ")
    sources = (ROOT / "prefect_bt/substrates/kubernetes").glob("*.py")
    used = {name for file in sources for name in re.findall(r"Cause\.([A-Z_]+)", file.read_text())}
    assert {Cause[name] for name in used} <= {Cause(name) for name, _ in table}


def test_the_patches_of_the_page_are_valid() -> None:
    containers = [{"name": "agent", "image": "a"}, {"name": "commands", "image": "c"}]
    template = {"spec": {"restartPolicy": "Never", "containers": containers}}
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "j"}}
    job["spec"] = {"template": template}
    patches = re.findall(r"```json\n(.+?)```", PAGE, flags=re.DOTALL)
    assert len(patches) == 1
    for patch in patches:
        changed = merge(job, json.loads(patch))
        kubernetes_validate.validate(changed, VERSIONS[0], strict=True)
        names = [one["name"] for one in changed["spec"]["template"]["spec"]["containers"]]
        assert names == ["agent", "commands"]


def test_every_variable_of_the_page_is_a_setting() -> None:
    from prefect_bt.kubernetes_settings import ClusterSettings

    named = set(re.findall(r"PREFECT_BT_KUBERNETES_([A-Z_]+)", PAGE))
    assert named <= {name.upper() for name in ClusterSettings.model_fields}
