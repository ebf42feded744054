"""Block types: typed configuration that the Prefect server stores and its UI edits.

Begin with `compute`, then `local_substrate`. `prefect block register -m prefect_bt.blocks` or
`prefect-bt up` registers them. Slugs and field names are stable, because stored documents outlive
releases.
"""

from prefect_bt.blocks.compute import GPU, Availability, TrainingCompute
from prefect_bt.blocks.docker_substrate import DockerSubstrate
from prefect_bt.blocks.image import TrainingImage
from prefect_bt.blocks.kubernetes_substrate import KubernetesSubstrate
from prefect_bt.blocks.local_substrate import LocalSubstrate
from prefect_bt.blocks.password import apply_local_server_auth
from prefect_bt.blocks.registry import AwsKey, AwsRole, GcpIdentity, GcpKey, RegistryLogin
from prefect_bt.blocks.retries import RetryPolicy
from prefect_bt.blocks.secrets import TrainingSecrets
from prefect_bt.blocks.serving import ServingDeployment, ServingEngine
from prefect_bt.blocks.store import TrainingStore

apply_local_server_auth()  # every program with blocks or flows of the package imports this module

BLOCKS = (
    TrainingSecrets,
    TrainingCompute,
    TrainingImage,
    TrainingStore,
    LocalSubstrate,
    DockerSubstrate,
    KubernetesSubstrate,
    RetryPolicy,
    ServingEngine,
    ServingDeployment,
)
"""Block types of this package, in the order of the documentation."""

__all__ = [
    "BLOCKS",
    "GPU",
    "Availability",
    "AwsKey",
    "AwsRole",
    "DockerSubstrate",
    "GcpIdentity",
    "GcpKey",
    "KubernetesSubstrate",
    "LocalSubstrate",
    "RegistryLogin",
    "RetryPolicy",
    "ServingDeployment",
    "ServingEngine",
    "TrainingCompute",
    "TrainingImage",
    "TrainingSecrets",
    "TrainingStore",
]
