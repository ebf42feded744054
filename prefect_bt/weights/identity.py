"""Roles and federated identities: who this machine is becomes who may read (§2.9).

Each function gets the first credential at once, so that a refusal is a sentence, and returns what
obstore asks again when it runs out. What a service says in its refusals is not shown, its code is.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, cast
from urllib.parse import urlencode

from pydantic_settings import BaseSettings

from prefect_bt.errors import WeightsError
from prefect_bt.plan import WeightsPlan
from prefect_bt.weights.source import CONNECT_SECONDS, STALL_SECONDS

_UNUSED: Final = {"aws_access_key_id": "unused", "aws_secret_access_key": "unused"}
"""The token speaks for itself; without a key, boto3 would look for one, and fail on the token."""
Provider = Callable[[], dict[str, Any]]
SESSION: Final = "prefect-bt"
EARLY: Final = timedelta(minutes=5)
GOOGLE_SCOPE: Final = "https://www.googleapis.com/auth/cloud-platform"
GOOGLE_TOKENS: Final = "https://sts.googleapis.com/v1/token"
GOOGLE_ACCOUNTS: Final = "https://iamcredentials.googleapis.com/v1/projects/-/serviceAccounts"


class Identity(BaseSettings):
    """Where the environment says that this machine's identity tokens lie."""

    aws_web_identity_token_file: str = ""
    google_application_credentials: str = ""


def assume_role(plan: WeightsPlan) -> Provider:
    """Credentials of the plan's role, asked for with those of this machine; WeightsError."""

    def ask() -> dict[str, Any]:
        return _sts(plan, "assume_role", RoleArn=plan.auth.role_arn, RoleSessionName=SESSION)

    return _kept(ask)


def use_web_identity(plan: WeightsPlan) -> Provider:
    """Credentials of the plan's role, for the token that the machine was given; WeightsError."""

    def ask() -> dict[str, Any]:
        token = _read_token_file(
            plan,
            Identity().aws_web_identity_token_file,
            missing="AWS_OIDC needs a web identity token, and AWS_WEB_IDENTITY_TOKEN_FILE names "
            "none here",
        )
        return _sts(
            plan,
            "assume_role_with_web_identity",
            keys=_UNUSED,
            RoleArn=plan.auth.role_arn,
            RoleSessionName=SESSION,
            WebIdentityToken=token,
        )

    return _kept(ask)


def exchange_google_token(plan: WeightsPlan) -> Provider:
    """Tokens of the plan's service account, for the identity token of this machine (RFC 8693)."""

    def ask() -> dict[str, Any]:
        known = _google_identity(plan)
        subject = _read_token_file(plan, known["file"], missing=_NO_GOOGLE)
        form = {
            "grant_type": "urn:ietf:params:oauth:grant-type:token-exchange",
            "audience": f"//iam.googleapis.com/{plan.auth.identity_provider}",
            "scope": GOOGLE_SCOPE,
            "requested_token_type": "urn:ietf:params:oauth:token-type:access_token",
            "subject_token_type": "urn:ietf:params:oauth:token-type:jwt",
            "subject_token": subject,
        }
        federated = _post(plan, known["tokens"], urlencode(form).encode(), {})
        header = {
            "Authorization": f"Bearer {federated.get('access_token', '')}",
            "Content-Type": "application/json",
        }
        body = json.dumps({"scope": [GOOGLE_SCOPE]}).encode()
        found = _post(plan, known["account"], body, header)
        return {"token": str(found.get("accessToken", "")), "expires_at": _when(found)}

    return _kept(ask)


_NO_GOOGLE: Final = (
    "GCP_OIDC needs a workload identity, and GOOGLE_APPLICATION_CREDENTIALS names no file of type "
    "external_account with a token file here"
)


