"""What a run of `train` was asked for, and the job that answers it.

One Prefect run is one job: asked again for the same run (a retry in the UI, a resume after a
crash), the same job is opened, never a second one made.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prefect_bt.attempts import JobSite
from prefect_bt.blocks import (
    LocalSubstrate,
    TrainingCompute,
    TrainingImage,
    TrainingSecrets,
    TrainingStore,
)
from prefect_bt.cli.prefect_api import SecretBlocks
from prefect_bt.definitions import (
    TrainingProject,
    load_training_project,
    training_project_from_json,
)
from prefect_bt.errors import DefinitionError
from prefect_bt.jobs import open_ledger
from prefect_bt.ledger import Ledger
from prefect_bt.records import JobRecord
from prefect_bt.secrets import EnvironmentSecrets, SecretSource
from prefect_bt.settings import Settings
from prefect_bt.submission import SubmitOptions, accept
from prefect_bt.substrates import open_substrate


@dataclass(frozen=True)
class JobRequest:
    """The parameters of `train`, as given."""

    config: str | None = None
    definition: dict[str, Any] | None = None
    job_id: str | None = None
    source_dir: str | None = None
    job_name: str | None = None
    retries: int | None = None
    image: TrainingImage | None = None
    compute: TrainingCompute | None = None
    secrets: TrainingSecrets | None = None
    store: TrainingStore | None = None
    substrate: LocalSubstrate | None = None

    def open(self, flow_run_id: str) -> JobSite:
        """The job of this run, accepted now unless that was done before."""
        ledger = self._ledger()
        known = self.job_id or ledger.job_of_run(flow_run_id)
        record = ledger.job(known) if known else self._accept(ledger)
        settings = self._settings()
        return JobSite(
            ledger,
            open_substrate(record.substrate, **settings.substrate_options()),
            record,
            settings=settings,
            secret_sources=self._secret_sources(),
        )

    def _accept(self, ledger: Ledger) -> JobRecord:
        project, folder = self._project()
        options = SubmitOptions(retries=self.retries, secret_sources=self._secret_sources())
        record, _ = accept(ledger, project, source_dir=folder, options=options)
        return record

    def _project(self) -> tuple[TrainingProject, Path]:
        if (self.config is None) == (self.definition is None):
            raise DefinitionError(
                "train needs exactly one of `config`, `definition` and `job_id`.",
                next_step="For example: train('examples/tiny-lm/config.py').",
            )
        if self.config is not None:
            path = Path(self.config).expanduser().absolute()
            project = load_training_project(path)
            folder = Path(self.source_dir) if self.source_dir else path.parent
        else:
            project = training_project_from_json(self.definition or {})
            folder = Path(self.source_dir or Path.cwd())
        return self._changed(project), folder.expanduser()

    def _changed(self, project: TrainingProject) -> TrainingProject:
        changes: dict[str, Any] = {}
        if self.job_name:
            changes["name"] = self.job_name
        if self.image:
            changes["image"] = self.image.build()
        if self.compute:
            changes["compute"] = self.compute.build()
        return project.model_copy(update={"job": project.job.model_copy(update=changes)})

    def _ledger(self) -> Ledger:
        return Ledger(self.store.build()) if self.store else open_ledger()

    def _settings(self) -> Settings:
        if self.substrate is None:
            return Settings()
        block = self.substrate
        return Settings(
            state_dir=block.folder,
            grace=block.grace_seconds,
            orphan_deadline=block.orphan_deadline_seconds,
        )

    def _secret_sources(self) -> tuple[SecretSource, ...]:
        given = (self.secrets.build(),) if self.secrets else ()
        return (*given, SecretBlocks(), EnvironmentSecrets())
