"""Records of serving deployments in the store: names, revisions, and which one serves.

    deployments/<quoted name>/
        deployment.json             constant facts
        revisions/<n>/revision.json content of revision n
        revisions/<n>/job.json      the job that runs the revision
        verdicts/<n>-<attempt>.json whether that attempt of the job is ready, and why not
        moves/<seq>.json            changes of the desired revision, in order

All records are created once and never changed, so two processes never share a number. The desired
revision replaces the serving one when it is ready. Revision 0 means that the deployment is stopped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeVar

from prefect_bt import codec
from prefect_bt.errors import NotFoundError, ObjectNotFound
from prefect_bt.ledger.creation import create_object, new_nonce
from prefect_bt.ledger.ledger import Ledger
from prefect_bt.object_keys import quote_name
from prefect_bt.serving.curl_example import CHAT

T = TypeVar("T")

NO_REVISION: Final = 0
"""Desired revision of a deployment that is stopped."""


@dataclass(frozen=True)
class Deployment:
    name: str
    created_at: float


@dataclass(frozen=True)
class Revision:
    """Models that one server serves. `models` are their names in requests.

    `patience` limits the seconds between the start of the server's process and its first answer.
    `gate` is the document of the test before promotion (rollout.acceptance_gate); None: no test.
    `key_secret` is the secret that clients send as the API key; "": no key.
    """

    number: int
    at: float
    engine: str
    kind: str
    models: tuple[str, ...]
    checkpoints: tuple[tuple[str, str], ...]
    """(training job, checkpoint) of each model."""
    base_model: str = ""
    base_checkpoint: tuple[str, str] | None = None
    """(training job, checkpoint) of the base model; None: it is not a checkpoint."""
    patience: float = 1800.0
    gate: dict[str, Any] | None = None
    by: str = ""
    key_secret: str = ""
    secrets_block: str = ""
    """Training Secrets block that has precedence when the server's secrets are looked up."""
    nonce: str = field(default="", compare=False)

    @property
    def required_checkpoints(self) -> tuple[tuple[str, str], ...]:
        """Return (training job, checkpoint) of all checkpoints that the revision needs."""
        return (*self.checkpoints, *((self.base_checkpoint,) if self.base_checkpoint else ()))


@dataclass(frozen=True)
class ReadinessVerdict:
    """Whether an attempt of a revision's job became ready.

    `way` is the endpoint of its models, as in serving.curl_example.
    """

    revision: int
    attempt: int
    ready: bool
    sentence: str
    at: float
    way: str = CHAT


@dataclass(frozen=True)
class DesiredRevision:
    """Request, made at the time `at`, that `revision` serves when it is ready."""

    revision: int
    at: float
    why: str
    by: str = ""
    nonce: str = field(default="", compare=False)


@dataclass(frozen=True)
class _RevisionJob:
    job_id: str


