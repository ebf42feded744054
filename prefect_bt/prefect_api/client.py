"""The client of the Prefect API outside of flow runs.

It uses the API of the flow run inside one; else the API that Prefect is configured with
(PREFECT_API_URL or the profile); else the server of `prefect-bt up`; else, if the call allows it,
Prefect's temporary server, which takes seconds to start and ends with this process. The server of
`up` gets its password in all cases.
"""

from __future__ import annotations

import re
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from itertools import product
from typing import Any, Final
from uuid import UUID

import httpx
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.objects import StateType
from prefect.context import FlowRunContext, TaskRunContext
from prefect.exceptions import ObjectNotFound
from prefect.settings import (
    PREFECT_API_AUTH_STRING,
    PREFECT_API_URL,
    PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS,
    PREFECT_SERVER_LOGGING_LEVEL,
    get_current_settings,
    temporary_settings,
)
from prefect.states import Cancelling, Scheduled
from prefect.utilities.urls import url_for

from prefect_bt.errors import ServerError
from prefect_bt.local_server.discovery import local_server_url
from prefect_bt.local_server.password import find_auth
from prefect_bt.prefect_api.credential_blocks import FORMATS
from prefect_bt.prefect_api.database import may_have_block
from prefect_bt.settings import Settings

MAX_CRASHES: Final = 6
"""Of a run that never began. Its own process and its worker's may both write one down."""
TEMPORARY_SERVER_TIMEOUT: Final = 180
"""To wait for Prefect's temporary server (supervisor.run_flow waits as long)."""
_LISTED: Final = 20


@dataclass(frozen=True)
class DeploymentRun:
    """A run that was scheduled. `url` is its page in the UI; empty when there is no UI."""

    flow_run_id: str
    url: str


def run_deployment(name: str, *, job_id: str, store: str, idempotency_key: str) -> DeploymentRun:
    """Schedule a run of `flow/deployment` for an accepted job, without waiting for it.

    The same key gives the same run, also if the first answer was lost.
    Raises ServerError if no lasting API answers, or the deployment is unknown or refuses the run.
    """
    with prefect_client(temporary=False) as client:
        run = client.create_flow_run_from_deployment(
            _get_deployment_id(client, name),
            # The fields of a TrainingStore block: where the flow wants a block, text is refused.
            parameters={"job_id": job_id, "store": {"url": store}},
            idempotency_key=idempotency_key,
        )
        return DeploymentRun(str(run.id), url_for("flow-run", obj_id=run.id) or "")


def check_deployment(name: str) -> None:
    """Raise the ServerError that run_deployment would raise, before anything is written."""
    with prefect_client(temporary=False) as client:
        _get_deployment_id(client, name)


def _get_deployment_id(client: SyncPrefectClient, name: str) -> UUID:
    if name.count("/") != 1:
        raise ServerError(
            f"{name!r} does not name a deployment.",
            next_step="Write the flow's name, a slash and the deployment's name: train/train.",
        )
    try:
        return client.read_deployment_by_name(name).id
    except ObjectNotFound:
        flows = {flow.id: flow.name for flow in client.read_flows(limit=200)}
        known = sorted(
            f"{flows[deployment.flow_id]}/{deployment.name}"
            for deployment in client.read_deployments(limit=200)
            if deployment.flow_id in flows
        )
        listed = ", ".join(known[:_LISTED]) + (", ..." if len(known) > _LISTED else "")
        raise ServerError(
            f"No deployment is called {name!r} at {client.api_url}.",
            next_step=f"There are: {listed}."
            if known
            else "There is none yet: `prefect-bt up` creates train/train.",
        ) from None


def cancel_run(flow_run_id: str) -> bool:
    """Cancel a run; return False if it has ended, or the API does not know it.

    A run that no process runs yet is CANCELLED at once; another goes through CANCELLING, which its
    process enforces.
    """
    with prefect_client() as client:
        try:
            state = client.read_flow_run(UUID(flow_run_id)).state
            if state is None or state.is_final():
                return False
            client.set_flow_run_state(UUID(flow_run_id), Cancelling())
            after = client.read_flow_run(UUID(flow_run_id)).state
        except ObjectNotFound:
            return False
    return after is not None and after.type in {StateType.CANCELLING, StateType.CANCELLED}


def get_run_state(flow_run_id: str) -> StateType | None:
    """Return the type of the run's state; None for a run that Prefect does not know. ServerError.

    A temporary server is not started: it knows no run of another server.
    """
    try:
        with prefect_client(temporary=False) as client:
            state = client.read_flow_run(UUID(flow_run_id)).state
    except ObjectNotFound:
        return None
    return state.type if state else None


def reschedule_run(flow_run_id: str) -> bool:
    """Reschedule a deployment's run that crashed before this package's code ran. ServerError.

    Return False if that happened too often, so neither the server nor the worker was the cause. A
    run that was scheduled meanwhile is left alone, because it would run twice.
    """
    with prefect_client(temporary=False) as client:
        state = client.read_flow_run(UUID(flow_run_id)).state
        if state is None or not state.is_crashed():
            return True
        history = client.read_flow_run_states(UUID(flow_run_id))
        if sum(state.is_crashed() for state in history) > MAX_CRASHES:
            return False
        again = Scheduled(message="It crashed before it began.")
        client.set_flow_run_state(UUID(flow_run_id), again, force=True)
    return True


