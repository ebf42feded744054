"""Definitions of the container image and of the authentication to its registry."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Final, Self

from pydantic import StringConstraints, model_validator

from prefect_bt.definitions.base import StrictModel
from prefect_bt.definitions.variables import SecretReference

_NonEmptyStr = Annotated[str, StringConstraints(min_length=1)]


class DockerAuthType(StrEnum):
    """How a registry is authenticated; each has one matching field of `DockerAuth`."""

    GCP_SERVICE_ACCOUNT_JSON = "GCP_SERVICE_ACCOUNT_JSON"
    AWS_IAM = "AWS_IAM"
    AWS_OIDC = "AWS_OIDC"
    GCP_OIDC = "GCP_OIDC"
    REGISTRY_SECRET = "REGISTRY_SECRET"
    AWS_ASSUME_ROLE = "AWS_ASSUME_ROLE"


class AWSIAMDockerAuth(StrictModel):
    """An access key for ECR, as two secrets."""

    access_key_secret_ref: SecretReference
    secret_access_key_secret_ref: SecretReference


class AWSOIDCDockerAuth(StrictModel):
    """A role for ECR assumed with a web identity."""

    role_arn: _NonEmptyStr
    region: _NonEmptyStr


class AWSAssumeRoleDockerAuth(StrictModel):
    """A role for ECR assumed with the platform's own principal."""

    role_arn: _NonEmptyStr
    region: _NonEmptyStr


class GCPOIDCDockerAuth(StrictModel):
    """A service account for Artifact Registry through workload identity federation."""

    service_account: _NonEmptyStr
    workload_identity_provider: _NonEmptyStr


class GCPServiceAccountJSONDockerAuth(StrictModel):
    """A service-account key for Artifact Registry; the secret is the JSON text."""

    service_account_json_secret_ref: SecretReference


class RegistrySecretDockerAuth(StrictModel):
    """Docker Hub, GHCR, NGC and the like; the secret is `username:password`."""

    secret_ref: SecretReference


_AUTH_FIELDS: Final = {
    DockerAuthType.AWS_IAM: "aws_iam_docker_auth",
    DockerAuthType.AWS_OIDC: "aws_oidc_docker_auth",
    DockerAuthType.AWS_ASSUME_ROLE: "aws_assume_role_docker_auth",
    DockerAuthType.GCP_OIDC: "gcp_oidc_docker_auth",
    DockerAuthType.GCP_SERVICE_ACCOUNT_JSON: "gcp_service_account_json_docker_auth",
    DockerAuthType.REGISTRY_SECRET: "registry_secret_docker_auth",
}


class DockerAuth(StrictModel):
    """Registry authentication: `auth_method` and exactly the one field that belongs to it."""

    auth_method: DockerAuthType
    registry: str
    aws_iam_docker_auth: AWSIAMDockerAuth | None = None
    aws_oidc_docker_auth: AWSOIDCDockerAuth | None = None
    aws_assume_role_docker_auth: AWSAssumeRoleDockerAuth | None = None
    gcp_oidc_docker_auth: GCPOIDCDockerAuth | None = None
    gcp_service_account_json_docker_auth: GCPServiceAccountJSONDockerAuth | None = None
    registry_secret_docker_auth: RegistrySecretDockerAuth | None = None

    @model_validator(mode="after")
    def _check_auth_fields(self) -> Self:
        method, wanted = self.auth_method.value, _AUTH_FIELDS[self.auth_method]
        given = [name for name in _AUTH_FIELDS.values() if getattr(self, name) is not None]
        if wanted not in given:
            raise ValueError(f"{wanted} must be given when auth_method is {method}")
        others = [name for name in given if name != wanted]
        if others:
            raise ValueError(f"{', '.join(others)} cannot be given when auth_method is {method}")
        return self


class Image(StrictModel):
    """`base_image` is the reference as `docker pull` takes it."""

    base_image: str
    docker_auth: DockerAuth | None = None
