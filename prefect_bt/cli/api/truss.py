"""`prefect-bt truss`: run the installed truss against our server."""

from __future__ import annotations

import os
import shutil
import subprocess
from itertools import pairwise
from typing import Annotated, Final

from cyclopts import Parameter

from prefect_bt.cli.ui.options import InjectedTerminal
from prefect_bt.errors import UsageError
from prefect_bt.job_service.remotes import KEY_PREFIX, TRUSS_URL, find_trussrc, read_remotes
from prefect_bt.settings import Settings

_LOCAL_NAMES: Final = frozenset({"localhost", "api.localhost", ".localhost", "*"})


def truss(
    *arguments: Annotated[str, Parameter(allow_leading_hyphen=True)], terminal: InjectedTerminal
) -> int:
    """Run `truss` with its requests for http://localhost:8000 sent to our server.

    The server is that of the remote (`api-key create --trussrc`), of PREFECT_BT_API_URL, or the one
    on this machine. Nothing else of truss is changed.

    Args:
        arguments: Arguments of truss, after `--`.

    Examples:

    `prefect-bt truss -- train push config.py --remote ours --tail`
    """
    program = shutil.which("truss")
    if program is None:
        raise UsageError("truss is not installed.", next_step="Install it: pip install truss")
    return subprocess.run(
        [program, *arguments], env=build_environment(arguments), check=False
    ).returncode


def build_environment(arguments: tuple[str, ...]) -> dict[str, str]:
    """Return the environment of truss: our server as the proxy for its two local names."""
    settings, remotes = Settings(), read_remotes(find_trussrc())
    name = next((b for a, b in pairwise(arguments) if a == "--remote"), "")
    remote = remotes.get(name, {})
    for title, known in remotes.items():
        ours = known.get("api_key", "").startswith(KEY_PREFIX)
        if ours and known.get("remote_url", "").strip("/") != TRUSS_URL:
            raise UsageError(
                f"The remote {title!r} has a key of prefect-bt, and the URL of another service, to "
                "which truss would send the key.",
                next_step=f"Set its remote_url to {TRUSS_URL} in {find_trussrc()}.",
            )
    url = remote.get("prefect_bt_url") or settings.api_url or TRUSS_URL
    if not url.startswith("http://"):
        raise UsageError(
            f"truss does not check the certificate of {url}.",
            next_step=f"Open an SSH tunnel to the server, and use {TRUSS_URL}.",
        )
    environment = {**os.environ, "HTTP_PROXY": url, "http_proxy": url}
    for variable in ("NO_PROXY", "no_proxy"):
        names = environment.get(variable, "").split(",")
        environment[variable] = ",".join(n for n in names if n.strip() not in _LOCAL_NAMES)
    if settings.api_key.get_secret_value() and not name:
        environment["BASETEN_TRUSS_AUTH_REMOTE_URL"] = TRUSS_URL
        environment["BASETEN_TRUSS_AUTH_API_KEY"] = settings.api_key.get_secret_value()
    return environment
