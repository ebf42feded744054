"""Pod specification of a node: one container for the commands, one for the agent. Pure.

The two containers share only the volumes of the plan and the folder of pipes. They share no process
table, and only the agent mounts the Secret.
"""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import unquote

from prefect_bt.host.nodes import pod_layout
from prefect_bt.host.nodes.container_pipes import INIT_SCRIPT, MOUNTED_AT
from prefect_bt.kubernetes_settings import ClusterSettings
from prefect_bt.planning.plan import GangPlan, NodePlan, Resources
from prefect_bt.reserved_variables import RANK_VARIABLE, rendezvous_variables
from prefect_bt.substrates.kubernetes.json_merge import Json
from prefect_bt.substrates.kubernetes.names import (
    AGENT,
    COMMANDS,
    INDEX_ANNOTATION,
    STAGING,
    gang_name,
    host_name,
)
from prefect_bt.substrates.kubernetes.pod_volumes import (
    WEIGHTS_FOLDER,
    render_mounts,
    render_volumes,
)

LEADER_PORT: Final = 29500
"""PyTorch's default port: every pod has its own network address."""
FLUSH_SECONDS: Final = 3600
"""Seconds for the final flush of a pod that Kubernetes ends, after the grace of its commands."""
GPU_RESOURCE: Final = "nvidia.com/gpu"
AGENT_REQUESTS: Final = {"cpu": "100m", "memory": "256Mi"}
AGENT_LIMITS: Final = {"cpu": "4", "memory": "4Gi"}
"""Limits of the agent and its uploader, if limits are enforced."""
PULL_SECRET_KEY: Final = ".dockerconfigjson"
_UNPRIVILEGED: Final = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "seccompProfile": {"type": "RuntimeDefault"},
}
_GPU_MONITOR: Final = (
    {"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"},
    {"name": "NVIDIA_DRIVER_CAPABILITIES", "value": "utility"},
)
"""Variables with which NVIDIA's container runtime gives the agent the library of the driver, so
that it samples the GPUs that Kubernetes has assigned to the commands."""
_ENTRYPOINT: Final = ["python", "-m", "prefect_bt.node_agent.pod"]


