"""A machine with a store, on which jobs have left things behind."""

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from prefect_bt.gc.collector import scan_for_orphans
from prefect_bt.gc.findings import Findings, OrphanKind, remove_all
from prefect_bt.host.job_lock import JobLock
from prefect_bt.host.nodes.handle import HostHandle
from prefect_bt.host.processes import FLOW_VARIABLE
from prefect_bt.ledger.ledger import Ledger
from prefect_bt.ledger.open_ledger import open_ledger
from prefect_bt.ledger.states import JobState
from prefect_bt.settings import Settings
from prefect_bt.substrates.local.substrate import LocalProcessSubstrate
from tests.jobs.records import new_record
from tests.node_agent.rig import make_plan, wait_until
from tests.written_jobs import write_job

DAY = 86400.0


@dataclass
class Site:
    """A machine and its store. Jobs here are records and real nodes; no flow runs them."""

    root: Path
    settings: Settings
    ledger: Ledger

    @property
    def state(self) -> Path:
        return self.settings.state_dir

    def job(self, state: JobState, *, ledger: Ledger | None = None) -> str:
        ledger = ledger or self.ledger
        record = new_record(ledger, created_at=time.time(), substrate="local")
        write_job(ledger, record)
        path = {
            JobState.CREATED: (),
            JobState.RUNNING: (JobState.DEPLOYING, JobState.RUNNING),
            JobState.COMPLETED: (JobState.DEPLOYING, JobState.RUNNING, JobState.COMPLETED),
            JobState.FAILED: (JobState.FAILED,),
        }[state]
        for one in path:
            ledger.append_event(record.id, one)
        return record.id

    def long_over(self, root: Path | None = None) -> str:
        """A job that ended ten minutes ago, in our store or in one at `root`."""
        store = open_ledger(str(root)).store if root else self.ledger.store
        return self.job(JobState.COMPLETED, ledger=Ledger(store, clock=lambda: time.time() - 600))

    def note_store(self, job_id: str, url: str) -> None:
        """As a process that ran the job, and was killed, leaves it."""
        claim = JobLock(self.state)
        claim.acquire(job_id)
        claim.write_store_url(url)
        claim.release()

    def node(self, job_id: str, command: str = "true", **changes: object) -> HostHandle:
        plan = make_plan(self.state, (command,), job_id=job_id, **changes)
        plan = replace(plan, store=str(self.root / "store"))
        return LocalProcessSubstrate(self.state, orphan_deadline=None).launch_node(plan, secrets={})

    def look(self, **options: object) -> Findings:
        return scan_for_orphans(self.settings, **options)

    def kinds(self, **options: object) -> list[OrphanKind]:
        return [one.kind for one in self.look(**options).orphans]

    def clear(self, **options: object) -> list[str]:
        """Problems."""
        return [one.error for one in remove_all(self.look(**options)) if one.error]


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    settings = Settings(store=str(tmp_path / "store"), state_dir=tmp_path / "state")
    site = Site(tmp_path, settings, open_ledger(settings.store))
    yield site
    for folder in (site.state / "jobs").glob("*"):
        for handle in LocalProcessSubstrate(site.state).list_nodes(folder.name):
            handle.remove()


Start = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def start(site: Site) -> Iterator[Start]:
    """Starts a process with these variables and waits until its environment has them."""
    site.state.mkdir()
    found: list[subprocess.Popen[bytes]] = []

    def begin(*command: str, user: int | None = None, **variables: str) -> subprocess.Popen[bytes]:
        command = command or ("sleep", "300")
        process = subprocess.Popen(command, env={**os.environ, **variables}, user=user)
        found.append(process)
        value = next(iter(variables.values())).encode()
        wait_until(lambda: value in environ_of(process.pid))
        return process

    yield begin
    for process in found:
        process.kill()
        process.wait()


def flow_of(site: Site, job_id: str, **variables: str) -> dict[str, str]:
    """Return the variables of a process that runs the job."""
    here = {"PREFECT_BT_STATE_DIR": str(site.state), "PREFECT_BT_STORE": site.settings.store}
    return {FLOW_VARIABLE: job_id, **here, **variables}


def environ_of(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return b""