def _google_identity(plan: WeightsPlan) -> dict[str, str]:
    path = Identity().google_application_credentials
    try:
        found = cast("dict[str, Any]", json.loads(Path(path).read_text())) if path else {}
        if found.get("type") != "external_account":
            raise _no_identity(plan, _NO_GOOGLE)
        account = f"{GOOGLE_ACCOUNTS}/{plan.auth.service_account}:generateAccessToken"
        named = str(found.get("service_account_impersonation_url") or "")
        return {
            "file": str(found["credential_source"]["file"]),
            "tokens": str(found.get("token_url") or GOOGLE_TOKENS),
            "account": named if plan.auth.service_account in named else account,
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise _no_identity(plan, _NO_GOOGLE) from None


def _read_token_file(plan: WeightsPlan, path: str, *, missing: str) -> str:
    try:
        token = Path(path).read_text().strip() if path else ""
    except (OSError, UnicodeDecodeError):
        token = ""
    if not token:
        raise _no_identity(plan, missing)
    return token


def _no_identity(plan: WeightsPlan, what: str) -> WeightsError:
    return WeightsError(
        f"{plan.source}: {what}.",
        source=plan.source,
        next_step="Run the flow where such an identity is given, or use CUSTOM_SECRET.",
    )


def _sts(
    plan: WeightsPlan, verb: str, *, keys: Mapping[str, str] = MappingProxyType({}), **given: str
) -> dict[str, Any]:
    session: Any = import_module("boto3.session").Session()
    config: Any = import_module("botocore.config").Config(
        connect_timeout=CONNECT_SECONDS, read_timeout=STALL_SECONDS, retries={"mode": "standard"}
    )
    faults: Any = import_module("botocore.exceptions")
    try:
        client = session.client("sts", region_name=plan.auth.region, config=config, **keys)
        found = getattr(client, verb)(**given)["Credentials"]
    except faults.NoCredentialsError:
        raise WeightsError(
            f"{plan.source}: to assume {plan.auth.role_arn}, this machine needs credentials of its "
            "own, and none were found.",
            source=plan.source,
            next_step="Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE.",
        ) from None
    except (faults.ClientError, faults.BotoCoreError, ValueError) as error:
        answer: dict[str, Any] = getattr(error, "response", {})
        code = answer.get("Error", {}).get("Code") or type(error).__name__
        raise WeightsError(
            f"{plan.source}: the role {plan.auth.role_arn} could not be assumed ({code}).",
            source=plan.source,
            next_step="Check the role's name, its trust policy and the region.",
        ) from None
    return {
        "access_key_id": found["AccessKeyId"],
        "secret_access_key": found["SecretAccessKey"],
        "token": found["SessionToken"],
        "expires_at": found["Expiration"].astimezone(UTC),  # obstore takes no other
    }


def _post(plan: WeightsPlan, url: str, body: bytes, headers: dict[str, str]) -> dict[str, Any]:
    request = urllib.request.Request(url, body, headers, method="POST")
    try:
        with urllib.request.urlopen(request, timeout=STALL_SECONDS) as answer:
            return cast("dict[str, Any]", json.load(answer))
    except (OSError, ValueError) as error:
        code = error.code if isinstance(error, urllib.error.HTTPError) else type(error).__name__
        raise WeightsError(
            f"{plan.source}: Google gave no token of {plan.auth.service_account} ({code}).",
            source=plan.source,
            next_step="Check gcp_oidc_workload_id_provider, and that the identity may impersonate "
            "the service account.",
        ) from None


def _when(answer: dict[str, Any]) -> datetime:
    """When Google's token expires; in an hour, which is its usual life, if it does not say."""
    try:
        return datetime.fromisoformat(str(answer.get("expireTime"))).astimezone(UTC)
    except ValueError:
        return datetime.now(UTC) + timedelta(hours=1)


def _kept(ask: Provider) -> Provider:
    """The first credential now, the next one when it is about to expire."""
    last = ask()

    def provide() -> dict[str, Any]:
        nonlocal last
        if last["expires_at"] - datetime.now(UTC) < EARLY:
            last = ask()
        return last

    return provide
