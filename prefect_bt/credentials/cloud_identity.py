"""Exchange the identity of this machine for cloud credentials: assumed roles, federated identities.

Error messages contain the error code of the service, not its text, because the text may repeat the
request.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from importlib import import_module
from pathlib import Path
from typing import Any, Final, cast
from urllib.parse import urlencode

from pydantic_settings import BaseSettings

from prefect_bt.errors import IdentityError
from prefect_bt.object_store.faults import CLOCK_STEP, FaultKind, classify_fault

CONNECT_TIMEOUT: Final = 10.0
READ_TIMEOUT: Final = 30.0
ROLE_SESSION_NAME: Final = "prefect-bt"
GOOGLE_SCOPE: Final = "https://www.googleapis.com/auth/cloud-platform"
GOOGLE_TOKEN_URL: Final = "https://sts.googleapis.com/v1/token"
GOOGLE_ACCOUNTS_URL: Final = "https://iamcredentials.googleapis.com/v1/projects/-/serviceAccounts"
_PLACEHOLDER_KEYS: Final = {"aws_access_key_id": "unused", "aws_secret_access_key": "unused"}
"""The request is authorized by the token; without keys boto3 would search for credentials first."""
_NO_AWS_TOKEN: Final = (
    "AWS_OIDC needs a web identity token, and AWS_WEB_IDENTITY_TOKEN_FILE does not name one here"
)
_NO_GOOGLE_IDENTITY: Final = (
    "GCP_OIDC needs a workload identity, and GOOGLE_APPLICATION_CREDENTIALS names no file of type "
    "external_account with a token file here"
)
_NEXT_STEP: Final = "Run the flow on a machine with such an identity, or use a secret."


class IdentitySettings(BaseSettings):
    """Variables of the environment that name this machine's identity."""

    aws_web_identity_token_file: str = ""
    google_application_credentials: str = ""
    prefect_bt_aws_external_id: str = ""
    """External id for roles whose trust policy requires one."""


@dataclass(frozen=True)
class AwsKeys:
    """Temporary keys of a role; `expires_at` has a time zone."""

    access_key_id: str = field(repr=False)
    secret_access_key: str = field(repr=False)
    token: str = field(repr=False)
    expires_at: datetime


@dataclass(frozen=True)
class GoogleToken:
    """An access token of a service account; `expires_at` has a time zone."""

    token: str = field(repr=False)
    expires_at: datetime


def assume_role(role_arn: str, region: str, *, policy: str = "") -> AwsKeys:
    """Return keys of the role, requested with this machine's credentials. IdentityError.

    `policy`: JSON of a session policy, which the keys cannot exceed.
    """
    external = IdentitySettings().prefect_bt_aws_external_id
    fields = {"ExternalId": external} if external else {}
    fields |= {"Policy": policy} if policy else {}
    return _request_keys("assume_role", role_arn, region, fields)


def assume_role_with_web_identity(role_arn: str, region: str) -> AwsKeys:
    """Return keys of the role for the token in AWS_WEB_IDENTITY_TOKEN_FILE. IdentityError."""
    token = _read_token_file(IdentitySettings().aws_web_identity_token_file, missing=_NO_AWS_TOKEN)
    verb, fields = "assume_role_with_web_identity", {"WebIdentityToken": token}
    return _request_keys(verb, role_arn, region, fields, **_PLACEHOLDER_KEYS)


def exchange_google_token(service_account: str, provider: str) -> GoogleToken:
    """Exchange this machine's identity token (RFC 8693) for one of the account. IdentityError."""
    identity = _read_google_identity(service_account)
    form = {
        "grant_type": "urn:ietf:params:oauth:grant-type:token-exchange",
        "audience": f"//iam.googleapis.com/{provider}",
        "scope": GOOGLE_SCOPE,
        "requested_token_type": "urn:ietf:params:oauth:token-type:access_token",
        "subject_token_type": "urn:ietf:params:oauth:token-type:jwt",
        "subject_token": _read_token_file(identity["file"], missing=_NO_GOOGLE_IDENTITY),
    }
    federated = _post(service_account, identity["tokens"], urlencode(form).encode(), {})
    header = {
        "Authorization": f"Bearer {federated.get('access_token', '')}",
        "Content-Type": "application/json",
    }
    body = json.dumps({"scope": [GOOGLE_SCOPE]}).encode()
    found = _post(service_account, identity["account"], body, header)
    token = found.get("accessToken")
    if not isinstance(token, str) or not token:
        raise _google_token_error(service_account, "an answer without one", refused=False)
    return GoogleToken(token, _parse_expiry(found))


