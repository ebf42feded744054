"""Which of this machine's variables give a process on another machine access to the store."""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, Final

_FORWARDED: Final = re.compile(
    r"AWS_(?:ACCESS_KEY_ID|SECRET_ACCESS_KEY|SESSION_TOKEN|REGION|DEFAULT_REGION"
    r"|ENDPOINT_URL(?:_\w+)?|REQUEST_CHECKSUM_CALCULATION)"
    r"|GOOGLE_(?:SERVICE_ACCOUNT_KEY|BUCKET\w*)|AZURE_STORAGE_\w+|HF_(?:TOKEN|ENDPOINT)"
    r"|PREFECT_BT_(?:R2_ENDPOINT|CW_ENDPOINT|MIRROR_TO_STORE|STALL_SECONDS)"
    r"|(?i:https?_proxy|no_proxy)"
)
_S3_LIKE: Final = ("s3://", "r2://", "cw://")


def forwarded_variables(store: str, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables, with credentials that are in files here read from them.

    Of a profile, a role or SSO the present keys are taken, which may end before a long job does.
    """
    found = {name: value for name, value in environment.items() if _FORWARDED.fullmatch(name)}
    if store.startswith(_S3_LIKE) and "AWS_ACCESS_KEY_ID" not in found:
        found |= _session_keys()
    key_file = environment.get("GOOGLE_APPLICATION_CREDENTIALS", "")
    if store.startswith("gs://") and key_file:
        found.setdefault("GOOGLE_SERVICE_ACCOUNT_KEY", Path(key_file).read_text())
    return found


def _session_keys() -> dict[str, str]:
    """Return what boto3 finds in profiles and roles; nothing when it finds nothing."""
    session: Any = import_module("boto3.session").Session()
    credentials = session.get_credentials()
    if credentials is None:
        return {}
    keys = credentials.get_frozen_credentials()
    found = {"AWS_ACCESS_KEY_ID": keys.access_key, "AWS_SECRET_ACCESS_KEY": keys.secret_key}
    optional = {"AWS_SESSION_TOKEN": keys.token, "AWS_REGION": session.region_name}
    return found | {name: value for name, value in optional.items() if value}
