"""Settings of the Kubernetes substrate, as fields of its block and as variables."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated, Any, Final, cast

from pydantic import BaseModel, Field, WithJsonSchema, field_validator

ImageUser = Annotated[None, WithJsonSchema({"type": "null", "title": "That of the image"})]

_QUANTITY: Final = re.compile(
    r"\+?(\d+(\.\d*)?|\.\d+)([KMGTPE]i|[numkMGTPE]|[eE][+-]?\d+)?", re.ASCII
)
_AMOUNTS: Final = frozenset({"limits", "requests", "overhead"})
"""Fields of a Job that hold quantities by the name of a resource."""
_AMOUNT: Final = frozenset({"sizeLimit", "divisor"})
"""Fields that hold a quantity."""


class ClusterSettings(BaseModel):
    """Settings of the cluster and of the pods. The block has the same fields.

    On a machine, PREFECT_BT_KUBERNETES holds them as a JSON object, and a single field is read
    from PREFECT_BT_KUBERNETES_<FIELD>.
    """

    namespace: str = Field(
        default="",
        title="Namespace",
        description="Namespace of the jobs. Empty: the namespace of the context, or `default`.",
    )
    context: str = Field(
        default="",
        title="Context",
        description="Context of the kubeconfig. Empty: the current context; in a pod without a "
        "kubeconfig, the service account of the pod.",
    )
    kubeconfig: str = Field(
        default="",
        repr=False,
        title="Kubeconfig",
        description="Path of the kubeconfig. Empty: KUBECONFIG, or ~/.kube/config.",
    )
    agent_image: str = Field(
        default="prefect-bt-agent",
        min_length=1,
        title="Agent image",
        description="Image of the container of prefect-bt. Build it from "
        "deployments/images/agent.Dockerfile, and push it to a registry that the cluster reads.",
        examples=["registry.example.com/prefect-bt-agent:0.3.0"],
    )
    pull_secrets: list[str] = Field(
        default_factory=list[str],
        title="Pull secrets",
        description="Secrets of the namespace for pulling images, such as the agent image. The "
        "login for the job's image is its docker_auth.",
    )
    service_account: str = Field(
        default="",
        title="Service account",
        description="Service account of the pods, for a store that needs a cloud identity. Its "
        "token is mounted only with `Mount token`. Empty: the default of the namespace.",
    )
    mount_token: bool = Field(
        default=False,
        title="Mount token",
        description="Mount the service account's token in the pods.",
    )
    forward_credentials: bool = Field(
        default=True,
        title="Forward credentials",
        description="Give the agent this machine's credentials for the store, in the job's Secret. "
        "Otherwise the pods use their service account.",
    )
    node_selector: dict[str, str] = Field(
        default_factory=dict,
        title="Node selector",
        description="Labels of the machines that may run the pods.",
        examples=[{"pool": "training"}],
    )
    accelerator_selectors: dict[str, dict[str, str]] = Field(
        default_factory=dict,
        title="Accelerator selectors",
        description="Labels of the machines with an accelerator, by the accelerator's name in "
        "definitions. Without an entry, any machine with GPUs may run the job.",
        examples=[{"H100": {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}}],
    )
    gpu_resources: dict[str, str] = Field(
        default_factory=dict,
        title="GPU resources",
        description="Resource of the device plugin, by the accelerator's name in definitions; "
        "`nvidia.com/gpu` without an entry.",
    )
    tolerations: list[dict[str, Any]] = Field(
        default_factory=list[dict[str, Any]],
        title="Tolerations",
        description="Taints that the pods tolerate. Jobs with GPUs also tolerate the taint of GPU "
        "machines.",
        examples=[[{"key": "training", "operator": "Exists"}]],
    )
    priority_class: str = Field(
        default="", title="Priority class", description="Priority class of the pods."
    )
    queue_name: str = Field(
        default="",
        title="Queue",
        description="Queue of Kueue, in the label kueue.x-k8s.io/queue-name of each Job.",
    )
    run_as_user: ImageUser | Annotated[int, Field(ge=0, title="Number")] = Field(
        default=0,
        title="User",
        description="User id of the commands. 0: root, as on Baseten. None: the image's user.",
    )
    enforce_limits: bool = Field(
        default=False,
        title="Enforce limits",
        description="Limit each pod to the CPUs and the memory of its node. Otherwise they are "
        "requests, and a pod may use free CPUs and memory of its machine.",
    )
    store_claim: str = Field(
        default="",
        title="Store claim",
        description="PersistentVolumeClaim that all machines share, for a store in a folder. It is "
        "mounted at the path of that folder.",
    )
    cache_claim: str = Field(
        default="",
        title="Cache claim",
        description="PersistentVolumeClaim for the training cache and for weights. Without a "
        "claim or folder they are in the pod, and are deleted with it.",
    )
    cache_storage_class: str = Field(
        default="",
        title="Cache storage class",
        description="Storage class of the claim `prefect-bt-cache`, which the first job creates "
        "and no job deletes. It must allow writes of many machines at once.",
    )
    cache_size: str = Field(
        default="200Gi", title="Cache size", description="Size of the claim `prefect-bt-cache`."
    )
    cache_host_path: str = Field(
        default="",
        title="Cache folder",
        description="Folder of each machine for the training cache and for weights, with mode "
        "1777.",
    )
    patience_seconds: float = Field(
        default=300.0,
        gt=0,
        title="Patience (seconds)",
        description="Seconds that an attempt waits for pods that cannot start: for a free machine, "
        "an image or a quota. Then the attempt fails with the reason.",
    )
    job_patch: dict[str, Any] = Field(
        default_factory=dict,
        title="Job patch",
        description="Object to merge into the manifest of each Job, for settings without a field. "
        "Lists of objects with names are merged by name.",
        examples=[{"spec": {"template": {"spec": {"hostNetwork": True}}}}],
    )

    @field_validator("cache_size")
    @classmethod
    def _check_cache_size(cls, size: str) -> str:
        _check_quantity("cache_size", size)
        return size

    @field_validator("job_patch")
    @classmethod
    def _check_job_patch(cls, patch: dict[str, Any]) -> dict[str, Any]:
        for field, value in _iter_quantities(patch, "job_patch"):
            _check_quantity(field, value)
        return patch


def _iter_quantities(value: object, field: str) -> Iterator[tuple[str, object]]:
    """Yield each quantity in a part of a manifest, with the path of its field."""
    if isinstance(value, list):
        for number, item in enumerate(cast("list[object]", value)):
            yield from _iter_quantities(item, f"{field}[{number}]")
    if not isinstance(value, dict):
        return
    for name, item in cast("dict[str, object]", value).items():
        path = f"{field}.{name}"
        if name in _AMOUNT:
            yield path, item
        elif name in _AMOUNTS and isinstance(item, dict):
            amounts = cast("dict[str, object]", item)
            yield from ((f"{path}.{resource}", amount) for resource, amount in amounts.items())
        else:
            yield from _iter_quantities(item, path)


def _check_quantity(field: str, value: object) -> None:
    """Raise ValueError unless the API server takes the value. None removes a field."""
    text = str(value) if isinstance(value, (str, int, float)) else ""
    if value is not None and not _QUANTITY.fullmatch(text):
        message = (
            f"{field} is {value!r}, which is no quantity of Kubernetes: write CPUs as 2 or 500m, "
            "and bytes as 12Gi or 500M"
        )
        raise ValueError(message)
