"""Start, watch and stop a Prefect server and a worker on this machine.

With them a push starts within a second, runs have a UI, and schedules run. Their addresses and
process ids are in the state folder (prefect_bt.local_server.discovery). They send no usage data.
The server requires the password of the state folder (prefect_bt.local_server.password) and rejects
requests from pages of other sites.
"""

from __future__ import annotations

import os
import shlex
import socket
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import httpx

from prefect_bt.errors import ServerError
from prefect_bt.host.mounts.volumes import list_exposure_warnings
from prefect_bt.host.processes import ProcessIdentity
from prefect_bt.host.service import exclusive_lock, start_process, wait_until_ready
from prefect_bt.local_server.app import HOST, allowed_origins
from prefect_bt.local_server.discovery import get_process, read_server, server_file, write_server
from prefect_bt.local_server.password import (
    CLIENT_VARIABLE,
    SERVER_VARIABLE,
    auth_file,
    ensure_auth,
    is_same_server,
    read_auth,
    rejects_auth,
    restore_auth,
)
from prefect_bt.local_server.port import answers, is_healthy, open_listening_socket
from prefect_bt.open_metrics.endpoint import check_address
from prefect_bt.settings import Settings

Echo = Callable[[str], None]

_ROLES: Final = ("caretaker", "api", "worker", "server")
"""In the order in which they are stopped: each may restart the later ones."""
_SERVER_TIMEOUT: Final = 120.0
_WORKER_TIMEOUT: Final = 60.0
_STOP_TIMEOUT: Final = 15.0
API_PORT: Final = 8000
"""Port of the Training API, the only one that `truss` knows."""
_NO_TELEMETRY: Final = {
    "DO_NOT_TRACK": "1",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "PREFECT_SERVER_UI_SHOW_PROMOTIONAL_CONTENT": "false",
}


def up(
    *,
    port: int | None = None,
    worker: bool = True,
    metrics_listen: str = "",
    api: bool = False,
    echo: Echo = print,
) -> dict[str, Any]:
    """Start a Prefect server with its UI, and a worker; return once both answer.

    Returns the server file's document with "already_up" and "export", a shell line that selects
    this server. `metrics_listen`: address of the metrics, which the watchdog serves. `api`: start
    the HTTP API too. Raises ServerError after stopping everything that it started.
    """
    settings = Settings()
    with _server_lock(settings.state_dir, log=echo):
        for sentence in list_exposure_warnings(settings):
            echo(f"Warning: {sentence}")
        known = read_server(settings.state_dir)
        if known is not None and get_process(known, "server").is_alive:
            if metrics_listen and metrics_listen != known.get("metrics_listen"):
                echo("The address of the metrics changes with the next start: prefect-bt down")
            return _report_already_up(settings.state_dir, known, worker=worker, api=api, log=echo)
        _stop_processes(settings.state_dir, known)
        if metrics_listen:
            check_address(metrics_listen)
            echo(f"Metrics: http://{metrics_listen}/metrics")
        facts = {"metrics_listen": metrics_listen} if metrics_listen else {}
        port = port or settings.server_port
        document = _start(settings, port, facts, worker=worker, api=api, log=echo)
    return _report_server(settings.state_dir, document, already_up=False, log=echo)


def down(*, force: bool = False, echo: Echo = print) -> dict[str, Any]:
    """Stop the worker and the server that `up` started; return what was stopped, {} for nothing.

    Raises ServerError while flow runs use the server, or if it is too busy to list them, unless
    `force`.
    """
    state_dir = Settings().state_dir
    with _server_lock(state_dir, log=echo):
        known = read_server(state_dir)
        alive = [role for role in _ROLES if known and get_process(known, role).is_alive]
        if known is None or not alive:
            _stop_processes(state_dir, known)
            echo("Nothing to stop: no server that `prefect-bt up` started runs here.")
            return {}
        if not force:
            _check_no_active_runs(known)
        _stop_processes(state_dir, known)
    if "server" in alive:
        echo(f"Stopped the Prefect server at {known['ui_url']}; what it stored is kept.")
    else:
        echo(f"The Prefect server had already ended; stopped its {' and its '.join(alive)}.")
    return known


