"""States of a job and the legal transitions between them.

A retry reopens a job that did not complete, so FAILED, DEPLOY_FAILED and STOPPED can lead to
CREATED. What each state means: docs/compatibility.md, Job states and transitions.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final


class JobState(StrEnum):
    PENDING = "TRAINING_JOB_PENDING"
    CREATED = "TRAINING_JOB_CREATED"
    DEPLOYING = "TRAINING_JOB_DEPLOYING"
    RUNNING = "TRAINING_JOB_RUNNING"
    COMPLETED = "TRAINING_JOB_COMPLETED"
    DEPLOY_FAILED = "TRAINING_JOB_DEPLOY_FAILED"
    FAILED = "TRAINING_JOB_FAILED"
    STOPPED = "TRAINING_JOB_STOPPED"

    @property
    def terminal(self) -> bool:
        return self in TERMINAL_STATES

    @property
    def short_name(self) -> str:
        """The word without its prefix, lower case: `running`, `deploy_failed`."""
        return self.value.removeprefix("TRAINING_JOB_").lower()


TERMINAL_STATES: Final = frozenset(
    {JobState.COMPLETED, JobState.DEPLOY_FAILED, JobState.FAILED, JobState.STOPPED}
)


_FAILED_STATES: Final = frozenset({JobState.FAILED, JobState.DEPLOY_FAILED, JobState.STOPPED})


TRANSITIONS: Final[dict[JobState, frozenset[JobState]]] = {
    JobState.PENDING: frozenset({JobState.CREATED}) | _FAILED_STATES,
    JobState.CREATED: frozenset({JobState.DEPLOYING}) | _FAILED_STATES,
    JobState.DEPLOYING: frozenset({JobState.RUNNING, JobState.CREATED}) | _FAILED_STATES,
    JobState.RUNNING: frozenset({JobState.COMPLETED, JobState.CREATED, JobState.DEPLOYING})
    | _FAILED_STATES,
    JobState.COMPLETED: frozenset(),
    JobState.FAILED: frozenset({JobState.CREATED}),
    JobState.DEPLOY_FAILED: frozenset({JobState.CREATED}),
    JobState.STOPPED: frozenset({JobState.CREATED}),
}