def run_url(flow_run_id: str) -> str:
    """Return the run's page in the Prefect UI; "" for a temporary server, which has none."""
    with _api_settings() as api_url:
        return (api_url and url_for("flow-run", obj_id=UUID(flow_run_id))) or ""


@dataclass(frozen=True)
class SecretBlocks:
    """Prefect's Secret blocks, then the credentials blocks of its integrations.

    A block has the name of the reference, or that name with dashes: names made in the UI have only
    lower-case letters, digits and dashes, so `hf_access_token` is also searched as
    `hf-access-token`. `aws-credentials/prod` names a block of that type alone.
    """

    label: str = "Prefect Secret blocks"

    def find(self, name: str) -> str | None:
        """Return the value as text, or JSON if it is not text; None for no block."""
        types, names = self._candidates(name)
        with _api_settings() as api_url:
            # Only a temporary server would answer; it is not started if it has no such block.
            alone = not (api_url or _is_inside_run())
        if not names or (alone and not may_have_block(types, names)):
            return None
        with prefect_client() as client:
            response = client.request(
                "POST",
                "/block_documents/filter",
                json={
                    "block_types": {"slug": {"any_": types}},
                    "block_documents": {"name": {"any_": names}},
                    "include_secrets": True,
                },
            )
        found = {(one["block_type"]["slug"], one["name"]): one["data"] for one in response.json()}
        texts = (
            FORMATS[kind](found[kind, spelling])
            for kind, spelling in product(types, names)
            if (kind, spelling) in found
        )
        return next((text for text in texts if text is not None), None)

    def lookup_name(self, name: str) -> str:
        """Return the names that the block can have."""
        types, names = self._candidates(name)
        kind = "Secret block (or credentials block)" if len(types) > 1 else f"block {types[0]}"
        return f"Prefect {kind} {' or '.join(names) or name}"

    def _candidates(self, reference: str) -> tuple[list[str], list[str]]:
        """Return the types and the names that the block can have."""
        kind, _, name = reference.rpartition("/")
        if kind not in FORMATS:
            kind, name = "", reference
        spellings = dict.fromkeys((name, name.replace("_", "-").lower()))
        names = [one for one in spellings if _VALID_BLOCK_NAME.fullmatch(one)]
        return [kind] if kind else list(FORMATS), names


_VALID_BLOCK_NAME: Final = re.compile(r"[^/%&<>?#\s]+")
"""What a block can be called."""


@contextmanager
def prefect_client(*, temporary: bool = True) -> Generator[SyncPrefectClient]:
    """Yield a client whose errors are ServerErrors; `temporary`: allow a temporary server."""
    with _api_settings() as api_url:
        if not api_url and not temporary:
            raise ServerError(
                "No Prefect API is configured.",
                next_step="Start one with `prefect-bt up`, or set PREFECT_API_URL.",
            )
        try:
            with get_client(sync_client=True) as client:
                yield client
        except httpx.HTTPStatusError as error:
            raise _api_error(error.response) from error
        except (httpx.HTTPError, RuntimeError) as error:
            where = api_url or "Prefect's temporary server"
            raise ServerError(
                f"The Prefect API at {where} does not answer: {error}",
                next_step="Start it (`prefect-bt up`), or correct PREFECT_API_URL.",
            ) from error


@contextmanager
def _api_settings() -> Generator[str]:
    """Set Prefect's client to the chosen API; yield its URL, "" for none."""
    configured, inside = str(PREFECT_API_URL.value() or ""), _is_inside_run()
    state_dir = Settings().state_dir
    chosen = configured if configured or inside else local_server_url(state_dir)
    updates: dict[Any, Any] = {}
    if not (chosen or inside):
        updates = _temporary_server_settings()
    elif chosen != configured:
        updates[PREFECT_API_URL] = chosen
    if auth := find_auth(state_dir, chosen):
        updates[PREFECT_API_AUTH_STRING] = auth
    with temporary_settings(updates=updates):
        yield chosen


def _is_inside_run() -> bool:
    return FlowRunContext.get() is not None or TaskRunContext.get() is not None


def _temporary_server_settings() -> dict[Any, Any]:
    """Return settings for Prefect's temporary server, without those that the user has set.

    Its services print irrelevant errors (telemetry that cannot be sent, tables that are locked
    while they are created), and a busy machine takes longer than Prefect's own 20 seconds to start
    it.
    """
    known = get_current_settings().server
    updates: dict[Any, Any] = {}
    if "logging_level" not in known.model_fields_set:
        updates[PREFECT_SERVER_LOGGING_LEVEL] = "CRITICAL"
    if "startup_timeout_seconds" not in known.ephemeral.model_fields_set:
        updates[PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS] = TEMPORARY_SERVER_TIMEOUT
    return updates


def _api_error(response: httpx.Response) -> ServerError:
    try:
        detail = response.json().get("detail")
    except (ValueError, AttributeError):
        detail = None
    words = f"{response.status_code} {response.reason_phrase}"
    next_step = "Look at PREFECT_API_URL and its credentials: prefect config view."
    if response.status_code == HTTPStatus.UNAUTHORIZED:
        next_step = (
            "Set PREFECT_API_AUTH_STRING (`prefect-bt up` prints the line for its server), or "
            "PREFECT_API_KEY for Prefect Cloud."
        )
    if response.status_code in {409, 422}:
        next_step = "If the deployment is of another release, deploy it again: prefect deploy."
    return ServerError(
        f"The Prefect API refused a request ({words}{f': {detail}' if detail else ''}).",
        next_step=next_step,
    )
