"""Definitions of the container image and of the authentication to its registry."""

from __future__ import annotations

from enum import StrEnum
from typing import Self

from pydantic import model_validator

from prefect_bt.definitions.base import NonEmptyStr, StrictModel
from prefect_bt.definitions.environment_variables import SecretReference


class DockerAuthType(StrEnum):
    """Authentication method of a registry. Each has one matching field of `DockerAuth`."""

    GCP_SERVICE_ACCOUNT_JSON = "GCP_SERVICE_ACCOUNT_JSON"
    AWS_IAM = "AWS_IAM"
    AWS_OIDC = "AWS_OIDC"
    GCP_OIDC = "GCP_OIDC"
    REGISTRY_SECRET = "REGISTRY_SECRET"
    AWS_ASSUME_ROLE = "AWS_ASSUME_ROLE"


class AWSIAMDockerAuth(StrictModel):
    """Access key for Amazon ECR."""

    access_key_secret_ref: SecretReference
    """Secret that holds the id of the access key."""
    secret_access_key_secret_ref: SecretReference
    """Secret that holds the secret access key."""


class AWSOIDCDockerAuth(StrictModel):
    """IAM role for Amazon ECR, assumed with a web identity."""

    role_arn: NonEmptyStr
    """ARN of the role, such as `arn:aws:iam::1234:role/pull`."""
    region: NonEmptyStr
    """AWS region of the registry, such as `us-east-1`."""


class AWSAssumeRoleDockerAuth(StrictModel):
    """IAM role for Amazon ECR, assumed with the AWS credentials of the machine."""

    role_arn: NonEmptyStr
    """ARN of the role, such as `arn:aws:iam::1234:role/pull`."""
    region: NonEmptyStr
    """AWS region of the registry, such as `us-east-1`."""


class GCPOIDCDockerAuth(StrictModel):
    """Service account for Google Artifact Registry, through workload identity federation."""

    service_account: NonEmptyStr
    """Service account, such as `pull@project.iam.gserviceaccount.com`."""
    workload_identity_provider: NonEmptyStr
    """Full name of the provider: `projects/<number>/locations/global/...`."""


class GCPServiceAccountJSONDockerAuth(StrictModel):
    """Key of a service account for Google Artifact Registry."""

    service_account_json_secret_ref: SecretReference
    """Secret that holds the key as JSON text."""


class RegistrySecretDockerAuth(StrictModel):
    """User name and password for Docker Hub, GHCR, NGC and other registries."""

    secret_ref: SecretReference
    """Secret that holds `username:password`."""


class DockerAuth(StrictModel):
    """Login of a private registry: `auth_method` and exactly the field that belongs to it."""

    auth_method: DockerAuthType
    """Authentication method. It determines which of the fields below is required."""
    registry: str
    """Host of the registry, such as `ghcr.io`."""
    aws_iam_docker_auth: AWSIAMDockerAuth | None = None
    """Access key, for `AWS_IAM`."""
    aws_oidc_docker_auth: AWSOIDCDockerAuth | None = None
    """Role and region, for `AWS_OIDC`."""
    aws_assume_role_docker_auth: AWSAssumeRoleDockerAuth | None = None
    """Role and region, for `AWS_ASSUME_ROLE`."""
    gcp_oidc_docker_auth: GCPOIDCDockerAuth | None = None
    """Service account and identity provider, for `GCP_OIDC`."""
    gcp_service_account_json_docker_auth: GCPServiceAccountJSONDockerAuth | None = None
    """Key of a service account, for `GCP_SERVICE_ACCOUNT_JSON`."""
    registry_secret_docker_auth: RegistrySecretDockerAuth | None = None
    """User name and password, for `REGISTRY_SECRET`."""

    @model_validator(mode="after")
    def _check_auth_fields(self) -> Self:
        method, suffix = self.auth_method.value, "_docker_auth"
        wanted = f"{method.lower()}{suffix}"
        given = [name for name, value in self if name.endswith(suffix) and value is not None]
        if wanted not in given:
            raise ValueError(f"{wanted} must be given when auth_method is {method}")
        others = [name for name in given if name != wanted]
        if others:
            raise ValueError(f"{', '.join(others)} cannot be given when auth_method is {method}")
        return self


class Image(StrictModel):
    """Container image of the nodes. The local substrate ignores it."""

    base_image: str
    """Reference of the image as for `docker pull`, with a tag or a digest."""
    docker_auth: DockerAuth | None = None
    """Login of the image's registry; None: a public image."""
