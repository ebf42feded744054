"""Block Kubernetes Substrate: nodes as pods of a Kubernetes cluster."""

from __future__ import annotations

import json
from typing import Annotated, Any, ClassVar, cast

from prefect.blocks.core import Block
from pydantic import BeforeValidator, Field, HttpUrl, field_validator

from prefect_bt.blocks.forms import KUBERNETES_LOGO
from prefect_bt.blocks.local_substrate import SubstrateBlock
from prefect_bt.errors import DefinitionError
from prefect_bt.kubernetes_settings import ClusterSettings
from prefect_bt.settings import Settings


def _read_reference(value: object) -> object:
    """Return the reference `type/name` of a saved block, or any other value unchanged."""
    if not isinstance(value, Block):
        return value
    name = cast("Any", value)._block_document_name
    if not name:
        message = "save the credentials block first: its name is stored here, not its content"
        raise ValueError(message)
    return f"{value.get_block_type_slug()}/{name}"


BlockReference = Annotated[str, BeforeValidator(_read_reference)]


# Prefect's Block overrides methods of pydantic's model with fewer parameters.
class KubernetesSubstrate(SubstrateBlock, ClusterSettings):  # pyright: ignore[reportIncompatibleMethodOverride]
    """Substrate that runs nodes as pods of a Kubernetes cluster."""

    substrate: ClassVar[str] = "kubernetes"

    _block_type_name: ClassVar[str | None] = "Kubernetes Substrate"
    _block_type_slug: ClassVar[str | None] = "prefect-bt-kubernetes-substrate"
    _description: ClassVar[str | None] = (
        "Runs the nodes of training jobs as pods of a Kubernetes cluster, each in the job's image. "
        "The image needs /bin/sh; it need not contain prefect-bt."
    )
    _logo_url: ClassVar[HttpUrl | None] = KUBERNETES_LOGO
    _code_example: ClassVar[str | None] = """
    ```python
    from prefect_bt.blocks import KubernetesSubstrate

    KubernetesSubstrate(
        namespace="training", agent_image="registry.example.com/prefect-bt-agent:0.1.0"
    ).save("BLOCK_NAME")
    substrate = KubernetesSubstrate.load("BLOCK_NAME").build()
    ```
    """

    grace_seconds: float = Field(
        default=30.0,
        ge=0,
        title="Grace period (seconds)",
        description="Seconds from SIGTERM to SIGKILL when a job is stopped.",
    )
    credentials: BlockReference = Field(
        default="",
        title="Credentials",
        description="Name of a Kubernetes Credentials block of prefect-kubernetes, or of a secret "
        "whose value is a kubeconfig. It is used instead of the kubeconfig of the machine.",
        examples=["kubernetes-credentials/production"],
    )

    @field_validator("kubeconfig")
    @classmethod
    def _validate_kubeconfig(cls, path: str) -> str:
        if path.lstrip().startswith("{") or "\n" in path.strip():
            message = "kubeconfig is a path; save its text as a secret, and name it in credentials"
            raise ValueError(message)
        return path

    def cluster_settings(self) -> ClusterSettings:
        """Return the settings of the cluster, with the kubeconfig of `credentials`.

        The kubeconfig is read at each call and not stored, because blocks are pickled and shown.
        Raise SecretError, ServerError or DefinitionError.
        """
        given = {name: getattr(self, name) for name in ClusterSettings.model_fields}
        if self.credentials:
            given["kubeconfig"] = _read_kubeconfig(self.credentials)
        return ClusterSettings(**given)

    def settings(self) -> Settings:
        kubernetes = self.cluster_settings()
        return Settings(substrate=self.substrate, kubernetes=kubernetes, grace=self.grace_seconds)


def _read_kubeconfig(name: str) -> str:
    """Return the kubeconfig of the block or secret as JSON; raise SecretError, DefinitionError."""
    import yaml

    from prefect_bt.credentials.secrets import resolve_secrets
    from prefect_bt.jobs.starting.launcher import default_secret_sources

    text = resolve_secrets([name], default_secret_sources())[name]
    try:
        found: Any = yaml.safe_load(text)
    except yaml.YAMLError:
        found = None  # the error would quote the text
    if not isinstance(found, dict) or not cast("dict[str, Any]", found).get("clusters"):
        raise DefinitionError(
            f"The credentials {name!r} hold no kubeconfig with a cluster.",
            next_step="Give the Kubernetes Credentials block a cluster config, or leave "
            "credentials empty to use the kubeconfig of the machine.",
            field="credentials",
            value=name,
        )
    return json.dumps(found)
