"""Errors of prefect_bt, in one tree.

PrefectBtError
├── UsageError               options that are missing or invalid, or exclude each other
├── DefinitionError          a config file, JSON document or object is not a valid definition
├── WorkspaceError           the workspace cannot be gathered, packed or unpacked
├── PlanError                a valid definition that cannot run here; all problems in one message
├── SecretError              a secret reference without a usable value
├── NotFoundError            a project, job or checkpoint that does not exist
├── AmbiguousError           a project name that several teams use
├── StateError               a request that the job's state does not allow
├── StoreError               an operation of the store failed
│   ├── ObjectNotFound       the object does not exist
│   ├── InvalidKey           no object can have this key
│   └── ObjectExists         a create-only write found the object; never retried blindly
├── SubstrateError           a node could not be launched, observed or stopped
│   └── ImageError           an image could not be pulled
├── IdentityError            a role or federated identity that this machine could not assume
├── CheckpointError          a checkpoint could not be committed, verified or restored
├── WeightsError             a weights source could not be resolved or mirrored
├── ServingError             a model that cannot be deployed, or does not answer
├── DrillError               a drill could not show whether the job resumes
├── MaxRunTimeError          a job's commands have used up the maximum run time
├── AttemptFailed            an attempt of the gang failed; `outcome` describes the attempt
└── ServerError              the Prefect API or a local server could not be used

A message says what happened and where, and ends with the next step. Facts that code needs are
attributes: no code of prefect_bt may decide by the text of a message.
"""

from __future__ import annotations

import copyreg
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, cast


@dataclass(eq=False, repr=False)
class PrefectBtError(Exception):
    """Base class of all errors: `message` says what happened, `next_step` what to do."""

    message: str
    next_step: str = field(default="", kw_only=True)

    def __post_init__(self) -> None:
        super().__init__(f"{self.message} {self.next_step}".rstrip())

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle without another call of `__init__`, which takes other arguments."""
        return cast("Any", copyreg).__newobj__, (type(self), *self.args), self.__dict__


class UsageError(PrefectBtError):
    """Options that exclude each other, are missing or invalid, or a question without an answer."""


@dataclass(eq=False, repr=False, kw_only=True)
class DefinitionError(PrefectBtError):
    """An invalid definition. `file`, `line`, `field` and `value` are None where unknown."""

    file: str | None = None
    line: int | None = None
    field: str | None = None
    value: object = None


@dataclass(eq=False, repr=False, kw_only=True)
class WorkspaceError(PrefectBtError):
    """The workspace cannot be packed or unpacked. `path` is the file, folder or archive member."""

    path: str | None = None


class PlanError(PrefectBtError):
    """A job that cannot run. `problems` has one sentence each, in the order of the definition."""

    def __init__(self, problems: Sequence[str], *, next_step: str = "") -> None:
        self.problems = tuple(problems)
        head = "This job cannot be planned:"
        body = "\n".join(f"  - {problem}" for problem in self.problems)
        super().__init__(f"{head}\n{body}", next_step=f"\n{next_step}" if next_step else "")


class SecretError(PrefectBtError):
    """Secrets that no source has, or whose values are unusable.

    `names` are all references, `looked_in` names the sources that lack the missing ones. `unusable`
    has the reason and the remedy for each value that no process can get.
    """

    def __init__(
        self,
        missing: Sequence[str],
        sources: Sequence[str],
        unusable: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.names, self.looked_in = (*missing, *unusable), tuple(sources)
        sentences, step = list[str](), ""
        if missing:
            listed = ", ".join(repr(name) for name in missing)
            noun = "Secret" if len(missing) == 1 else "Secrets"
            env = f"PREFECT_BT_SECRET_{_as_variable(missing[0])}"
            places = ", ".join(self.looked_in) or "nothing"
            sentences.append(f"{noun} {listed} not found; looked in {places}.")
            step = f"Save a Prefect Secret block of that name, or set {env}."
        sentences += [f"The value of secret {name!r} {why}." for name, why in unusable.items()]
        super().__init__(" ".join(sentences), next_step=step)


def _as_variable(name: str) -> str:
    return re.sub(r"\W", "_", name).upper()


class NotFoundError(PrefectBtError):
    """A missing object. `kind` is "project", "job" or "checkpoint"; `name` is its name."""

    def __init__(self, kind: str, name: str, *, next_step: str = "") -> None:
        self.kind, self.name = kind, name
        super().__init__(f"No {kind} {name!r} in this store.", next_step=next_step)


class AmbiguousError(PrefectBtError):
    """A name of several projects where one project is needed."""


@dataclass(eq=False, repr=False, kw_only=True)
class StateError(PrefectBtError):
    """A request that the job's state does not allow. `state` is that state."""

    state: str


@dataclass(eq=False, repr=False, kw_only=True)
class StoreError(PrefectBtError):
    """A failed operation of the store `url`. `key` is the object; empty if it is not known."""

    url: str = ""
    key: str = ""


class AcceptedJobError(StoreError):
    """A job was accepted, but its state cannot be read: the request must not be repeated."""


class ObjectNotFound(StoreError):
    """The store has no object `key`."""


class InvalidKey(StoreError):
    """A `key` that no object of the store can have."""


class ObjectExists(StoreError):
    """A create-only write found an object `key`."""


@dataclass(eq=False, repr=False, kw_only=True)
class SubstrateError(PrefectBtError):
    """A node could not be launched, observed or stopped. `substrate` is the substrate's name.

    `rank` is the node, None for the whole gang. `cause` is the value of a records.Cause, which
    decides whether a retry can help; empty if there is no particular cause.
    """

    substrate: str
    rank: int | None = None
    cause: str = ""


@dataclass(eq=False, repr=False, kw_only=True)
class ImageError(SubstrateError):
    """An image could not be pulled. `reference` is the definition's; `fault` a PullErrorKind."""

    substrate: str = "docker"
    reference: str
    fault: str


@dataclass(eq=False, repr=False, kw_only=True)
class IdentityError(PrefectBtError):
    """A role or identity that could not be assumed. If not `refused`, a retry can help."""

    refused: bool = True


@dataclass(eq=False, repr=False, kw_only=True)
class CheckpointError(PrefectBtError):
    """A checkpoint failed. `rank`, `path` and `cause` locate the fault; None or "" if unknown."""

    rank: int | None = None
    path: str | None = None
    cause: str = ""


@dataclass(eq=False, repr=False, kw_only=True)
class WeightsError(PrefectBtError):
    """A weights source could not be resolved or mirrored. `source` is the definition's URI."""

    source: str


@dataclass(eq=False, repr=False, kw_only=True)
class ServingError(PrefectBtError):
    """A model cannot be deployed or does not answer. `log_tail` has the server's last lines."""

    deployment: str = ""
    log_tail: Sequence[str] = ()


class DrillError(PrefectBtError):
    """The job ended before the drill could show whether it resumes."""


class MaxRunTimeError(PrefectBtError):
    """The commands of a job have used up its maximum run time."""


@dataclass(eq=False, repr=False, kw_only=True)
class AttemptFailed(PrefectBtError):
    """An attempt failed. `outcome` has its records.Outcome as JSON-ready values."""

    outcome: Mapping[str, Any]


class ServerError(PrefectBtError):
    """The Prefect API, a deployment or a local server could not be used."""
