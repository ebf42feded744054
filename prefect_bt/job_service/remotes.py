"""The server that a command works with: a remote of ~/.trussrc, or that of the settings.

A key is sent to our servers only: to the address in `prefect_bt_url`, to http://localhost:8000, or
to PREFECT_BT_API_URL.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from prefect_bt.errors import UsageError
from prefect_bt.job_service.trussrc import KEY_PREFIX, TRUSS_URL, find_trussrc, read_remotes
from prefect_bt.settings import Settings


@dataclass(frozen=True)
class Server:
    """A server of the HTTP API. `origin`: the setting that names it, for messages."""

    origin: str
    url: str
    key: str = field(repr=False)


def find_server(remote: str | None) -> Server | None:
    """Return the server of the remote, else that of the settings; None for neither. UsageError."""
    settings, path = Settings(), find_trussrc()
    section = read_remotes(path).get(remote) if remote else None
    if section is not None:
        url = section.get("prefect_bt_url") or section.get("remote_url", "")
        if not section.get("prefect_bt_url") and url.rstrip("/") != TRUSS_URL:
            where = f"The remote {remote!r} of {path}"
            raise UsageError(
                f"{where} is not a server of prefect-bt: {url or 'it has no URL'}.",
                next_step="Leave out --remote for the local store, or create a remote: "
                "prefect-bt api-key create NAME --trussrc REMOTE.",
            )
        return _check(Server(f"remote {remote!r}", url.rstrip("/"), section.get("api_key", "")))
    if settings.api_url:
        return _check(
            Server(
                "PREFECT_BT_API_URL",
                settings.api_url.rstrip("/"),
                settings.api_key.get_secret_value(),
            )
        )
    return None


def _check(server: Server) -> Server:
    if not server.url.startswith(("http://", "https://")):
        raise UsageError(f"The URL of {server.origin} does not begin with http:// or https://.")
    if not server.key.startswith(KEY_PREFIX):
        step = "Create one on the server: prefect-bt api-key create NAME."
        if server.origin == "PREFECT_BT_API_URL":
            step = f"Set PREFECT_BT_API_KEY. {step}"
        raise UsageError(f"{server.origin} has no key of prefect-bt.", next_step=step)
    return server