def _start(  # noqa: PLR0913 (what `up` starts)
    settings: Settings, port: int, facts: Mapping[str, str], *, worker: bool, api: bool, log: Echo
) -> dict[str, Any]:
    ui_url, state_dir = f"http://{HOST}:{port}", settings.state_dir
    document: dict[str, Any] = {"api_url": f"{ui_url}/api", "ui_url": ui_url, **facts}
    with open_listening_socket(port) as listening:
        log(f"Starting a Prefect server at {ui_url} (about ten seconds the first time)")
        try:
            _start_server(state_dir, document, listening)
            log("Registering the blocks and the deployment train/train")
            _prepare(document)
            if worker:
                _start_worker(state_dir, document, log=log)
            if api:
                _start_api(state_dir, document, log=log)
            _start_watchdog(state_dir, document, listening)
        except BaseException:
            _stop_processes(state_dir, document)
            raise
    return document


def _report_already_up(
    state_dir: Path, document: dict[str, Any], *, worker: bool, api: bool, log: Echo
) -> dict[str, Any]:
    log(f"Already up: {document['ui_url']}")
    _repair_auth_file(state_dir, document, log=log)
    if worker and not get_process(document, "worker").is_alive:
        _start_worker(state_dir, document, log=log)
    if api and not get_process(document, "api").is_alive:
        _start_api(state_dir, document, log=log)
    if not get_process(document, "caretaker").is_alive:
        _start_watchdog(state_dir, document)  # without the socket, which only the server has now
    return _report_server(state_dir, document, already_up=True, log=log)


def _repair_auth_file(state_dir: Path, document: dict[str, Any], *, log: Echo) -> None:
    """Make the file hold the running server's auth string. Raises ServerError."""
    if not rejects_auth(document["api_url"], read_auth(state_dir)):
        return
    if not restore_auth(state_dir, document["server_pid"]):
        raise ServerError(
            f"{auth_file(state_dir)} is not the password of the running server.",
            next_step="Start the server with a new one: prefect-bt down --force; prefect-bt up.",
        )
    log(f"{auth_file(state_dir)} was missing or damaged; written again")


def restart_dead_processes(listening: socket.socket | None = None, *, echo: Echo) -> bool:
    """Restart the processes of `up` that died; return False after `down`.

    `listening` is the server's socket, if the watchdog holds it.
    """
    settings = Settings()
    state_dir = settings.state_dir
    with _server_lock(state_dir, log=echo):
        known = read_server(state_dir)
        if known is None:
            return False
        if not get_process(known, "server").is_alive:
            echo("The server has ended; starting it again")
            port = urlsplit(str(known["api_url"])).port or settings.server_port
            with listening.dup() if listening else open_listening_socket(port) as taken:
                _start_server(state_dir, known, taken, variables=os.environ)
            if read_auth(state_dir) != os.environ.get(CLIENT_VARIABLE):
                get_process(known, "worker").stop(timeout=_STOP_TIMEOUT)  # it has another one
        if known.get("worker_pid") and not get_process(known, "worker").is_alive:
            _start_worker(state_dir, known, log=echo)
        if known.get("api_pid") and not get_process(known, "api").is_alive:
            _start_api(state_dir, known, log=echo)
    return True


