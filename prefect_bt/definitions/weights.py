"""Definitions of weights, which are mounted read-only, and of the authentication to their sources.

prefect_bt accepts two schemes that truss rejects: `file:///absolute/path` for a folder of this
machine or a shared disk, and `bt://project[@job][/checkpoint]` for a checkpoint of an earlier job.
`gcs://` and `http://` are rejected.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Final, Self

from pydantic import field_validator, model_validator

from prefect_bt.definitions.base import NonEmptyStr, OpenModel
from prefect_bt.text.hub_uri import HUB_FORM

_BUCKET_FORMS: Final = {
    "s3": "s3://bucket/prefix",
    "gs": "gs://bucket/prefix",
    "azure": "azure://account/container/path",
    "r2": "r2://account_id.bucket/prefix",
    "cw": "cw://bucket/prefix",
}
_SOURCE_FORMS: Final = {
    "hf": HUB_FORM,
    **_BUCKET_FORMS,
    "https": "https://host/path",
    "file": "file:///absolute/path",
    "bt": "bt://project[@job][/checkpoint]",
}
_SCHEME_SUGGESTIONS: Final = {
    "gcs": "gs://",
    "http": "https://",
    "huggingface": "hf://",
    "az": "azure://",
}


class WeightsAuthMethod(StrEnum):
    """Authentication method of a weights source. Each has its own fields of `WeightsAuth`."""

    CUSTOM_SECRET = "CUSTOM_SECRET"
    AWS_OIDC = "AWS_OIDC"
    GCP_OIDC = "GCP_OIDC"
    AWS_ASSUME_ROLE = "AWS_ASSUME_ROLE"


_AUTH_FIELDS: Final = {
    WeightsAuthMethod.CUSTOM_SECRET: ("auth_secret_name",),
    WeightsAuthMethod.AWS_OIDC: ("aws_oidc_role_arn", "aws_oidc_region"),
    WeightsAuthMethod.GCP_OIDC: ("gcp_oidc_service_account", "gcp_oidc_workload_id_provider"),
    WeightsAuthMethod.AWS_ASSUME_ROLE: ("aws_assume_role_arn", "aws_assume_role_region"),
}


class WeightsAuth(OpenModel):
    """Authentication to a weights source: `auth_method` and all fields that belong to it."""

    auth_method: WeightsAuthMethod
    """Authentication method, in upper or lower case. Fields of another method are refused."""
    auth_secret_name: str | None = None
    """Name of the secret with the token or key, for `CUSTOM_SECRET`."""
    aws_oidc_role_arn: str | None = None
    """ARN of the IAM role to assume with a web identity, for `AWS_OIDC`."""
    aws_oidc_region: str | None = None
    """AWS region, for `AWS_OIDC`."""
    gcp_oidc_service_account: str | None = None
    """Service account to use, for `GCP_OIDC`."""
    gcp_oidc_workload_id_provider: str | None = None
    """Full name of the workload identity provider, for `GCP_OIDC`."""
    aws_assume_role_arn: str | None = None
    """ARN of the role to assume with the machine's credentials, for `AWS_ASSUME_ROLE`."""
    aws_assume_role_region: str | None = None
    """AWS region, for `AWS_ASSUME_ROLE`."""

    @field_validator("auth_method", mode="before")
    @classmethod
    def _normalize_method(cls, value: Any) -> Any:
        return value.upper() if isinstance(value, str) else value

    @model_validator(mode="after")
    def _check_auth_fields(self) -> Self:
        method = self.auth_method.value
        own = _AUTH_FIELDS[self.auth_method]
        missing = [name for name in own if not getattr(self, name)]
        if missing:
            raise ValueError(f"{', '.join(missing)} must be given when auth_method is {method}")
        every = (name for names in _AUTH_FIELDS.values() for name in names)
        foreign = [name for name in every if name not in own and getattr(self, name)]
        if foreign:
            raise ValueError(f"{', '.join(foreign)} cannot be given when auth_method is {method}")
        return self


def _check_source(source: str) -> None:
    scheme, found, rest = source.partition("://")
    if not found:
        raise ValueError(
            f'"{source}" has no scheme; write one of {", ".join(_SOURCE_FORMS.values())}'
        )
    if scheme not in _SOURCE_FORMS:
        near = _SCHEME_SUGGESTIONS.get(scheme)
        hint = f"; write {near}" if near else ""
        raise ValueError(
            f'"{scheme}://" is not supported{hint}; supported: {", ".join(_SOURCE_FORMS)}'
        )
    absolute = scheme == "file"
    if rest in {"", "/"} or rest.startswith("/") != absolute:
        raise ValueError(f'"{source}" is incomplete; the form is {_SOURCE_FORMS[scheme]}')
    if scheme in _BUCKET_FORMS and "@" in rest:
        raise ValueError(
            f'"{source}" has an "@", but a revision can only be given for hf:// sources; '
            f"the form is {_SOURCE_FORMS[scheme]}"
        )


class WeightsSource(OpenModel):
    """Files that are mirrored before the nodes start, and mounted read-only in every node."""

    source: NonEmptyStr
    """URI with the scheme hf, s3, gs, azure, r2, cw or https; here also file and bt."""
    mount_location: NonEmptyStr
    """Absolute path in the node. Two sources at one path are refused."""
    auth: WeightsAuth | None = None
    """Authentication; None: `auth_secret_name`, else, for buckets, the machine's credentials."""
    auth_secret_name: str | None = None
    """Name of the secret with the token or key; give it here or in `auth`, not in both."""
    allow_patterns: list[str] | None = None
    """Globs of the files to mount; `**/` matches subfolders. None: all files."""
    ignore_patterns: list[str] | None = None
    """Globs of the files to leave out after `allow_patterns` selected; None: no file."""

    @property
    def secret_name(self) -> str | None:
        """Return the secret of the source, from `auth_secret_name` or from `auth`."""
        return self.auth_secret_name or (self.auth.auth_secret_name if self.auth else None)

    @field_validator("source")
    @classmethod
    def _validate_source(cls, value: str) -> str:
        _check_source(value)
        return value

    @field_validator("mount_location")
    @classmethod
    def _validate_mount_location(cls, value: str) -> str:
        if not value.startswith("/"):
            raise ValueError(f'"{value}" is not absolute; a mount location starts with "/"')
        return value

    @model_validator(mode="after")
    def _check_secret_name(self) -> Self:
        if self.auth_secret_name and self.auth and self.auth.auth_secret_name:
            raise ValueError("auth_secret_name is given twice; keep it here or in auth, not both")
        return self
