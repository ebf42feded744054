"""A machine with a store, on which jobs have left things behind."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from prefect_bt.gc.collector import scan_for_orphans
from prefect_bt.gc.findings import Findings, OrphanKind, remove_all
from prefect_bt.host.nodes.handle import HostHandle
from prefect_bt.ledger.ledger import Ledger
from prefect_bt.ledger.open_ledger import open_ledger
from prefect_bt.ledger.records import JobRecord
from prefect_bt.ledger.states import JobState
from prefect_bt.settings import Settings
from prefect_bt.substrates.local.substrate import LocalProcessSubstrate
from tests.node_agent.rig import make_plan

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
        project = ledger.projects.ensure("p")
        job_id = ledger.reserve_job_id(project.id)
        record = JobRecord(
            id=job_id,
            name="job",
            project_id=project.id,
            project_name="p",
            created_at=time.time(),
            definition={},
            substrate="local",
        )
        ledger.write_job(record)
        path = {
            JobState.CREATED: (),
            JobState.RUNNING: (JobState.DEPLOYING, JobState.RUNNING),
            JobState.COMPLETED: (JobState.DEPLOYING, JobState.RUNNING, JobState.COMPLETED),
            JobState.FAILED: (JobState.FAILED,),
        }[state]
        for one in path:
            ledger.append_event(job_id, one)
        return job_id

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


def environ_of(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return b""
