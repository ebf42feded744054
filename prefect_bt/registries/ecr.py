"""Logins of Amazon's registry (ECR): a password for twelve hours, for whom AWS knows.

An access key says nothing of a region, so that it is read from the registry's host.
"""

from __future__ import annotations

import base64
import re
from importlib import import_module
from typing import Any, Final

from prefect_bt.credentials.cloud_identity import (
    assume_role,
    assume_role_with_web_identity,
    aws_error_code,
    make_aws_config,
)
from prefect_bt.errors import IdentityError

_HOST: Final = re.compile(
    r"(?:\d{12}|vpce-[a-z0-9-]+)\.dkr[.-]ecr(?:-fips)?\.(?P<region>[a-z0-9-]+)\."
    r"(?:(?:vpce\.)?amazonaws\.com(?:\.cn)?|on\.aws)"
)
HOST_FORMAT: Final = "<account>.dkr.ecr.<region>.amazonaws.com"


def log_in_with_keys(
    host: str, key_id: str, secret: str, *, session_token: str = "", identity: str
) -> tuple[str, str]:
    """User and password of `host`; IdentityError."""
    region = _parse_region(host)
    return _request_password(
        region,
        identity,
        aws_access_key_id=key_id,
        aws_secret_access_key=secret,
        aws_session_token=session_token or None,
    )


def log_in_with_role(
    host: str, role_arn: str, region: str, *, web_identity: bool
) -> tuple[str, str]:
    """User and password of `host` for a role, taken on first; IdentityError."""
    there = _parse_region(host)
    if there != region:
        raise IdentityError(
            f"The registry {host} is in {there}, and docker_auth says {region}.",
            next_step="Correct the region: a password is good in its own region alone.",
        )
    keys = (assume_role_with_web_identity if web_identity else assume_role)(role_arn, region)
    return _request_password(
        region,
        f"the role {role_arn}",
        aws_access_key_id=keys.access_key_id,
        aws_secret_access_key=keys.secret_access_key,
        aws_session_token=keys.session_token,
    )


def _parse_region(host: str) -> str:
    found = _HOST.fullmatch(host)
    if found is None:
        raise IdentityError(
            f"{host} is no registry of Amazon, and takes no password of theirs.",
            next_step=f"Theirs read {HOST_FORMAT}; another registry takes REGISTRY_SECRET.",
        )
    return found["region"]


def _request_password(region: str, identity: str, **keys: str | None) -> tuple[str, str]:
    session: Any = import_module("boto3.session").Session()
    faults: Any = import_module("botocore.exceptions")
    try:
        client = session.client("ecr", region_name=region, config=make_aws_config(), **keys)
        told = client.get_authorization_token()["authorizationData"][0]["authorizationToken"]
        user, _, password = base64.b64decode(told).decode().partition(":")
    except (faults.ClientError, faults.BotoCoreError, ValueError, LookupError) as error:
        raise IdentityError(
            f"Amazon's registry in {region} gave no password to {identity} "
            f"({aws_error_code(error)}).",
            next_step="Check the key or role, and that it may ecr:GetAuthorizationToken, "
            "ecr:BatchGetImage and ecr:GetDownloadUrlForLayer.",
            refused=isinstance(error, faults.ClientError),
        ) from None
    return user, password
