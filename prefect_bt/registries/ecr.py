"""Request passwords of Amazon's registry (ECR), which are valid for twelve hours."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
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


def request_key_password(host: str, identity: str, keys: Mapping[str, str]) -> tuple[str, str]:
    """Return user and password of `host` for boto3's `keys`; IdentityError."""
    region = _parse_region(host)
    session: Any = import_module("boto3.session").Session()
    errors: Any = import_module("botocore.exceptions")
    try:
        given = {name: value or None for name, value in keys.items()}
        client = session.client("ecr", region_name=region, config=make_aws_config(), **given)
        token = client.get_authorization_token()["authorizationData"][0]["authorizationToken"]
        user, _, password = base64.b64decode(token).decode().partition(":")
    except (errors.ClientError, errors.BotoCoreError, ValueError, LookupError) as error:
        raise IdentityError(
            f"Amazon's registry in {region} gave no password to {identity} "
            f"({aws_error_code(error)}).",
            next_step="Check the key or role, and that it may ecr:GetAuthorizationToken, "
            "ecr:BatchGetImage and ecr:GetDownloadUrlForLayer.",
            refused=isinstance(error, errors.ClientError),
        ) from None
    return user, password


def request_role_password(
    host: str, role_arn: str, region: str, web_identity: bool
) -> tuple[str, str]:
    """Assume a role and return user and password of `host`; IdentityError."""
    actual = _parse_region(host)
    if actual != region:
        raise IdentityError(
            f"The registry {host} is in {actual}, and docker_auth says {region}.",
            next_step="Correct the region: a password is valid only in its own.",
        )
    role = (assume_role_with_web_identity if web_identity else assume_role)(role_arn, region)
    keys = {
        "aws_access_key_id": role.access_key_id,
        "aws_secret_access_key": role.secret_access_key,
        "aws_session_token": role.session_token,
    }
    return request_key_password(host, f"the role {role_arn}", keys)


def _parse_region(host: str) -> str:
    found = _HOST.fullmatch(host)
    if found is None:
        raise IdentityError(
            f"{host} is no registry of Amazon.",
            next_step="Their hosts have the form <account>.dkr.ecr.<region>.amazonaws.com. Use "
            "REGISTRY_SECRET for other registries.",
        )
    return found["region"]