def render_pod(gang: GangPlan, settings: ClusterSettings, *, pulls_with_login: bool) -> Any:
    """Return the specification of every pod of the gang; its index is the rank."""
    node, name = gang.nodes[0], gang_name(gang.job_id, gang.attempt)
    pod: Json = {
        "restartPolicy": "Never",
        "subdomain": name,
        "enableServiceLinks": False,
        "automountServiceAccountToken": settings.mount_token,
        "terminationGracePeriodSeconds": int(node.grace) + FLUSH_SECONDS,
        "securityContext": {
            "fsGroup": agent_user(settings),
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "tolerations": [*_gpu_tolerations(node.resources, settings), *settings.tolerations],
        "containers": [_agent(node, settings), _commands(gang, settings)],
        "volumes": render_volumes(gang, settings),
    }
    if gang.weights:
        pod["initContainers"] = [_staging(node, settings)]
    selected = settings.accelerator_selectors.get(node.resources.gpu_type, {})
    optional = {
        "nodeSelector": {**settings.node_selector, **selected},
        "serviceAccountName": settings.service_account,
        "priorityClassName": settings.priority_class,
        "imagePullSecrets": [
            {"name": secret}
            for secret in [*([name] if pulls_with_login else []), *settings.pull_secrets]
        ],
    }
    return pod | {key: value for key, value in optional.items() if value}


def _agent(node: NodePlan, settings: ClusterSettings) -> Json:
    """Return the agent's container; it meets the Pod Security level `restricted`."""
    user = agent_user(settings)
    resources: Json = {"requests": AGENT_REQUESTS}
    if settings.enforce_limits:
        resources["limits"] = AGENT_LIMITS
    return {
        "name": AGENT,
        "image": settings.agent_image,
        "command": _ENTRYPOINT,
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "env": [
            {"name": "HOME", "value": "/tmp"},  # noqa: S108 (a volume of the pod)
            *(_GPU_MONITOR if node.resources.gpus else ()),
        ],
        "resources": resources,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": user,
            "runAsGroup": user,
            "readOnlyRootFilesystem": True,
            **_UNPRIVILEGED,
        },
        "volumeMounts": [
            {"name": "secret", "mountPath": str(pod_layout.SECRET), "readOnly": True},
            {"name": "state", "mountPath": str(pod_layout.STATE)},
            {"name": "control", "mountPath": str(pod_layout.CONTROL)},
            {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108
            *render_mounts(
                node, {n: str(pod_layout.volume_folder(n)) for n in range(len(node.volumes))}
            ),
            *_store_mounts(node, settings),
        ],
    }


def _staging(node: NodePlan, settings: ClusterSettings) -> Json:
    """Return the init container that mirrors the weights."""
    agent = _agent(node, settings)
    shared = {"secret", "state", "tmp", "store"}
    mounts = [mount for mount in agent["volumeMounts"] if mount["name"] in shared]
    weights = {
        "name": "cache",
        "mountPath": str(pod_layout.WEIGHTS),
        "subPath": WEIGHTS_FOLDER,
    }
    return {
        **agent,
        "name": STAGING,
        "command": [*_ENTRYPOINT, "weights"],
        "volumeMounts": [*mounts, weights],
    }


def _commands(gang: GangPlan, settings: ClusterSettings) -> Json:
    """Return the container of the user's commands. Its first process reads the agent's orders."""
    node = gang.nodes[0]
    directory = "" if node.workspace.in_image else node.workspace.directory
    same_user = settings.run_as_user == agent_user(settings)
    shared = node.checkpoints.directory if node.checkpoints and not same_user else ""
    command = ["/bin/sh", "-c", INIT_SCRIPT, "prefect-bt", directory, shared]
    targets = {number: volume.target for number, volume in enumerate(node.volumes)}
    return {
        "name": COMMANDS,
        "image": node.image.reference,
        "command": [_escape(word) for word in command],
        "env": _environment(gang),
        "resources": render_resources(node.resources, settings),
        **_user_context(settings.run_as_user),
        "volumeMounts": [
            {"name": "control", "mountPath": MOUNTED_AT, "readOnly": True},
            {"name": "shm", "mountPath": "/dev/shm"},  # noqa: S108
            *render_mounts(node, targets),
        ],
    }


def _user_context(user: int | None) -> Json:
    """Return the security context of the commands.

    A user other than root meets the Pod Security level `restricted`.
    """
    if user is None:
        return {}
    if user == 0:
        return {"securityContext": {"runAsUser": 0}}
    return {"securityContext": {"runAsUser": user, "runAsNonRoot": True, **_UNPRIVILEGED}}


def _environment(gang: GangPlan) -> list[Json]:
    """Return the variables of the commands container. They contain no secret."""
    node = gang.nodes[0]
    rendezvous = rendezvous_variables(
        f"{gang.job_id}-{gang.attempt}",
        address=host_name(gang.job_id, gang.attempt, 0),
        port=LEADER_PORT,
        group_size=node.group_size,
    )
    variables = {"PYTHONUNBUFFERED": "1", **rendezvous, **node.environment}
    rank = {"fieldRef": {"fieldPath": f"metadata.annotations['{INDEX_ANNOTATION}']"}}
    return [
        {"name": name, "valueFrom": rank}
        if name == RANK_VARIABLE
        else {"name": name, "value": _escape(value)}
        for name, value in variables.items()
    ]


def _escape(text: str) -> str:
    """Escape `$`, because Kubernetes expands `$(NAME)`."""
    return text.replace("$", "$$")


def render_resources(have: Resources, settings: ClusterSettings) -> Json:
    """Return requests and limits. Limits of CPUs and memory are set only if they are enforced."""
    amounts = {"cpu": str(have.cpus), "memory": str(have.memory)}
    gpus = {_gpu_resource(have, settings): str(have.gpus)} if have.gpus else {}
    limits = {**(amounts if settings.enforce_limits else {}), **gpus}
    return {"requests": {**amounts, **gpus}} | ({"limits": limits} if limits else {})


def _gpu_resource(have: Resources, settings: ClusterSettings) -> str:
    return settings.gpu_resources.get(have.gpu_type, GPU_RESOURCE)


def _gpu_tolerations(have: Resources, settings: ClusterSettings) -> list[dict[str, str]]:
    """Return the toleration that GPU machines require in most clusters."""
    if not have.gpus:
        return []
    return [{"key": _gpu_resource(have, settings), "operator": "Exists", "effect": "NoSchedule"}]


def agent_user(settings: ClusterSettings) -> int:
    """Return the commands' own user, so that the agent reads their files; never root."""
    return settings.run_as_user or pod_layout.AGENT_USER


def _store_mounts(node: NodePlan, settings: ClusterSettings) -> list[dict[str, str]]:
    if not settings.store_claim:
        return []
    return [{"name": "store", "mountPath": unquote(node.store.removeprefix("file://"))}]
