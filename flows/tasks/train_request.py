"""The request of a run of `train`, and the job that answers it.

One Prefect run is one job: the same run (after a retry in the UI or a crash) opens the same job
again.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final, TypeVar, cast

from prefect.blocks.core import Block
from prefect.context import FlowRunContext

from prefect_bt.attempts.job_context import JobContext, open_job_context
from prefect_bt.blocks import (
    DockerSubstrate,
    KubernetesSubstrate,
    LocalSubstrate,
    TrainingCompute,
    TrainingImage,
    TrainingSecrets,
    TrainingStore,
)
from prefect_bt.credentials.secrets import SecretSource
from prefect_bt.definitions import (
    TrainingProject,
    load_training_project,
    training_project_from_json,
)
from prefect_bt.definitions.variable_overrides import check_variables, override_variables
from prefect_bt.errors import DefinitionError, PrefectBtError, StateError
from prefect_bt.host.job_lock import JobLock, host_id
from prefect_bt.jobs.options import SubmitOptions
from prefect_bt.jobs.stale_nodes import shut_down_stale_nodes
from prefect_bt.jobs.starting.launcher import default_secret_sources
from prefect_bt.jobs.submit import create_job
from prefect_bt.ledger.creation import check_creates_once
from prefect_bt.ledger.ledger import Ledger
from prefect_bt.ledger.open_ledger import open_ledger
from prefect_bt.ledger.parent_calls import ParentCall
from prefect_bt.ledger.records import JobRecord
from prefect_bt.ledger.states import JobState
from prefect_bt.serving.deployment_records import DeploymentLedger
from prefect_bt.settings import Settings
from prefect_bt.substrates import SUBSTRATES

B = TypeVar("B", bound=Block)

AnySubstrateBlock = LocalSubstrate | DockerSubstrate | KubernetesSubstrate
SubstrateChoice = AnySubstrateBlock | str | None
"""A block, its name, or the name of a substrate, with the settings of the process."""
_SUBSTRATE_BLOCKS: Final[dict[str, type[AnySubstrateBlock]]] = {
    kind.get_block_type_slug(): kind
    for kind in (LocalSubstrate, DockerSubstrate, KubernetesSubstrate)
}


@dataclass(frozen=True)
class JobRequest:
    """The parameters of `train`, as given."""

    config: str | None = None
    definition: dict[str, Any] | None = None
    job_id: str | None = None
    source_dir: str | None = None
    job_name: str | None = None
    env: dict[str, str] | None = None
    image: TrainingImage | None = None
    compute: TrainingCompute | None = None
    secrets: TrainingSecrets | None = None
    store: TrainingStore | None = None
    substrate: SubstrateChoice = None
    options: SubmitOptions | None = None
    """Options of a new job; its substrate and secrets come from the blocks above."""

    def open(self, flow_run_id: str, call: ParentCall | None = None) -> JobContext:
        """Open the job of this run or of this `call` of a parent; accept it if there is none.

        The process owns the job before it exists (JobSite.claim), so no other process recovers it
        meanwhile, and a death of this process at any point is noticed.
        """
        if self.job_id and self.env:
            raise DefinitionError(
                "`env` is for a new job; `job_id` names one that exists.",
                next_step=f"Change its variables: prefect-bt retry --job-id {self.job_id} --env …",
                field="env",
            )
        ledger, settings = self.ledger(), self.settings()
        check_creates_once(ledger.store, settings.state_dir)
        claim = JobLock(settings.state_dir)
        known = self.job_id or ledger.runs.find_job(flow_run_id) or (call and call.job_id)
        epoch, notes = 0, tuple[str, ...]()
        try:
            if known:
                record = ledger.get_job(known)
            else:
                record, notes = self._accept(ledger, claim, only_here=not _is_deployed(call))
                if call:
                    call.bind(ledger, record)
            if known:
                claim.acquire(known)
            if ledger.get_state(record.id) is not JobState.COMPLETED:  # then it is only shown
                epoch = ledger.claim(record.id, host_id(settings.state_dir))
            claim.write_store_url(ledger.store.url)
            secrets = (*_serving_secrets(ledger, record), *self.secret_sources())
            site = open_job_context(ledger, record, settings=settings, secret_sources=secrets)
        except StateError:
            if known and claim.descriptor is not None:  # not another process's of this machine
                shut_down_stale_nodes(ledger, ledger.get_job(known), settings=settings)
            claim.release_and_remove()  # what another machine runs is not left behind here
            raise
        except BaseException:
            with suppress(PrefectBtError):
                ledger.get_epochs(claim.job_id).release_unused(epoch)
            claim.release() if known else claim.release_and_remove()
            raise
        site.lock, site.epoch, site.notes = claim, epoch, notes
        return site

    @property
    def fingerprint(self) -> dict[str, Any]:
        """Return the request, JSON-ready and without secrets: equal for equal requests."""
        blocks = (self.image, self.compute, self.store, self._substrate_block)
        options = self.options or SubmitOptions(substrate="")
        names = ("config", "definition", "source_dir", "job_name")
        limits = ("retries", "keep_last", "keep_every", "max_run_time")
        chosen = self.substrate if isinstance(self.substrate, str) else ""
        return {
            **{name: getattr(self, name) for name in names},
            "substrate": chosen,
            "blocks": [block and block.model_dump(mode="json") for block in blocks],
            "options": {name: getattr(options, name) for name in limits},
            **({"env": self.env} if self.env else {}),
            "retry_policy": repr(options.retry_policy),
        }

    def _accept(
        self, ledger: Ledger, claim: JobLock, *, only_here: bool
    ) -> tuple[JobRecord, tuple[str, ...]]:
        """Return the new job, and the notes of its plan."""
        project, folder = self._project()
        options = replace(
            self.options or SubmitOptions(),
            substrate=self.settings().substrate,
            secret_sources=self.secret_sources(),
        )
        record, plan = create_job(
            ledger, project, source_dir=folder, options=options, lock=claim, only_here=only_here
        )
        return record, plan.notes

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
        changes = {
            "name": self.job_name,
            "image": self.image and self.image.build(),
            "compute": self.compute and self.compute.build(),
        }
        given = {name: value for name, value in changes.items() if value}
        job = project.job.model_copy(update=given)
        project = project.model_copy(update={"job": job})
        return override_variables(project, check_variables(self.env or {})), folder.expanduser()

    @classmethod
    def from_run_parameters(cls, parameters: Mapping[str, Any]) -> JobRequest:
        """Read from the stored parameters of a run where its job is kept and run."""
        return cls(
            store=_block(TrainingStore, parameters.get("store")),
            substrate=_substrate(parameters.get("substrate")),
        )

    def ledger(self) -> Ledger:
        """Return the records of the requested store."""
        return Ledger(self.store.build()) if self.store else open_ledger()

    def settings(self) -> Settings:
        """Return this process's settings, overridden by the substrate's block."""
        block = self._substrate_block
        if block is None:
            return Settings(substrate=str(self.substrate)) if self.substrate else Settings()
        return block.settings()

    @cached_property
    def _substrate_block(self) -> AnySubstrateBlock | None:
        """Return the substrate's block, loaded if given by name; DefinitionError if unknown."""
        given = self.substrate
        if not isinstance(given, str):
            return given
        if given in SUBSTRATES:
            return None
        kinds = _SUBSTRATE_BLOCKS
        slug, _, name = given.rpartition("/")
        for kind in [kinds[slug]] if slug in kinds else kinds.values():
            with suppress(ValueError):
                return kind.load(name)
        raise DefinitionError(
            f"There is no substrate block named {given!r}.",
            next_step=f"Save one under that name, or use {' or '.join(SUBSTRATES)}.",
            field="substrate",
            value=given,
        )

    def secret_sources(self) -> tuple[SecretSource, ...]:
        """Return the sources of secrets: the given block, then the default sources."""
        given = (self.secrets.build(),) if self.secrets else ()
        return (*given, *default_secret_sources())


