"""Servers of the HTTP API that commands work with: remotes of ~/.trussrc, or that of the settings.

A key is sent to our servers only. truss sends that of a remote to the hosted service unless
`remote_url` is exactly http://localhost:8000, so no other URL is ever written to its file. The
address of a server on another machine is in `prefect_bt_url`, which truss ignores.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from configparser import ConfigParser, Error
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from prefect_bt.errors import UsageError
from prefect_bt.settings import Settings, process_environment

TRUSS_URL: Final = "http://localhost:8000"
"""The only URL of a remote for which truss uses another server than the hosted one."""
KEY_PREFIX: Final = "prefect-bt-"
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


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


# -- the file -----------------------------------------------------------------------------------


def find_trussrc() -> Path:
    """Return the path of the file, as truss finds it."""
    return Path(process_environment().get("USER_TRUSSRC_PATH") or "~/.trussrc").expanduser()


def read_remotes(path: Path) -> Mapping[str, Mapping[str, str]]:
    """Return the remotes by name; none if there is no file. UsageError for a damaged one."""
    config = ConfigParser(interpolation=None)
    try:
        config.read(path, encoding="utf-8")
    except (Error, OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read: {error}") from None
    return {name: dict(config[name]) for name in config.sections()}


def check_remote(path: Path, name: str) -> None:
    """Raise UsageError if the file has a remote of another service of that name."""
    if not _NAME.fullmatch(name) or name == "DEFAULT":
        raise UsageError(f"{name!r} is not a name of a remote.", next_step="Use letters, digits.")
    known = read_remotes(path).get(name)
    if known is not None and known.get("remote_url", "").strip("/") != TRUSS_URL:
        raise UsageError(
            f"{path} has a remote {name!r} of another service.", next_step="Choose another name."
        )


def write_remote(path: Path, name: str, key: str) -> None:
    """Add a remote for our server, or replace one of ours; the rest of the file stays as it is."""
    path = path.resolve()  # a link to a file of the user's dotfiles stays
    lines = [f"[{name}]", "remote_provider = baseten", f"remote_url = {TRUSS_URL}"]
    lines.append(f"api_key = {key}")
    text = path.read_text("utf-8") if path.exists() else ""
    if name in read_remotes(path):
        text = re.sub(rf"(?ms)^\[{re.escape(name)}\]\n.*?(?=^\[|\Z)", "", text)
    separator = "\n" if text.strip() and not text.endswith("\n\n") else ""
    staged = path.with_name(f"{path.name}.{os.getpid()}")
    descriptor = os.open(staged, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
        stream.write(f"{text}{separator}{chr(10).join(lines)}\n")
    staged.replace(path)
