"""Choices of registry access in the form of the block Training Image.

Fields hold names of secrets. The form shows the docstrings and titles of these models. The models
have different fields, so a stored value is parsed without a discriminator: the Prefect UI cannot
switch the tabs of a discriminated union.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema

from prefect_bt.blocks.forms import FormChoice
from prefect_bt.definitions import DockerAuth, DockerAuthType
from prefect_bt.definitions.base import NonEmptyStr


class _Access(BaseModel):
    model_config = ConfigDict(extra="forbid")

    registry: NonEmptyStr = Field(
        title="Registry", description="Host of the registry, such as ghcr.io."
    )

    def build(self) -> DockerAuth:
        """Return the docker_auth of a definition."""
        method, details = self._details()
        auth: dict[str, Any] = {f"{method.value.lower()}_docker_auth": details}
        return DockerAuth(auth_method=method, registry=self.registry, **auth)

    def _details(self) -> tuple[DockerAuthType, dict[str, Any]]:
        raise NotImplementedError


class RegistryLogin(_Access):
    """Docker Hub, GHCR, NGC and other registries with a user name and a password."""

    model_config = ConfigDict(title="User and password")
    login_secret: NonEmptyStr = Field(
        title="Login secret",
        description="Name of a secret whose value is user:password, or of a Docker Registry "
        "Credentials block.",
    )

    def _details(self) -> tuple[DockerAuthType, dict[str, Any]]:
        return DockerAuthType.REGISTRY_SECRET, {"secret_ref": {"name": self.login_secret}}


class AwsKey(_Access):
    """Amazon ECR with an access key."""

    model_config = ConfigDict(title="AWS key")
    access_key_secret: NonEmptyStr = Field(
        title="Access key secret",
        description="Name of the secret that holds the key's ID, or of an AWS Credentials block.",
    )
    secret_key_secret: NonEmptyStr = Field(
        title="Secret key secret",
        description="Name of the secret that holds the key itself, or of the same AWS Credentials "
        "block.",
    )

    def _details(self) -> tuple[DockerAuthType, dict[str, Any]]:
        details = {
            "access_key_secret_ref": {"name": self.access_key_secret},
            "secret_access_key_secret_ref": {"name": self.secret_key_secret},
        }
        return DockerAuthType.AWS_IAM, details


class AwsRoleMethod(FormChoice):
    """Methods of DockerAuth that assume a role."""

    WEB_IDENTITY = "AWS_OIDC"
    ASSUME_ROLE = "AWS_ASSUME_ROLE"


class AwsRole(_Access):
    """Amazon ECR with an IAM role, without a secret."""

    model_config = ConfigDict(title="AWS role")
    role_arn: NonEmptyStr = Field(
        title="Role ARN", description="Role to assume: arn:aws:iam::1234:role/pull."
    )
    region: NonEmptyStr = Field(
        title="Region", description="AWS region of the registry, such as us-east-1."
    )
    method: AwsRoleMethod = Field(
        default=AwsRoleMethod.WEB_IDENTITY,
        title="Assumed with",
        description="Web identity (AWS_OIDC) or AWS credentials of the machine (AWS_ASSUME_ROLE).",
    )

    def _details(self) -> tuple[DockerAuthType, dict[str, Any]]:
        return DockerAuthType(self.method), {"role_arn": self.role_arn, "region": self.region}


class GcpKey(_Access):
    """Google Artifact Registry with the key of a service account."""

    model_config = ConfigDict(title="GCP key")
    key_secret: NonEmptyStr = Field(
        title="Key secret",
        description="Name of a secret whose value is the key's JSON text, or of a GCP Credentials "
        "block.",
    )

    def _details(self) -> tuple[DockerAuthType, dict[str, Any]]:
        details = {"service_account_json_secret_ref": {"name": self.key_secret}}
        return DockerAuthType.GCP_SERVICE_ACCOUNT_JSON, details


class GcpIdentity(_Access):
    """Google Artifact Registry with a federated identity, without a secret."""

    model_config = ConfigDict(title="GCP identity")
    service_account: NonEmptyStr = Field(
        title="Service account",
        description="Service account to use: pull@project.iam.gserviceaccount.com.",
    )
    workload_identity_provider: NonEmptyStr = Field(
        title="Identity provider",
        description="Full name of the provider: projects/1/locations/global/...",
    )

    def _details(self) -> tuple[DockerAuthType, dict[str, Any]]:
        return DockerAuthType.GCP_OIDC, self.model_dump(exclude={"registry"})


PublicImage = Annotated[None, WithJsonSchema({"type": "null", "title": "None (public image)"})]
RegistryAccess = PublicImage | RegistryLogin | AwsKey | AwsRole | GcpKey | GcpIdentity
"""No access is the first choice, because the first UI opens a form with it."""
