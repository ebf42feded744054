"""Gangs of real definitions, their settings of a cluster, and the objects that they become."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from prefect_bt.kubernetes_settings import ClusterSettings
from prefect_bt.planning.plan import GangPlan
from prefect_bt.planning.planner import plan_gang
from prefect_bt.registries.credentials import docker_configuration
from prefect_bt.registries.reference import parse_reference
from prefect_bt.substrates.kubernetes.job_manifests import (
    GangSecrets,
    render_job,
    render_secret,
    render_service,
)
from prefect_bt.substrates.kubernetes.json_merge import Json
from prefect_bt.substrates.kubernetes.substrate import KubernetesSubstrate
from tests.planning.laptop import CONTEXT, project, runtime

UID = "5c8ce0a5-3a0b-4d53-9d0b-3f6a6c2a4f11"
SECRETS = {"hf": "hf-s3cret", "wandb": "wandb-s3cret", "ghcr": "me:login-s3cret"}
ENVIRONMENT = {"AWS_SECRET_ACCESS_KEY": "store-s3cret"}


@dataclass(frozen=True)
class Case:
    settings: ClusterSettings
    job: Mapping[str, object] = field(default_factory=dict[str, object])
    store: str = "s3://bucket/prefix"

    def plan(self) -> GangPlan:
        substrate = KubernetesSubstrate(self.settings, self.store)
        context = replace(
            CONTEXT,
            store=self.store,
            substrate="kubernetes",
            # A store in a folder belongs to user 1000, who seldom runs the tests.
            capacity=replace(substrate.capacity(), store_problem=""),
            supports_images=True,
            leader_address=substrate.leader_address(CONTEXT.job_id, 0),
        )
        first = plan_gang(project(**self.job), context)
        revisions = {source.key: "0" * 40 for source in first.weights}
        return plan_gang(project(**self.job), replace(context, revisions=revisions))


WEIGHTS = {"source": "hf://team/base", "mount_location": "/models/base", "auth_secret_name": "hf"}
LOGIN = {
    "auth_method": "REGISTRY_SECRET",
    "registry": "ghcr.io",
    "registry_secret_docker_auth": {"secret_ref": {"name": "ghcr"}},
}
GPUS = {
    "image": {"base_image": "ghcr.io/team/train:1", "docker_auth": LOGIN},
    "compute": {"node_count": 4, "cpu_count": 64, "memory": "512Gi", "accelerator": "H100:8"},
    "runtime": runtime(
        start_commands=["torchrun train.py --name $(hostname)"],
        environment_variables={
            "NAME": "a$(HOME)$$b$",
            "HF_TOKEN": {"name": "hf"},
            "WANDB_API_KEY": {"name": "wandb"},
        },
        cache_config={"enabled": True},
        checkpointing_config={"enabled": True},
    ),
    "weights": [WEIGHTS],
}
CASES = {
    "cpu": Case(ClusterSettings()),
    "gpus": Case(
        ClusterSettings(
            agent_image="registry.example.com/prefect-bt-agent:0.3.0",
            accelerator_selectors={"H100": {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}},
            node_selector={"pool": "training"},
            tolerations=[{"key": "training", "operator": "Exists"}],
            priority_class="high",
            queue_name="team-a",
            service_account="trainer",
            enforce_limits=True,
            cache_claim="shared-cache",
        ),
        GPUS,
    ),
    "plain-user": Case(
        ClusterSettings(
            run_as_user=1000,
            cache_host_path="/var/cache/prefect-bt",
            store_claim="jobs",
            job_patch={
                "metadata": {"annotations": {"team": "a"}},
                "spec": {
                    "ttlSecondsAfterFinished": None,
                    "template": {
                        "spec": {
                            "hostNetwork": True,
                            "containers": [
                                {"name": "commands", "securityContext": {"runAsGroup": 1000}},
                                {"name": "sidecar", "image": "busybox"},
                            ],
                        }
                    },
                },
            },
        ),
        {"runtime": runtime(cache_config={"enabled": True})},
        store="/mnt/jobs",
    ),
}


def render(case: Case) -> dict[str, Json]:
    """Return the three objects by their kind."""
    plan = case.plan()
    image = plan.nodes[0].image
    login = ""
    if image.auth:
        login = docker_configuration(parse_reference(image.reference), image.auth, SECRETS)
    named = {name: SECRETS[name] for name in plan.nodes[0].secret_environment.values()}
    job = render_job(plan, case.settings, pulls_with_login=bool(login))
    owner = {**job, "metadata": {**job["metadata"], "uid": UID}}
    secret = render_secret(plan, GangSecrets(named, ENVIRONMENT, login), owner)
    return {"Job": job, "Secret": secret, "Service": render_service(plan, owner)}


def pod_of(objects: Mapping[str, Json]) -> Any:
    return objects["Job"]["spec"]["template"]["spec"]


def containers_of(objects: Mapping[str, Json]) -> dict[str, Any]:
    pod = pod_of(objects)
    return {one["name"]: one for one in [*pod.get("initContainers", []), *pod["containers"]]}


def open_secret(objects: Mapping[str, Json]) -> dict[str, str]:
    data = objects["Secret"]["data"]
    return {name: base64.b64decode(text, validate=True).decode() for name, text in data.items()}