def _read_google_identity(service_account: str) -> dict[str, str]:
    path = IdentitySettings().google_application_credentials
    try:
        found = cast("dict[str, Any]", json.loads(Path(path).read_text())) if path else {}
        if found.get("type") != "external_account":
            raise IdentityError(f"{_NO_GOOGLE_IDENTITY}.", next_step=_NEXT_STEP)
        account = f"{GOOGLE_ACCOUNTS_URL}/{service_account}:generateAccessToken"
        named = str(found.get("service_account_impersonation_url") or "")
        return {
            "file": str(found["credential_source"]["file"]),
            "tokens": str(found.get("token_url") or GOOGLE_TOKEN_URL),
            "account": named if service_account in named else account,
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise IdentityError(f"{_NO_GOOGLE_IDENTITY}.", next_step=_NEXT_STEP) from None


def _read_token_file(path: str, *, missing: str) -> str:
    try:
        token = Path(path).read_text().strip() if path else ""
    except (OSError, UnicodeDecodeError):
        token = ""
    if not token:
        raise IdentityError(f"{missing}.", next_step=_NEXT_STEP)
    return token


def _request_keys(
    verb: str, role: str, region: str, fields: Mapping[str, str], **keys: str
) -> AwsKeys:
    """Call STS with `keys`, by default with the credentials that boto3 finds. IdentityError."""
    session: Any = import_module("boto3.session").Session()
    errors: Any = import_module("botocore.exceptions")
    try:
        client = session.client("sts", region_name=region, config=make_aws_config(), **keys)
        request = getattr(client, verb)
        found = request(RoleArn=role, RoleSessionName=ROLE_SESSION_NAME, **fields)["Credentials"]
    except errors.NoCredentialsError:
        raise IdentityError(
            f"To assume {role}, this machine needs credentials of its own, and none were found.",
            next_step="Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE.",
        ) from None
    except (errors.ClientError, errors.BotoCoreError, ValueError) as error:
        kind, reason = classify_fault(error)
        if kind is FaultKind.CLOCK:
            text = f"The role {role} could not be assumed: {reason}."
            raise IdentityError(text, next_step=CLOCK_STEP) from None
        raise IdentityError(
            f"The role {role} could not be assumed ({aws_error_code(error)}).",
            next_step="Check the role's name, its trust policy (PREFECT_BT_AWS_EXTERNAL_ID if it "
            "asks for an external id) and the region.",
            refused=isinstance(error, errors.ClientError),
        ) from None
    expires = found["Expiration"].astimezone(UTC)
    return AwsKeys(found["AccessKeyId"], found["SecretAccessKey"], found["SessionToken"], expires)


def make_aws_config() -> Any:
    """Return the timeouts and retries of requests to AWS."""
    return import_module("botocore.config").Config(
        connect_timeout=CONNECT_TIMEOUT, read_timeout=READ_TIMEOUT, retries={"mode": "standard"}
    )


def aws_error_code(error: Exception) -> str:
    """Return the code of the answer, such as `AccessDenied`, or else the error's class."""
    answer: dict[str, Any] = getattr(error, "response", {})
    return str(answer.get("Error", {}).get("Code") or type(error).__name__)


def _post(account: str, url: str, body: bytes, headers: dict[str, str]) -> dict[str, Any]:
    request = urllib.request.Request(url, body, headers, method="POST")  # noqa: S310
    try:
        with urllib.request.urlopen(request, timeout=READ_TIMEOUT) as answer:  # noqa: S310
            found = json.load(answer)
    except urllib.error.HTTPError as error:
        error.close()
        raise _google_token_error(account, str(error.code), refused=error.code < 500) from None
    except (OSError, ValueError) as error:
        raise _google_token_error(account, type(error).__name__, refused=False) from None
    return cast("dict[str, Any]", found) if isinstance(found, dict) else {}


def _google_token_error(account: str, why: str, *, refused: bool) -> IdentityError:
    return IdentityError(
        f"Google did not issue a token for {account} ({why}).",
        next_step="Check the workload identity provider, and that the identity may impersonate "
        "the service account.",
        refused=refused,
    )


def _parse_expiry(answer: dict[str, Any]) -> datetime:
    """Return when the token expires; if the answer does not say, in an hour, as usual."""
    try:
        return datetime.fromisoformat(str(answer.get("expireTime"))).astimezone(UTC)
    except ValueError:
        return datetime.now(UTC) + timedelta(hours=1)
