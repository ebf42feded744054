"""Parse the text of a weights secret into the fields that a source needs. Pure.

Errors name the expected keys and no part of the secret: a wrong key may be a value in the wrong
place. Formats: docs/compatibility.md, Weights sources and their authentication.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal, TypeVar

from pydantic import BaseModel, Field, RootModel, ValidationError

from prefect_bt.errors import WeightsError
from prefect_bt.planning.plan import WeightsPlan

DEFAULT_REGION: Final = "us-east-1"
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


class S3Secret(BaseModel, extra="forbid", str_strip_whitespace=True):
    """An access key of S3, R2 or CoreWeave. A permanent one has no `token`."""

    access_key_id: _Text = Field(alias="aws_access_key_id", repr=False)
    secret_access_key: _Text = Field(alias="aws_secret_access_key", repr=False)
    region: str | None = Field(DEFAULT_REGION, alias="aws_region")
    token: str | None = Field("", alias="aws_session_token", repr=False)


class _GoogleKey(BaseModel, str_strip_whitespace=True):
    type: Literal["service_account"]
    client_email: _Text
    private_key: _Text


class _AzureSecret(RootModel[_AzureFields], str_strip_whitespace=True):
    root: _AzureFields = Field(min_length=1, max_length=1)


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
    what = f"The secret {plan.secret!r} of {plan.source} is malformed."
    return WeightsError(what, source=plan.source, next_step=f"It must hold {expected}.")
