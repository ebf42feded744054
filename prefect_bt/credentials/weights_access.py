"""Credentials for weights sources: secrets, roles, and the machine's own credentials.

Errors name the expected keys and no part of the secret: a wrong key may be a misplaced value.
Formats: docs/compatibility.md, Weights sources and their authentication.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Annotated, Final, Literal, TypeVar

from pydantic import BaseModel, Field, RootModel, ValidationError

from prefect_bt.credentials.cloud_identity import (
    AwsKeys,
    GoogleToken,
    assume_role,
    assume_role_with_web_identity,
    exchange_google_token,
)
from prefect_bt.errors import WeightsError
from prefect_bt.object_store.connect import (
    ANONYMOUS,
    Access,
    BucketUrl,
    create_access,
    find_machine_access,
)
from prefect_bt.planning.plan import WeightsAuthPlan, WeightsPlan
from prefect_bt.text.url_redaction import redact_url

_DEFAULT_REGION: Final = "us-east-1"
_Form = TypeVar("_Form", bound=BaseModel)
_Text = Annotated[str, Field(min_length=1)]
_AzureFields = dict[Literal["account_key", "sas_token"], _Text]
_S3: Final = (
    "JSON with aws_access_key_id and aws_secret_access_key, and optionally aws_region and "
    "aws_session_token"
)
_GOOGLE: Final = "a service account's JSON key, with type, client_email and private_key"
_TOKEN: Final = "the token alone, on one line"
_AZURE: Final = "an account key, a SAS token, or JSON with one of account_key and sas_token"
_ROLES: Final[dict[str, Callable[[WeightsAuthPlan], AwsKeys | GoogleToken]]] = {
    "AWS_ASSUME_ROLE": lambda auth: assume_role(auth.role_arn, auth.region),
    "AWS_OIDC": lambda auth: assume_role_with_web_identity(auth.role_arn, auth.region),
    "GCP_OIDC": lambda auth: exchange_google_token(auth.service_account, auth.identity_provider),
}
"""Method of auth -> function that requests credentials."""


class S3Secret(BaseModel, extra="forbid", str_strip_whitespace=True):
    """An access key of S3, R2 or CoreWeave. A permanent one has no `token`."""

    access_key_id: _Text = Field(alias="aws_access_key_id", repr=False)
    secret_access_key: _Text = Field(alias="aws_secret_access_key", repr=False)
    region: str | None = Field(_DEFAULT_REGION, alias="aws_region")
    token: str | None = Field("", alias="aws_session_token", repr=False)


class _GoogleKey(BaseModel, str_strip_whitespace=True):
    type: Literal["service_account"]
    client_email: _Text
    private_key: _Text


class _AzureSecret(RootModel[_AzureFields], str_strip_whitespace=True):
    root: _AzureFields = Field(min_length=1, max_length=1)


def list_accesses(plan: WeightsPlan, address: BucketUrl, secret: str | None) -> list[Access]:
    """Return the credentials to try, in order.

    With auth, only the credentials that it names; else those of this machine, then none, for public
    buckets.
    WeightsError for a malformed secret, StoreError for unusable AWS settings.
    """
    auth = plan.auth
    if auth.method in _ROLES:
        name, request = f"the credentials of {auth.method}", _ROLES[auth.method]
        return [create_access(name, lambda: asdict(request(auth)), region=auth.region)]
    if secret is not None:
        return [_secret_access(plan, address, secret)]
    machine = find_machine_access(address)
    return [machine, ANONYMOUS] if machine else [ANONYMOUS]


def _secret_access(plan: WeightsPlan, address: BucketUrl, secret: str) -> Access:
    name, region = f"the secret {plan.secret!r}", ""
    if address.scheme == "gs":
        key = parse_google_secret(plan, secret)
        return Access(name, lambda: {"service_account_key": key})
    if address.scheme == "azure":
        fields = parse_azure_secret(plan, secret)
    else:
        found = parse_s3_secret(plan, secret).model_dump()
        fields = {name: value or None for name, value in found.items()}
        region = fields.pop("region") or _DEFAULT_REGION
    return create_access(name, lambda: {**fields, "expires_at": None}, region=region)


def parse_s3_secret(plan: WeightsPlan, text: str) -> S3Secret:
    """Return the key from JSON without unknown keys; WeightsError."""
    return _parse(plan, S3Secret, text, _S3)


def parse_google_secret(plan: WeightsPlan, text: str) -> str:
    """Return the JSON key of a service account unchanged, after a check; WeightsError."""
    _parse(plan, _GoogleKey, text, _GOOGLE)
    return text


def parse_azure_secret(plan: WeightsPlan, text: str) -> dict[str, str]:
    """Return `{"access_key": …}` or `{"sas_token": …}`, from JSON or from one bare value."""
    if text.strip().startswith("{"):
        [(name, value)] = _parse(plan, _AzureSecret, text, _AZURE).root.items()
    else:
        value = parse_token(plan, text, _AZURE)
        # A key is base64; a SAS token is a query string with a signature.
        name = "sas_token" if "sig=" in value else "account_key"
    return {"access_key" if name == "account_key" else name: value.lstrip("?")}


def parse_token(plan: WeightsPlan, text: str, expected: str = _TOKEN) -> str:
    """Return one word that a header can contain; WeightsError."""
    token = text.strip()
    if not token.isascii() or not token.isprintable() or len(token.split()) != 1:
        raise _secret_error(plan, expected)
    return token


def _parse(plan: WeightsPlan, form: type[_Form], text: str, expected: str) -> _Form:
    try:
        return form.model_validate_json(text)
    except ValidationError:
        raise _secret_error(plan, expected) from None


def _secret_error(plan: WeightsPlan, expected: str) -> WeightsError:
    what = f"The secret {plan.secret!r} of {redact_url(plan.source)} is malformed."
    return WeightsError(what, source=plan.source, next_step=f"It must hold {expected}.")