def _report_server(
    state_dir: Path, document: dict[str, Any], *, already_up: bool, log: Echo
) -> dict[str, Any]:
    # The string itself is in no terminal, and in no shell's history.
    show = f"cat {shlex.quote(str(auth_file(state_dir.absolute())))}"
    export = f'export PREFECT_API_URL={document["api_url"]} {CLIENT_VARIABLE}="$({show})"'
    elsewhere = os.environ.get("PREFECT_API_URL", "")
    log(f"UI: {document['ui_url']}    Stop: prefect-bt down")
    log(f"The UI asks for a password once: {show}")
    if elsewhere and not is_same_server(elsewhere, document["api_url"]):
        log(f"This shell's PREFECT_API_URL is {elsewhere}; to use this server: {export}")
    else:
        log(f"For Prefect's own commands in other shells: {export}")
    told = {"already_up": already_up, "export": export, "auth_file": str(auth_file(state_dir))}
    return {**document, **told}


def _start_server(
    state_dir: Path,
    document: dict[str, Any],
    listening: socket.socket,
    *,
    variables: Mapping[str, str] | None = None,
) -> None:
    """Start the server with a listening socket, and wait until the server answers.

    The socket prevents that another program answers at the address and receives the password.
    `variables` may hold the password of a restarted server.
    """
    api_url, log = document["api_url"], state_dir / "server.log"
    auth = ensure_auth(state_dir, api_url, variables or {}, configured=_read_user_auth())
    environment = {
        **_environment(api_url, auth),
        SERVER_VARIABLE: auth,
        "PREFECT_SERVER_API_CORS_ALLOWED_ORIGINS": ",".join(
            allowed_origins(listening.getsockname()[1])
        ),
        # Without these two, a UI on another port than 4200 asks for data at 4200.
        "PREFECT_SERVER_UI_API_URL": api_url,
        "PREFECT_UI_URL": document["ui_url"],
        # The default storage is memory: a restart would leak every slot that a run holds.
        "PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE": (
            "prefect.server.concurrency.lease_storage.filesystem"
        ),
    }
    descriptor = listening.fileno()
    command = [sys.executable, "-m", "prefect_bt.local_server.app", str(descriptor)]
    identity, process = start_process(
        command, log=log, environment=environment, pass_fds=[descriptor]
    )
    _record_process(state_dir, document, "server", identity)
    wait_until_ready(
        "Prefect server", process, lambda: is_healthy(api_url), log=log, timeout=_SERVER_TIMEOUT
    )


def _start_worker(state_dir: Path, document: dict[str, Any], *, log: Echo) -> None:
    from prefect_bt.local_server.setup import POOL, is_worker_online

    log("Starting a worker")
    name = f"{socket.gethostname()}-{time.time_ns() // 1_000_000}"
    environment = {
        **_environment(document["api_url"], read_auth(state_dir)),
        "PREFECT_WORKER_QUERY_SECONDS": "2",
        "PREFECT_WORKER_ENABLE_CANCELLATION": "true",
    }
    command = [sys.executable, "-m", "prefect", "worker", "start", "--type", "process"]
    log_file = state_dir / "worker.log"
    identity, process = start_process(
        [*command, "--pool", POOL, "--name", name], log=log_file, environment=environment
    )
    _record_process(state_dir, document, "worker", identity)
    wait_until_ready(
        "Prefect worker",
        process,
        lambda: is_worker_online(document["api_url"], name),
        log=log_file,
        timeout=_WORKER_TIMEOUT,
        interval=0.3,  # each question opens a client
    )


def _start_api(state_dir: Path, document: dict[str, Any], *, log: Echo) -> None:
    """Start the HTTP API on this machine's loopback address."""
    log_file = state_dir / "api.log"
    identity, process = start_process(
        [sys.executable, "-m", "prefect_bt.http_api", HOST, str(API_PORT)],
        log=log_file,
        environment=_environment(document["api_url"], read_auth(state_dir)),
    )
    _record_process(state_dir, document, "api", identity)
    url = f"http://{HOST}:{API_PORT}"
    wait_until_ready(
        "Training API",
        process,
        lambda: answers(f"{url}/health", b'"ok"'),
        log=log_file,
        timeout=_WORKER_TIMEOUT,
    )
    log(f"Training API: {url}    Key: prefect-bt api-key create NAME")


