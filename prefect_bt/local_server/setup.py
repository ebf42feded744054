"""Prepare a new Prefect server: register block types, create a work pool and a deployment.

Every step is idempotent: an existing server keeps the changes of users, except to the flow and the
parameters of the deployment `train`, which follow the installed version.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, Final, cast

from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import WorkPoolCreate
from prefect.client.schemas.filters import FlowRunFilter
from prefect.client.schemas.objects import StateType, WorkerStatus
from prefect.deployments.runner import RunnerDeployment
from prefect.exceptions import ObjectAlreadyExists
from prefect.settings import (
    PREFECT_API_AUTH_STRING,
    PREFECT_API_KEY,
    PREFECT_API_URL,
    PREFECT_SERVER_API_AUTH_STRING,
    temporary_settings,
)
from prefect.types.entrypoint import EntrypointType
from prefect.workers.process import ProcessWorker

from prefect_bt.local_server.password import find_auth
from prefect_bt.settings import Settings

POOL: Final = "training"
"""Name of the pool; Prefect reserves names that begin with `prefect`."""
DEPLOYMENT: Final = "train/train"
_ACTIVE_STATES: Final = [StateType.RUNNING, StateType.PENDING, StateType.CANCELLING]


@contextmanager
def use_api(api_url: str) -> Generator[None]:
    """Let Prefect's client use `api_url` in the block, despite the environment and the profile.

    The password is that of the state folder, else the configured one.
    """
    updates: dict[Any, Any] = {PREFECT_API_URL: api_url}
    if auth := find_auth(Settings().state_dir, api_url):
        updates[PREFECT_API_AUTH_STRING] = auth
    with temporary_settings(updates=updates, restore_defaults={PREFECT_API_KEY}):
        yield


def read_user_auth() -> str:
    """Return the auth string that the user gave Prefect's servers, for instance in a profile."""
    return str(PREFECT_SERVER_API_AUTH_STRING.value() or "")


def prepare(api_url: str) -> None:
    """Register the blocks, create the pool, deploy the flow."""
    with use_api(api_url):
        register_blocks()
        ensure_pool()
        deploy_train()


def register_blocks() -> None:
    from prefect_bt.blocks import BLOCKS

    for block in BLOCKS:
        # `_sync`: inside an event loop, a notebook's say, Prefect would hand back a coroutine.
        cast("Any", block).register_type_and_schema(_sync=True)


def ensure_pool() -> None:
    template = ProcessWorker.get_default_base_job_template()
    pool = WorkPoolCreate(name=POOL, type="process", base_job_template=template)
    with get_client(sync_client=True) as client:
        try:
            client.create_work_pool(pool)
        except ObjectAlreadyExists:
            return


def deploy_train() -> None:
    """Create `train/train`, which workers import as an installed module."""
    from prefect_bt.flows.train import train

    deployment = RunnerDeployment.from_flow(
        cast("Any", train),
        name=DEPLOYMENT.partition("/")[2],
        description="Runs a training job. `prefect-bt push --deployment train/train` starts it.",
        work_pool_name=POOL,
        entrypoint_type=EntrypointType.MODULE_PATH,
    )
    cast("Any", deployment).apply(_sync=True)


def is_worker_online(api_url: str, name: str) -> bool:
    """Return whether the worker reports to the server."""
    with use_api(api_url), get_client(sync_client=True) as client:
        workers = client.read_workers_for_work_pool(POOL)
    return any(w.name == name and w.status == WorkerStatus.ONLINE for w in workers)


def list_active_runs(api_url: str) -> list[str]:
    """Return the names of the flow runs that use the server."""
    wanted = FlowRunFilter.model_validate({"state": {"type": {"any_": _ACTIVE_STATES}}})
    with use_api(api_url), get_client(sync_client=True) as client:
        return [run.name for run in client.read_flow_runs(flow_run_filter=wanted, limit=50)]
