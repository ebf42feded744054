"""Variables of this machine that give a process on another machine access to the store."""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from prefect_bt.errors import StoreError

_FORWARDED: Final = re.compile(
    r"AWS_(?:ACCESS_KEY_ID|SECRET_ACCESS_KEY|SESSION_TOKEN|REGION|DEFAULT_REGION"
    r"|ENDPOINT_URL(?:_\w+)?|REQUEST_CHECKSUM_CALCULATION)"
    r"|GOOGLE_(?:SERVICE_ACCOUNT_KEY|BUCKET\w*)|AZURE_STORAGE_\w+|HF_(?:TOKEN|ENDPOINT)"
    r"|PREFECT_BT_(?:R2_ENDPOINT|CW_ENDPOINT|MIRROR_TO_STORE|STALL_SECONDS)"
    r"|(?i:https?_proxy|no_proxy)"
)
_S3_LIKE: Final = ("s3://", "r2://", "cw://")


def forwarded_variables(store: str, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables, with the contents of credential files of this machine. StoreError.

    For a profile, a role or SSO, the current keys are copied; they can expire before a long job
    ends.
    """
    found = {name: value for name, value in environment.items() if _FORWARDED.fullmatch(name)}
    if store.startswith(_S3_LIKE):
        known = _session_variables(store)
        if "AWS_ACCESS_KEY_ID" in found:
            # Do not mix keys and a session token of two sources.
            known = {name: value for name, value in known.items() if name == "AWS_REGION"}
        found = known | found
    key_file = environment.get("GOOGLE_APPLICATION_CREDENTIALS", "")
    if store.startswith("gs://") and key_file:
        try:
            found.setdefault("GOOGLE_SERVICE_ACCOUNT_KEY", Path(key_file).read_text())
        except OSError as error:
            raise _credentials_error(store, error) from error
    return found


def _session_variables(store: str) -> dict[str, str]:
    """Return the keys and the region that boto3 finds, also in profiles and roles. StoreError."""
    errors: Any = import_module("botocore.exceptions")
    try:
        session: Any = import_module("boto3.session").Session()
        credentials = session.get_credentials()
        keys = credentials.get_frozen_credentials() if credentials else None
    except errors.BotoCoreError as error:
        raise _credentials_error(store, error) from error
    found = {"AWS_REGION": session.region_name}
    if keys is not None:
        found |= {"AWS_ACCESS_KEY_ID": keys.access_key, "AWS_SECRET_ACCESS_KEY": keys.secret_key}
        found |= {"AWS_SESSION_TOKEN": keys.token}
    return {name: value for name, value in found.items() if value}


def _credentials_error(store: str, error: Exception) -> StoreError:
    return StoreError(
        f"This machine's credentials for {store} cannot be read: {error}",
        url=store,
        next_step="Correct them, or let the pods use their service account (forward_credentials).",
    )