def _start_watchdog(
    state_dir: Path, document: dict[str, Any], listening: socket.socket | None = None
) -> None:
    """Start the watchdog, which holds the socket `listening` while the server is down."""
    descriptors = [listening.fileno()] if listening else []
    identity, _ = start_process(
        [sys.executable, "-m", "prefect_bt.local_server.watchdog", *map(str, descriptors)],
        log=state_dir / "caretaker.log",
        environment=_environment(document["api_url"], read_auth(state_dir)),
        pass_fds=descriptors,
    )
    _record_process(state_dir, document, "caretaker", identity)


def _record_process(
    state_dir: Path, document: dict[str, Any], role: str, process: ProcessIdentity
) -> None:
    document.update({f"{role}_pid": process.pid, f"{role}_started": process.began})
    document.setdefault("worker_pid", None)
    document.setdefault("worker_started", None)
    write_server(state_dir, document)


def _prepare(document: dict[str, Any]) -> None:
    from prefect_bt.local_server.setup import prepare

    try:
        prepare(document["api_url"])
    except httpx.HTTPError as error:
        raise ServerError(
            f"The new Prefect server could not be set up: {error}",
            next_step=(
                "If another Prefect release created its database, run: prefect server "
                "database upgrade"
            ),
        ) from error


def _stop_processes(state_dir: Path, document: dict[str, Any] | None) -> None:
    """Stop what still runs of `document` and remove the file."""
    if document is not None:
        for role in _ROLES:
            get_process(document, role).stop(timeout=_STOP_TIMEOUT)
    server_file(state_dir).unlink(missing_ok=True)


def _check_no_active_runs(document: dict[str, Any]) -> None:
    if not get_process(document, "server").is_alive:
        return
    from prefect_bt.local_server.setup import list_active_runs

    try:
        going = list_active_runs(document["api_url"])
    except httpx.HTTPStatusError as error:
        status = error.response.status_code
        if status == HTTPStatus.UNAUTHORIZED:
            raise ServerError(
                "Active flow runs cannot be listed: the server has another password.",
                next_step="`prefect-bt up` may find it again; or prefect-bt down --force.",
            ) from error
        raise _busy_error(f"the server answers {status}") from error
    except httpx.TimeoutException as error:
        raise _busy_error("the server does not answer in time") from error
    except (httpx.HTTPError, RuntimeError):
        return  # a server without connections is of no use to any run
    if going:
        raise ServerError(
            f"{len(going)} flow run(s) are active on this server: {', '.join(going[:5])}.",
            next_step="Let them end or stop them (prefect-bt stop); or prefect-bt down --force.",
        )


def _busy_error(why: str) -> ServerError:
    return ServerError(
        f"Active flow runs cannot be listed: {why}.",
        next_step="Try again in a minute; or prefect-bt down --force.",
    )


def _read_user_auth() -> str:
    """Return the user's own auth string, of the environment or of Prefect's profile."""
    if own := os.environ.get(SERVER_VARIABLE):
        return own
    from prefect_bt.local_server.setup import read_user_auth

    return read_user_auth()


def _environment(api_url: str, auth: str) -> dict[str, str]:
    """Return this environment with the server's API, without the key for Prefect Cloud."""
    inherited = {k: v for k, v in os.environ.items() if k != "PREFECT_API_KEY"}
    return {**inherited, **_NO_TELEMETRY, "PREFECT_API_URL": api_url, CLIENT_VARIABLE: auth}


def _server_lock(state_dir: Path, *, log: Echo) -> AbstractContextManager[None]:
    """Allow one `up`, `down` or restart of a state folder at a time; log a wait for another."""
    message = "Waiting: the server is being started or stopped (a few minutes at most)"
    return exclusive_lock(state_dir / "server.lock", on_wait=lambda: log(message))
