"""Parse the text of a weights secret into the fields that a source needs. Pure.

Errors name the expected keys and no part of the secret: a wrong key may be a value in the wrong
place. Formats: docs/compatibility.md, Weights sources and their authentication.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, Final, cast

from prefect_bt.errors import WeightsError
from prefect_bt.planning.plan import WeightsPlan

S3_KEYS: Final = ("aws_access_key_id", "aws_secret_access_key")
S3_OPTIONAL_KEYS: Final = ("aws_region", "aws_session_token")
AZURE_KEYS: Final = ("account_key", "sas_token")
DEFAULT_REGION: Final = "us-east-1"


@dataclass(frozen=True)
class S3Secret:
    """An access key of S3, R2 or CoreWeave. A permanent one has no `session_token`."""

    access_key_id: str = field(repr=False)
    secret_access_key: str = field(repr=False)
    region: str = DEFAULT_REGION
    session_token: str = field(default="", repr=False)


def parse_s3_secret(plan: WeightsPlan, text: str) -> S3Secret:
    """Return the key from JSON with the two required keys and no unknown one; WeightsError."""
    found = _parse_json_object(plan, text)
    required = " and ".join(S3_KEYS)
    expected = f"JSON with {required}, and optionally {' and '.join(S3_OPTIONAL_KEYS)}"
    if found is None or any(not _is_nonempty_text(found.get(name)) for name in S3_KEYS):
        raise _secret_error(plan, f"needs the keys {required}", expected)
    if set(found) - {*S3_KEYS, *S3_OPTIONAL_KEYS}:
        raise _secret_error(plan, "has an unknown key", expected)
    if any(not isinstance(found[name], str | None) for name in S3_OPTIONAL_KEYS if name in found):
        raise _secret_error(plan, "has a value that is not text", expected)
    return S3Secret(
        found["aws_access_key_id"].strip(),
        found["aws_secret_access_key"].strip(),
        found.get("aws_region") or DEFAULT_REGION,
        found.get("aws_session_token") or "",
    )


def parse_google_secret(plan: WeightsPlan, text: str) -> str:
    """Return the JSON key of a service account unchanged, after a check; WeightsError."""
    found = _parse_json_object(plan, text) or {}
    keys = ("type", "client_email", "private_key")
    if found.get("type") != "service_account" or any(
        not _is_nonempty_text(found.get(k)) for k in keys
    ):
        raise _secret_error(
            plan,
            "is no service account",
            "a service account's JSON key, with type, client_email and private_key",
        )
    return text


def parse_azure_secret(plan: WeightsPlan, text: str) -> dict[str, str]:
    """Return `{"account_key": …}` or `{"sas_token": …}`, from JSON or from one bare value."""
    expected = "an account key, a SAS token, or JSON with one of account_key and sas_token"
    text = text.strip()
    if not text.startswith("{"):
        if not _is_single_token(text):
            raise _secret_error(plan, "is no key and no token", expected)
        # A key is base64; a SAS token is a query string with a signature.
        return {"sas_token": text.lstrip("?")} if "sig=" in text else {"account_key": text}
    found = _parse_json_object(plan, text)
    if found is None or len(found) != 1 or not set(found) <= set(AZURE_KEYS):
        raise _secret_error(plan, "needs the key account_key or sas_token", expected)
    [(name, value)] = found.items()
    if not _is_nonempty_text(value):
        raise _secret_error(plan, f"has no text as {name}", expected)
    return {name: value.strip().lstrip("?") if name == "sas_token" else value.strip()}


def parse_token(plan: WeightsPlan, text: str) -> str:
    """Return a token on one line that a header can contain; WeightsError."""
    token = text.strip()
    if not _is_single_token(token):
        raise _secret_error(plan, "is no token", "the token alone, on one line")
    return token


def _is_single_token(text: str) -> bool:
    """Return whether `text` is not empty, without spaces, and valid in a header."""
    return bool(text) and text.isascii() and all(" " < sign != "\x7f" for sign in text)


def _parse_json_object(plan: WeightsPlan, text: str) -> dict[str, Any] | None:
    try:
        found = json.loads(text)
    except ValueError:
        raise _secret_error(plan, "is no JSON", _FORMS[plan.source.partition("://")[0]]) from None
    return cast("dict[str, Any]", found) if isinstance(found, dict) else None


_FORMS: Final = {
    **dict.fromkeys(("s3", "r2", "cw"), f"JSON with the keys {' and '.join(S3_KEYS)}"),
    "gs": "the JSON key of a service account",
    "azure": f"JSON with one of the keys {' and '.join(AZURE_KEYS)}",
}


def _is_nonempty_text(value: object) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _secret_error(plan: WeightsPlan, problem: str, expected: str) -> WeightsError:
    return WeightsError(
        f"The secret {plan.secret!r} of {plan.source} {problem}.",
        source=plan.source,
        next_step=f"It must hold {expected}.",
    )
