"""Every error prefect_bt raises, as one tree.

PrefectBtError
├── DefinitionError          a config file, JSON document or object that is no valid definition
├── WorkspaceError           the user's folder cannot be gathered, packed or unpacked
├── PlanError                a valid definition that cannot run as asked: one message for all
├── SecretError              a secret reference that nothing answers
├── NotFoundError            a project, job or checkpoint that does not exist
├── AmbiguousError           a project name that several teams use
├── StateError               a request that the job's present state does not allow
├── StoreError               the store did not do what was asked
│   ├── ObjectNotFound
│   └── ObjectExists         a create-only write lost; never retried blindly
├── SubstrateError           a node could not be launched, observed or stopped
│   └── ImageError           an image could not be brought to the Docker Engine
├── IdentityError            a role or federated identity that this machine could not take on
├── CheckpointError          a checkpoint could not be committed, verified or restored
├── WeightsError             a weights source could not be resolved or mirrored
├── ServingError             a model that cannot be deployed, or does not answer
├── MaxRunTimeError          a job's commands have run as long as they may
├── AttemptFailed            an attempt of the gang ended badly; carries its outcome
└── ServerError              the Prefect API or a local server could not be used

A message says what happened and where, and ends with the next step. Facts that code decides on are
attributes: nothing in prefect_bt may decide by message text.
"""

from __future__ import annotations

import copyreg
import re
from collections.abc import Mapping, Sequence
from typing import Any, cast


class PrefectBtError(Exception):
    """What happened, in one sentence, and what to do next."""

    def __init__(self, message: str, *, next_step: str = "") -> None:
        self.message = message
        self.next_step = next_step
        super().__init__(f"{message} {next_step}".rstrip())

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle without another call of `__init__`, which takes other arguments."""
        return cast("Any", copyreg).__newobj__, (type(self), *self.args), self.__dict__


class DefinitionError(PrefectBtError):
    """`file`, `line`, `field` and `value` are None where they are not known."""

    def __init__(
        self,
        message: str,
        *,
        next_step: str = "",
        file: str | None = None,
        line: int | None = None,
        field: str | None = None,
        value: object = None,
    ) -> None:
        self.file, self.line, self.field, self.value = file, line, field, value
        super().__init__(message, next_step=next_step)


class WorkspaceError(PrefectBtError):
    """`path` is the offending file, folder or archive member."""

    def __init__(self, message: str, *, next_step: str = "", path: str | None = None) -> None:
        self.path = path
        super().__init__(message, next_step=next_step)


class PlanError(PrefectBtError):
    """`problems`: one sentence each, in the order of the definition's fields."""

    def __init__(self, problems: Sequence[str], *, next_step: str = "") -> None:
        self.problems = tuple(problems)
        head = "This job cannot be planned:"
        body = "\n".join(f"  - {problem}" for problem in self.problems)
        super().__init__(f"{head}\n{body}", next_step=f"\n{next_step}" if next_step else "")


class SecretError(PrefectBtError):
    """`names` are references, never values; `looked_in` says where each was looked for."""

    def __init__(self, names: Sequence[str], sources: Sequence[str]) -> None:
        self.names, self.looked_in = tuple(names), tuple(sources)
        listed = ", ".join(repr(name) for name in self.names)
        noun = "Secret" if len(self.names) == 1 else "Secrets"
        env = f"PREFECT_BT_SECRET_{_as_variable(self.names[0])}" if self.names else ""
        super().__init__(
            f"{noun} {listed} not found; looked in {', '.join(self.looked_in) or 'nothing'}.",
            next_step=f"Save a Prefect Secret block of that name, or set {env}.",
        )


def _as_variable(name: str) -> str:
    return re.sub(r"\W", "_", name).upper()


class NotFoundError(PrefectBtError):
    """`kind` is "project", "job" or "checkpoint"; `name` is what was asked for."""

    def __init__(self, kind: str, name: str, *, next_step: str = "") -> None:
        self.kind, self.name = kind, name
        super().__init__(f"No {kind} {name!r} in this store.", next_step=next_step)


class AmbiguousError(PrefectBtError):
    """A name that means several projects, where one is needed."""


class StateError(PrefectBtError):
    """`state` is the job's present state."""

    def __init__(self, message: str, *, state: str, next_step: str = "") -> None:
        self.state = state
        super().__init__(message, next_step=next_step)


class StoreError(PrefectBtError):
    """`url` names the store, `key` the object (empty when no single one is meant)."""

    def __init__(self, message: str, *, url: str = "", key: str = "", next_step: str = "") -> None:
        self.url, self.key = url, key
        super().__init__(message, next_step=next_step)


class ObjectNotFound(StoreError):
    """Nothing is stored under `key`."""


class ObjectExists(StoreError):
    """A create-only write found `key` taken."""


class SubstrateError(PrefectBtError):
    """`substrate` is its table name; `rank` the node, None when the whole gang is meant.

    `cause` is the records.Cause that goes with it, by value, which decides whether a retry can
    help; empty where there is none in particular.
    """

    def __init__(
        self,
        message: str,
        *,
        substrate: str,
        rank: int | None = None,
        next_step: str = "",
        cause: str = "",
    ) -> None:
        self.substrate, self.rank, self.cause = substrate, rank, cause
        super().__init__(message, next_step=next_step)


class ImageError(SubstrateError):
    """`reference` as in the definition; `fault` is the value of a registries PullErrorKind."""

    def __init__(
        self,
        message: str,
        *,
        reference: str,
        fault: str,
        cause: str,
        substrate: str = "docker",
        rank: int | None = None,
        next_step: str = "",
    ) -> None:
        self.reference, self.fault = reference, fault
        super().__init__(message, substrate=substrate, rank=rank, next_step=next_step, cause=cause)


class IdentityError(PrefectBtError):
    """`refused`: somebody said no, or nothing is there to ask with; else it may go well later."""

    def __init__(self, message: str, *, next_step: str = "", refused: bool = True) -> None:
        self.refused = refused
        super().__init__(message, next_step=next_step)


class CheckpointError(PrefectBtError):
    """`rank`, `path` and `cause` locate the fault; None or empty where unknown."""

    def __init__(
        self,
        message: str,
        *,
        next_step: str = "",
        rank: int | None = None,
        path: str | None = None,
        cause: str = "",
    ) -> None:
        self.rank, self.path, self.cause = rank, path, cause
        super().__init__(message, next_step=next_step)


class WeightsError(PrefectBtError):
    """`source` is the URI as the definition spells it."""

    def __init__(self, message: str, *, source: str, next_step: str = "") -> None:
        self.source = source
        super().__init__(message, next_step=next_step)


class ServingError(PrefectBtError):
    """`deployment` is its name; `log_tail` the last lines of the server that did not answer."""

    def __init__(
        self,
        message: str,
        *,
        next_step: str = "",
        deployment: str = "",
        log_tail: Sequence[str] = (),
    ) -> None:
        self.deployment, self.log_tail = deployment, tuple(log_tail)
        super().__init__(message, next_step=next_step)


class MaxRunTimeError(PrefectBtError):
    """Nothing is left of a job's maximum run time."""


class AttemptFailed(PrefectBtError):
    """`outcome` is the attempt's outcome as JSON-ready values (see records.Outcome)."""

    def __init__(self, message: str, *, outcome: Mapping[str, Any], next_step: str = "") -> None:
        self.outcome = dict(outcome)
        super().__init__(message, next_step=next_step)


class ServerError(PrefectBtError):
    """The Prefect API, a deployment or a local server could not be used."""
