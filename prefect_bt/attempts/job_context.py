"""A job in the process that runs its attempts."""

from __future__ import annotations

from collections.abc import Sequence

from prefect_bt.credentials.secrets import SecretSource
from prefect_bt.host.job_lock import JobLock
from prefect_bt.ledger.ledger import Ledger
from prefect_bt.ledger.open_ledger import load_current_definition
from prefect_bt.ledger.records import JobRecord
from prefect_bt.settings import Settings
from prefect_bt.substrates import open_substrate
from prefect_bt.substrates.protocol import Substrate


class JobContext:
    """A job, its records and its substrate, for one process."""

    def __init__(
        self,
        ledger: Ledger,
        substrate: Substrate,
        record: JobRecord,
        *,
        settings: Settings,
        secret_sources: Sequence[SecretSource] = (),
    ) -> None:
        self.ledger, self.substrate, self.record = ledger, substrate, record
        self.settings, self.secret_sources = settings, tuple(secret_sources)
        self.lock = JobLock(settings.state_dir)
        """The job's lock, for whoever runs the job; nothing is claimed in those who look at it."""
        self.project = load_current_definition(ledger, record)
        self.holds: list[str] = []
        """Keys of what says that this job needs checkpoints of others."""
        self.notes: tuple[str, ...] = ()
        """Notes of the plan, if this process accepted the job."""
        self.epoch = 0
        """Epoch in which this process acts for the job (fencing_epochs); 0 if it only reads."""
        self.parent_run_ids: tuple[str, ...] = ()
        """Prefect runs above this job's, whose cancellation stops it."""
        self.resumed = False
        """Whether this process takes up a job that another was running when it died."""

    @property
    def job_id(self) -> str:
        return self.record.id

    @property
    def team(self) -> str:
        """Return the team that owns the job's project."""
        return self.ledger.projects.get_team(self.record.project_id)

    @property
    def checkpointing(self) -> bool:
        return self.project.job.runtime.checkpointing_config.enabled


def open_job_context(
    ledger: Ledger,
    record: JobRecord,
    *,
    settings: Settings | None = None,
    secret_sources: Sequence[SecretSource] = (),
) -> JobContext:
    """Return the job with its substrate."""
    settings = settings or Settings()
    options = settings.substrate_options(record.substrate, store=ledger.store.url)
    substrate = open_substrate(record.substrate, **options)
    return JobContext(ledger, substrate, record, settings=settings, secret_sources=secret_sources)
