"""Use the password of the `prefect-bt up` server in a program's own flows and blocks.

A program or a notebook that calls a flow, or saves a block, talks to Prefect with the settings that
Prefect read when it was imported. With only PREFECT_API_URL set, the server that this user started
would refuse it.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any, cast

import prefect.context
from prefect.settings import PREFECT_API_AUTH_STRING, PREFECT_API_URL

from prefect_bt.local_server.password import find_auth
from prefect_bt.settings import Settings


def apply_local_server_auth() -> None:
    """Set the password in this process if the configured API is the server of `up`."""
    context = cast("Any", prefect.context)
    root: prefect.context.SettingsContext = context.GLOBAL_SETTINGS_CONTEXT
    url = str(PREFECT_API_URL.value_from(root.settings) or "")
    auth = ""
    with suppress(ValueError):  # PREFECT_BT_* variables are complained about where they matter
        auth = find_auth(Settings().state_dir, url)
    if auth and auth != PREFECT_API_AUTH_STRING.value_from(root.settings):
        settings = root.settings.copy_with_update(updates={PREFECT_API_AUTH_STRING: auth})
        context.GLOBAL_SETTINGS_CONTEXT = root.model_copy(update={"settings": settings})
