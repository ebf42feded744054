"""How an accepted job begins to run: through a deployment, or in a process of its own.

Decision 13: with a Prefect API and a deployment named, the deployment's worker runs the flow; else
a detached process on this machine does, on the API if there is one, on Prefect's temporary server
if not. Importing this module does not import Prefect.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from prefect_bt.errors import PrefectBtError
from prefect_bt.ledger import Ledger
from prefect_bt.ownership import INHERITED, hold_job
from prefect_bt.records import JobRecord, JobState
from prefect_bt.secrets import EnvironmentSecrets, SecretSource
from prefect_bt.servers import local_server_url
from prefect_bt.settings import Settings


def start(ledger: Ledger, record: JobRecord, *, deployment: str | None = None) -> None:
    """Begin to run the job; when that cannot be done, the job is FAILED and the error raised."""
    settings = Settings()
    chosen = deployment or settings.deployment
    try:
        if chosen:
            from prefect_bt.cli.prefect_api import run_deployment

            run = run_deployment(chosen, job_id=record.id, store=ledger.store.url)
            ledger.bind_run(run.flow_run_id, record.id, url=run.url)
        else:
            start_detached(ledger, record, settings=settings)
    except BaseException as error:
        if not ledger.state(record.id).terminal:
            ledger.append(record.id, JobState.FAILED, message=f"It could not be started: {error}")
        raise


def start_detached(ledger: Ledger, record: JobRecord, *, settings: Settings) -> None:
    """A process in a session of its own that outlives this one and owns the job from the start."""
    with hold_job(settings.state_dir, record.id) as descriptor:
        environment = {
            **os.environ,
            INHERITED: str(descriptor),
            "PREFECT_BT_STORE": ledger.store.url,
            "PREFECT_BT_STATE_DIR": str(settings.state_dir),
        }
        url = local_server_url(settings.state_dir)
        if url and not environment.get("PREFECT_API_URL"):
            environment["PREFECT_API_URL"] = url
        with flow_log(settings.state_dir, record.id).open("ab") as log:
            subprocess.Popen(
                [sys.executable, "-m", "prefect_bt.flows.keeper", record.id],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                cwd="/",
                start_new_session=True,
                pass_fds=(descriptor,),
            )


def flow_log(state_dir: Path, job_id: str) -> Path:
    """Where a detached process writes what it prints."""
    return state_dir / "jobs" / job_id / "flow.log"


def secret_sources() -> tuple[SecretSource, ...]:
    """Prefect Secret blocks, then the environment (decision 10)."""
    try:
        from prefect_bt.cli.prefect_api import SecretBlocks
    except ImportError as error:
        raise PrefectBtError(f"Prefect cannot be imported: {error}") from error
    return (SecretBlocks(), EnvironmentSecrets())
