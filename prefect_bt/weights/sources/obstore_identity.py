"""Provide obstore with credentials from assumed roles and federated identities.

Each function gets the first credential at once, so that a refusal becomes one error message. It
returns a callable that obstore calls again when the credential expires.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from prefect_bt.credentials import cloud_identity
from prefect_bt.errors import IdentityError, WeightsError
from prefect_bt.planning.plan import WeightsPlan

CredentialProvider = Callable[[], dict[str, Any]]
REFRESH_MARGIN: Final = timedelta(minutes=5)


def assume_role(plan: WeightsPlan) -> CredentialProvider:
    """Credentials of the plan's role, asked for with those of this machine; WeightsError."""
    auth = plan.auth
    return _caching_provider(
        plan,
        lambda: _to_obstore_credentials(cloud_identity.assume_role(auth.role_arn, auth.region)),
    )


def use_web_identity(plan: WeightsPlan) -> CredentialProvider:
    """Credentials of the plan's role, for the token that the machine was given; WeightsError."""
    auth = plan.auth
    return _caching_provider(
        plan,
        lambda: _to_obstore_credentials(
            cloud_identity.assume_role_with_web_identity(auth.role_arn, auth.region)
        ),
    )


def exchange_google_token(plan: WeightsPlan) -> CredentialProvider:
    """Tokens of the plan's service account, for the identity token of this machine (RFC 8693)."""
    auth = plan.auth

    def ask() -> dict[str, Any]:
        found = cloud_identity.exchange_google_token(auth.service_account, auth.identity_provider)
        return {"token": found.token, "expires_at": found.expires_at}

    return _caching_provider(plan, ask)


def _to_obstore_credentials(found: cloud_identity.AwsKeys) -> dict[str, Any]:
    return {
        "access_key_id": found.access_key_id,
        "secret_access_key": found.secret_access_key,
        "token": found.session_token,
        "expires_at": found.expires_at,
    }


def _caching_provider(plan: WeightsPlan, request: CredentialProvider) -> CredentialProvider:
    """The first credential now, the next one when it is about to expire."""

    def asked() -> dict[str, Any]:
        try:
            return request()
        except IdentityError as error:
            what = (
                error.message[0].lower() + error.message[1:]
                if error.message[:2] in ("Th", "To")
                else ""
            )
            raise WeightsError(
                f"{plan.source}: {what or error.message}",
                source=plan.source,
                next_step=error.next_step,
            ) from None

    last = asked()

    def provide() -> dict[str, Any]:
        nonlocal last
        if last["expires_at"] - datetime.now(UTC) < REFRESH_MARGIN:
            last = asked()
        return last

    return provide
