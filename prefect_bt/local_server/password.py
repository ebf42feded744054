"""The password of the server that `prefect-bt up` starts: one file that only its owner can read.

<state dir>/server-auth    what Prefect calls the auth string, `user:password`, in one line

The server is started with the string of this file. Our processes read the file again each time, and
send the string to no other address than the server's own, and only while that server lives.
"""

from __future__ import annotations

import os
import secrets
import stat
from base64 import b64encode
from collections.abc import Mapping
from contextlib import suppress
from http import HTTPStatus
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import httpx

from prefect_bt.errors import ServerError
from prefect_bt.local_server.discovery import get_process, read_server

CLIENT_VARIABLE: Final = "PREFECT_API_AUTH_STRING"
SERVER_VARIABLE: Final = "PREFECT_SERVER_API_AUTH_STRING"
_USER: Final = "prefect-bt"
_RANDOM_BYTES: Final = 32
_GROUP_AND_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO
_REQUEST_TIMEOUT: Final = 30.0
_LOOPBACK_HOSTS: Final = frozenset({"127.0.0.1", "localhost"})


def auth_file(state_dir: Path) -> Path:
    return state_dir / "server-auth"


def read_auth(state_dir: Path) -> str:
    """Return the string; "" if the file is missing, damaged, foreign, or readable by others."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        descriptor = os.open(auth_file(state_dir), flags)
    except OSError:
        return ""
    with os.fdopen(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        private = found.st_uid == os.geteuid() and not found.st_mode & _GROUP_AND_OTHERS
        if not (private and stat.S_ISREG(found.st_mode)):
            return ""
        text = file.read(4096).decode(errors="replace").removesuffix("\n")
    return text if _is_usable(text) else ""


def write_auth(state_dir: Path, string: str) -> None:
    """Replace the file in one step; no other user can read it at any time."""
    staged = auth_file(state_dir).with_suffix(f".{secrets.token_hex(8)}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        with os.fdopen(os.open(staged, flags, 0o600), "w") as file:
            os.fchmod(file.fileno(), 0o600)
            file.write(f"{string}\n")
        staged.replace(auth_file(state_dir))
    finally:
        staged.unlink(missing_ok=True)


def ensure_auth(
    state_dir: Path, api_url: str, variables: Mapping[str, str], *, configured: str
) -> str:
    """Return the string for the server that is about to start at `api_url`, and write the file.

    `configured` is the user's, of Prefect's settings (PREFECT_SERVER_API_AUTH_STRING), and wins.
    Then the file, then what `variables` say about this very server, then a new one. Raises
    ServerError.
    """
    if configured and not _is_usable(configured):
        raise ServerError(
            f"{SERVER_VARIABLE} is not one line of printable ASCII without spaces.",
            next_step="Set another, or unset it: `prefect-bt up` makes one.",
        )
    told = variables.get(CLIENT_VARIABLE, "")
    if not (_is_usable(told) and is_same_server(variables.get("PREFECT_API_URL", ""), api_url)):
        told = ""
    known = read_auth(state_dir)
    chosen = configured or known or told or f"{_USER}:{secrets.token_urlsafe(_RANDOM_BYTES)}"
    if chosen != known:
        write_auth(state_dir, chosen)
    return chosen


def find_auth(state_dir: Path, api_url: str) -> str:
    """Return the string for requests to `api_url`; "" unless it is the running server of `up`."""
    known = read_server(state_dir)
    if known is None or not is_same_server(str(known.get("api_url")), api_url):
        return ""
    return read_auth(state_dir) if get_process(known, "server").is_alive else ""


def auth_variables(state_dir: Path, api_url: str) -> dict[str, str]:
    """Return the variables, besides the URL, for a process that uses the server at `api_url`."""
    found = find_auth(state_dir, api_url)
    return {CLIENT_VARIABLE: found} if found else {}


def is_same_server(one: str, other: str) -> bool:
    """Return whether two API URLs name one server; `localhost` is 127.0.0.1, where `up` listens."""
    return bool(one) and _normalize_url(one) == _normalize_url(other)


def _normalize_url(api_url: str) -> tuple[str, str, int | None, str] | None:
    try:
        parts = urlsplit(api_url)
        port = parts.port
    except ValueError:
        return None
    host = parts.hostname or ""
    host = "127.0.0.1" if host in _LOOPBACK_HOSTS else host
    return parts.scheme, host, port, parts.path.rstrip("/")


def rejects_auth(api_url: str, string: str) -> bool:
    """Return whether the server was started with another string."""
    headers = {"Authorization": f"Basic {b64encode(string.encode()).decode()}"} if string else {}
    try:
        with httpx.Client(headers=headers, trust_env=False, timeout=_REQUEST_TIMEOUT) as client:
            status = client.get(f"{api_url}/admin/version").status_code
    except httpx.HTTPError:
        return False
    return status == HTTPStatus.UNAUTHORIZED


def restore_auth(state_dir: Path, server_pid: int) -> str:
    """Write the running server's string to the file, and return it; "" if it cannot be read."""
    with suppress(OSError):
        for line in Path(f"/proc/{server_pid}/environ").read_bytes().split(b"\0"):
            name, _, value = line.decode(errors="replace").partition("=")
            if name == SERVER_VARIABLE and _is_usable(value):
                write_auth(state_dir, value)
                return value
    return ""


def _is_usable(string: str) -> bool:
    """Return whether it is one line of ASCII, for Prefect's comparison and for `$(cat ...)`."""
    return bool(string) and string.isascii() and string.isprintable() and " " not in string
