"""Parse the text of a weights secret into the fields that a source needs. Pure.

An error names the expected keys, never a part of the secret. It does not name a wrong key either,
because that may be a value in the wrong place. For the same reason no error has a cause. Formats:
docs/compatibility.md, Weights sources and their authentication.
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
    """An access key of S3, R2 or CoreWeave; `session_token` is empty for a lasting one."""

    access_key_id: str = field(repr=False)
    secret_access_key: str = field(repr=False)
    region: str = DEFAULT_REGION
    session_token: str = field(default="", repr=False)


def parse_s3_secret(plan: WeightsPlan, text: str) -> S3Secret:
    """From JSON with the two required keys and no unknown one; WeightsError."""
    found = _parse_json_object(plan, text)
    required = " and ".join(S3_KEYS)
    says = f"JSON with {required}, and if you like {' and '.join(S3_OPTIONAL_KEYS)}"
    if found is None or any(not _is_nonempty_text(found.get(name)) for name in S3_KEYS):
        raise _secret_error(plan, f"needs the keys {required}", says)
    if set(found) - {*S3_KEYS, *S3_OPTIONAL_KEYS}:
        raise _secret_error(plan, "has a key that means nothing here", says)
    if any(not isinstance(found[name], str | None) for name in S3_OPTIONAL_KEYS if name in found):
        raise _secret_error(plan, "has a value that is no text", says)
    return S3Secret(
        found["aws_access_key_id"].strip(),
        found["aws_secret_access_key"].strip(),
        found.get("aws_region") or DEFAULT_REGION,
        found.get("aws_session_token") or "",
    )


def parse_google_secret(plan: WeightsPlan, text: str) -> str:
    """A service account's JSON text, as the console gives it; WeightsError."""
    found = _parse_json_object(plan, text) or {}
    keys = ("type", "client_email", "private_key")
    if found.get("type") != "service_account" or any(
        not _is_nonempty_text(found.get(k)) for k in keys
    ):
        raise _secret_error(
            plan,
            "is no service account",
            'the JSON key of a service account: "type": "service_account", client_email and '
            "private_key among its keys",
        )
    return text


def parse_azure_secret(plan: WeightsPlan, text: str) -> dict[str, str]:
    """`{"account_key": …}` or `{"sas_token": …}`: from JSON, or from the bare text of either."""
    says = "an account key, a SAS token, or JSON with one of account_key and sas_token"
    text = text.strip()
    if not text.startswith("{"):
        if not _is_single_token(text):
            raise _secret_error(plan, "is no key and no token", says)
        # A key is base64; a SAS token is a query string with a signature.
        return {"sas_token": text.lstrip("?")} if "sig=" in text else {"account_key": text}
    found = _parse_json_object(plan, text)
    if found is None or len(found) != 1 or not set(found) <= set(AZURE_KEYS):
        raise _secret_error(plan, "needs the key account_key or sas_token", says)
    [(name, value)] = found.items()
    if not _is_nonempty_text(value):
        raise _secret_error(plan, f"has no text as {name}", says)
    return {name: value.strip().lstrip("?") if name == "sas_token" else value.strip()}


def parse_token(plan: WeightsPlan, text: str) -> str:
    """A token on one line, fit for a header; WeightsError."""
    token = text.strip()
    if not _is_single_token(token):
        raise _secret_error(plan, "is no token", "the token alone, on one line")
    return token


def _is_single_token(text: str) -> bool:
    """Whether it is something without blanks, and fit for a header."""
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


def _secret_error(plan: WeightsPlan, secret: str, problem: str) -> WeightsError:
    return WeightsError(
        f"The secret {plan.secret!r} of {plan.source} {secret}.",
        source=plan.source,
        next_step=f"It is to hold {problem}.",
    )
