"""Servers of the HTTP API that commands work with: remotes of ~/.trussrc, or that of the settings.

A key is sent to our servers only. truss sends that of a remote to the hosted service unless
`remote_url` is exactly http://localhost:8000, so no other URL is ever written to its file. The
address of a server on another machine is in `prefect_bt_url`, which truss ignores.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping
from configparser import ConfigParser, Error
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from prefect_bt.errors import UsageError
from prefect_bt.settings import Settings, process_environment

TRUSS_URL: Final = "http://localhost:8000"
"""The only URL of a remote for which truss uses another server than the hosted one."""
KEY_PREFIX: Final = "prefect-bt-"
_KEY_CHARACTERS: Final = re.compile(r"[!#-&(-_a-~]*")
"""Those of a header, without quotes."""
_COMMANDS: Final = re.compile(
    r"\bprefect-bt (?:push|view|queue|logs|metrics|stop|retry|recreate"
    r"|checkpoints (?:list|download))\b"
)
"""Commands that take --remote."""
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


@dataclass(frozen=True)
class Server:
    """A server of the HTTP API. `origin`: the setting that names it, for messages.

    `remote`: its name in the file; "" for the server of the settings.
    """

    origin: str
    url: str
    key: str = field(repr=False)
    remote: str = ""

    @property
    def option(self) -> str:
        """` --remote NAME` for commands in messages; "" if they need none."""
        return f" --remote {shlex.quote(self.remote)}" if self.remote else ""

    def add_option(self, text: str) -> str:
        """Return a text of the server with the option in the commands that it names."""
        return _COMMANDS.sub(lambda command: f"{command[0]}{self.option}", text)


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
        return _check(
            Server(f"remote {remote!r}", url, section.get("api_key", "").strip(), remote or "")
        )
    if settings.api_url:
        key = settings.api_key.get_secret_value().strip()
        return _check(Server("PREFECT_BT_API_URL", settings.api_url, key))
    return None


def _check(server: Server) -> Server:
    """Return the server with a URL in its usual form. UsageError."""
    server = replace(server, url=_normalize_url(server))
    if not _KEY_CHARACTERS.fullmatch(server.key):
        setting = f"api_key of {server.origin}" if server.remote else "key PREFECT_BT_API_KEY"
        raise UsageError(
            f"The {setting} has a quote, a space or another character that is in no key.",
            next_step="Write it as `prefect-bt api-key create` printed it.",
        )
    if not server.key.startswith(KEY_PREFIX):
        step = "Create one on the server: prefect-bt api-key create NAME."
        if server.origin == "PREFECT_BT_API_URL":
            step = f"Set PREFECT_BT_API_KEY. {step}"
        raise UsageError(f"{server.origin} has no key of prefect-bt.", next_step=step)
    return server


def _normalize_url(server: Server) -> str:
    url = server.url.strip()
    with suppress(ValueError):  # of the host or the port
        parts = urlsplit(url)
        is_plain = url.isprintable() and " " not in url and parts.path.isascii()
        has_host = parts.scheme in {"http", "https"} and (parts.hostname or "").encode("idna")
        has_more = "@" in parts.netloc or parts.query or parts.fragment
        if is_plain and has_host and parts.port != 0 and not has_more:
            return f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}"
    raise UsageError(
        f"The URL of {server.origin} is not that of a server.",
        next_step="Write http:// or https://, the host, and if needed a port and a path.",
    )


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
    """Add a remote for our server, or give one of ours the key; the rest of the file stays."""
    path = path.resolve()  # a link to a file of the user's dotfiles stays
    text = path.read_bytes().decode() if path.exists() else ""
    if name in read_remotes(path):
        text = _replace_key(text, name, key)
    else:
        separator = "\n" if text.strip() and not text.endswith("\n\n") else ""
        remote = f"remote_provider = baseten\nremote_url = {TRUSS_URL}\napi_key = {key}\n"
        text = f"{text}{separator}[{name}]\n{remote}"
    staged = path.with_name(f"{path.name}.{os.getpid()}")
    descriptor = os.open(staged, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as stream:
        stream.write(text.encode())
    staged.replace(path)


def _replace_key(text: str, name: str, key: str) -> str:
    """Return the file with another key in a section, whatever the form of its lines."""
    head = re.search(rf"(?m)^[ \t]*\[{re.escape(name)}\][^\r\n]*", text)
    if head is None:
        raise UsageError(f"The section {name!r} is not found.", next_step=f"Write it as [{name}].")
    following = re.compile(r"(?m)^[ \t]*\[").search(text, head.end())
    end = following.start() if following else len(text)
    section = text[head.end() : end]
    value = r"[^\r\n]*(?:\r?\n\1[ \t]+\S[^\r\n]*)*"  # lines with a deeper indent continue it
    option = re.compile(rf"(?mi)^([ \t]*)(api_key[ \t]*[=:][ \t]*){value}")
    if option.search(section):
        section = option.sub(lambda found: f"{found[1]}{found[2]}{key}", section)
    else:
        newline = "\r\n" if "\r\n" in text else "\n"
        section = f"{newline}api_key = {key}{section}"
    return f"{text[: head.end()]}{section}{text[end:]}"