def _is_deployed(call: ParentCall | None) -> bool:
    """Return whether the run can be suspended, so that another machine runs its job.

    `call`: of a parent, which waits for the run in its own process.
    """
    context = FlowRunContext.get()
    run = context.flow_run if context else None
    return call is None and bool(run and run.deployment_id)


def _serving_secrets(ledger: Ledger, record: JobRecord) -> tuple[SecretSource, ...]:
    """Return the secrets of the block that a serving revision was deployed with."""
    if record.serving is None:
        return ()
    serving = record.serving
    revision = DeploymentLedger(ledger).get_revision(serving.deployment, serving.revision)
    with suppress(ValueError):  # the block was deleted: the secrets are looked up elsewhere
        if revision.secrets_block:
            return (TrainingSecrets.load(revision.secrets_block).build(),)
    return ()


def _substrate(value: object) -> SubstrateChoice:
    """Return the substrate as a document: the reference of a block, or the type of a value."""
    if isinstance(value, str):
        return value
    if not isinstance(value, dict):
        return None
    given = cast("dict[str, Any]", value)
    if "$ref" in given:
        return cast("AnySubstrateBlock | None", _block(Block, given))
    slug = str(given.get("block_type_slug"))
    return _block(_SUBSTRATE_BLOCKS.get(slug, LocalSubstrate), given)


def _block(kind: type[B], value: object) -> B | None:
    """Return a block parameter as the API stores it: by reference, by value, or None."""
    if not isinstance(value, dict):
        return None
    given = cast("dict[str, Any]", value)
    if "$ref" in given:
        loader: Any = kind  # the stubs do not know _sync
        return cast("B", loader.load_from_ref(given["$ref"], _sync=True))
    return kind.model_validate(given)
