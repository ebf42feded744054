"""Settings of the Kubernetes substrate: fields of its block, and variables of the machine."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, Field, WithJsonSchema

ImageUser = Annotated[None, WithJsonSchema({"type": "null", "title": "That of the image"})]


class ClusterSettings(BaseModel):
    """Settings of the cluster and of the pods. All of it can be set in the block.

    On a machine, PREFECT_BT_KUBERNETES holds it as a JSON object, and a single field is read from
    PREFECT_BT_KUBERNETES_<FIELD>.
    """

    namespace: str = Field(
        default="",
        title="Namespace",
        description="Namespace of the jobs. Empty: that of the kubeconfig's context, or `default`.",
    )
    context: str = Field(
        default="",
        title="Context",
        description="Context of the kubeconfig. Empty: its current one. In a pod without a "
        "kubeconfig, the pod's own service account.",
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
        description="Image of prefect-bt's own container, built from "
        "deployments/images/agent.Dockerfile and pushed to a registry that the cluster reads.",
        examples=["registry.example.com/prefect-bt-agent:0.3.0"],
    )
    pull_secrets: list[str] = Field(
        default_factory=list[str],
        title="Pull secrets",
        description="Secrets of the namespace by which its machines pull images, such as the "
        "agent's. Those of the job's own image come from its docker_auth.",
    )
    service_account: str = Field(
        default="",
        title="Service account",
        description="Service account of the pods, for a store that is read with a cloud identity. "
        "Its token is mounted only if `Mount token` is set. Empty: the namespace's default.",
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
        "Without it, the pods use their service account.",
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
        description="For each accelerator of a definition, the labels of the machines that have "
        "it. Without an entry, any machine with GPUs may run the job.",
        examples=[{"H100": {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}}],
    )
    gpu_resources: dict[str, str] = Field(
        default_factory=dict,
        title="GPU resources",
        description="For an accelerator, the resource that its device plugin offers; "
        "`nvidia.com/gpu` without an entry.",
    )
    tolerations: list[dict[str, Any]] = Field(
        default_factory=list[dict[str, Any]],
        title="Tolerations",
        description="Taints that the pods tolerate. That of GPU machines is always tolerated by "
        "jobs with GPUs.",
        examples=[[{"key": "training", "operator": "Exists"}]],
    )
    priority_class: str = Field(
        default="", title="Priority class", description="Priority class of the pods."
    )
    queue_name: str = Field(
        default="",
        title="Queue",
        description="Name of the queue, in the label kueue.x-k8s.io/queue-name of each Job.",
    )
    run_as_user: ImageUser | Annotated[int, Field(ge=0, title="Number")] = Field(
        default=0,
        title="User",
        description="User id of the commands. 0 is root, as on Baseten. None: that of the image.",
    )
    enforce_limits: bool = Field(
        default=False,
        title="Enforce limits",
        description="Limit each pod to the CPUs and the memory of its node. Otherwise they are "
        "requests, and a pod may use what its machine has free.",
    )
    store_claim: str = Field(
        default="",
        title="Store claim",
        description="PersistentVolumeClaim that all machines share, for a store in a folder. It is "
        "mounted at the path that the folder has here.",
    )
    cache_claim: str = Field(
        default="",
        title="Cache claim",
        description="PersistentVolumeClaim for the training cache and for weights. Without a cache "
        "they are in the pod, and end with it.",
    )
    cache_storage_class: str = Field(
        default="",
        title="Cache storage class",
        description="Storage class of a claim `prefect-bt-cache`, which the first job makes in the "
        "namespace, and which stays. Many machines must be able to write to it at once.",
    )
    cache_size: str = Field(
        default="200Gi", title="Cache size", description="Size of that claim when it is made."
    )
    cache_host_path: str = Field(
        default="",
        title="Cache folder",
        description="Folder of each machine for the training cache and for weights, that everybody "
        "may write to (mode 1777).",
    )
    patience_seconds: float = Field(
        default=300.0,
        gt=0,
        title="Patience (seconds)",
        description="How long an attempt waits for pods that cannot start: for a machine with "
        "room, for an image, for a quota. Then the attempt fails, and says why.",
    )
    job_patch: dict[str, Any] = Field(
        default_factory=dict,
        title="Job patch",
        description="Merged into the manifest of each Job, as the last resort. Lists of objects "
        "with names are merged by name.",
        examples=[{"spec": {"template": {"spec": {"hostNetwork": True}}}}],
    )