class DeploymentLedger:
    """Reader and writer of the records. Unknown names and revisions raise NotFoundError."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger, self.store = ledger, ledger.store
        self._cached_records: dict[str, bytes] = {}

    def ensure_deployment(self, name: str) -> Deployment:
        """Return the deployment of that name; create it if it does not exist."""
        deployment = Deployment(name, self.ledger.now())
        create_object(self.store, f"{_prefix(name)}/deployment.json", deployment)
        return self.get_deployment(name)

    def get_deployment(self, name: str) -> Deployment:
        try:
            return self._read(Deployment, f"{_prefix(name)}/deployment.json")
        except ObjectNotFound:
            known = ", ".join(one.name for one in self.list_deployments()) or "none"
            raise NotFoundError(
                "deployment", name, next_step=f"Deployments of this store: {known}."
            ) from None

    def list_deployments(self) -> list[Deployment]:
        """Return all deployments, oldest first."""
        found = [
            self._read(Deployment, info.key)
            for info in self.store.list("deployments")
            if info.key.endswith("/deployment.json") and info.key.count("/") == 2
        ]
        return sorted(found, key=lambda one: (one.created_at, one.name))

    # -- revisions --------------------------------------------------------------------------

    def add_revision(self, name: str, create: Callable[[int], Revision]) -> Revision:
        """Create and return the next revision; `create` gets its number."""
        while True:
            taken = self.list_revisions(name)
            revision = create(taken[-1].number + 1 if taken else 1)
            revision = replace(revision, nonce=new_nonce())
            key = f"{_revision(name, revision.number)}/revision.json"
            if create_object(self.store, key, revision):
                return revision

    def list_revisions(self, name: str) -> list[Revision]:
        """Return the revisions in the order of their numbers."""
        return list(self._iter_records(Revision, f"{_prefix(name)}/revisions", "/revision.json"))

    def get_key_secret(self, name: str) -> str:
        """Return the key secret of the newest revision; "" for no key."""
        revisions = self.list_revisions(name)
        return revisions[-1].key_secret if revisions else ""

    def get_revision(self, name: str, number: int) -> Revision:
        try:
            return self._read(Revision, f"{_revision(name, number)}/revision.json")
        except ObjectNotFound:
            known = ", ".join(str(one.number) for one in self.list_revisions(name)) or "none"
            raise NotFoundError(
                "revision", f"{number} of deployment {name}", next_step=f"There are: {known}."
            ) from None

    def bind_job(self, name: str, number: int, job_id: str) -> None:
        """Record the job of a revision. Idempotent."""
        create_object(self.store, f"{_revision(name, number)}/job.json", _RevisionJob(job_id))

    def find_job_id(self, name: str, number: int) -> str:
        """Return the ID of the revision's job; "" before it was submitted."""
        try:
            return self._read(_RevisionJob, f"{_revision(name, number)}/job.json").job_id
        except ObjectNotFound:
            return ""

    # -- verdicts and desired revisions ------------------------------------------------------

    def record_verdict(self, name: str, verdict: ReadinessVerdict) -> ReadinessVerdict:
        """Record a verdict. Return the attempt's first verdict, which is never replaced."""
        key = f"{_prefix(name)}/verdicts/{verdict.revision:06d}-{verdict.attempt:04d}.json"
        create_object(self.store, key, verdict)
        return self._read(ReadinessVerdict, key)

    def list_verdicts(self, name: str, number: int) -> list[ReadinessVerdict]:
        """Return the verdicts of a revision in the order of its attempts."""
        found = self._iter_records(ReadinessVerdict, f"{_prefix(name)}/verdicts", ".json")
        return [one for one in found if one.revision == number]

    def was_ready(self, name: str, number: int) -> bool:
        """Return whether the revision was ever ready."""
        return any(one.ready for one in self.list_verdicts(name, number))

    def set_desired_revision(
        self, name: str, number: int, *, why: str, by: str = ""
    ) -> DesiredRevision:
        """Make revision `number` the desired one."""
        while True:
            move = DesiredRevision(number, self.ledger.now(), why, by, nonce=new_nonce())
            if create_object(
                self.store,
                f"{_prefix(name)}/moves/{len(self.list_desired_revisions(name)):06d}.json",
                move,
            ):
                return move

    def list_desired_revisions(self, name: str) -> list[DesiredRevision]:
        """Return all desired revisions, oldest first."""
        return list(self._iter_records(DesiredRevision, f"{_prefix(name)}/moves", ".json"))

    def get_desired_revision(self, name: str) -> int:
        """Return the desired revision; NO_REVISION before the first, or after a stop."""
        moves = self.list_desired_revisions(name)
        return moves[-1].revision if moves else NO_REVISION

    # -- inside -----------------------------------------------------------------------------

    def _iter_records(self, kind: type[T], prefix: str, ending: str) -> Iterator[T]:
        for info in self.store.list(prefix):
            if info.key.endswith(ending):
                yield self._read(kind, info.key)

    def _read(self, kind: type[T], key: str) -> T:
        """Read a record, from the store only once, because a watch reads as long as it serves."""
        if key not in self._cached_records:
            self._cached_records[key] = self.store.get(key)
        return codec.loads(kind, self._cached_records[key])


def _prefix(name: str) -> str:
    return f"deployments/{quote_name(name)}"


def _revision(name: str, number: int) -> str:
    return f"{_prefix(name)}/revisions/{number:06d}"
