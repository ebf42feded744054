"""States of a job and the legal transitions between them.

A retry reopens a job that did not complete, so FAILED, DEPLOY_FAILED and STOPPED can lead to
CREATED. What each state means: docs/compatibility.md, Job states and transitions.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final


class JobState(StrEnum):
    """State of a job. The first four are active, the others final."""

    PENDING = "TRAINING_JOB_PENDING"
    """The job waits in the queue, or for a worker of its Prefect deployment."""
    CREATED = "TRAINING_JOB_CREATED"
    """The job is accepted. Its weights are mirrored; no node exists yet."""
    DEPLOYING = "TRAINING_JOB_DEPLOYING"
    """The nodes start: images are pulled, files are staged."""
    RUNNING = "TRAINING_JOB_RUNNING"
    """The start commands run."""
    COMPLETED = "TRAINING_JOB_COMPLETED"
    """The commands succeeded and the final flush ended."""
    DEPLOY_FAILED = "TRAINING_JOB_DEPLOY_FAILED"
    """A configuration, a secret or an image is wrong."""
    FAILED = "TRAINING_JOB_FAILED"
    """The job failed for any other reason."""
    STOPPED = "TRAINING_JOB_STOPPED"
    """A user stopped the job."""

    @property
    def terminal(self) -> bool:
        return self in TERMINAL_STATES

    @property
    def failed(self) -> bool:
        return self in {JobState.FAILED, JobState.DEPLOY_FAILED}

    @property
    def short_name(self) -> str:
        """Return the state without its prefix, in lower case: `running`, `deploy_failed`."""
        return self.value.removeprefix("TRAINING_JOB_").lower()


TERMINAL_STATES: Final = frozenset(
    {JobState.COMPLETED, JobState.DEPLOY_FAILED, JobState.FAILED, JobState.STOPPED}
)
_FAILED_STATES: Final = TERMINAL_STATES - {JobState.COMPLETED}

TRANSITIONS: Final[dict[JobState, frozenset[JobState]]] = {
    JobState.PENDING: frozenset({JobState.CREATED}) | _FAILED_STATES,
    JobState.CREATED: frozenset({JobState.PENDING, JobState.DEPLOYING}) | _FAILED_STATES,
    JobState.DEPLOYING: frozenset({JobState.PENDING, JobState.CREATED, JobState.RUNNING})
    | _FAILED_STATES,
    JobState.RUNNING: frozenset(
        {JobState.PENDING, JobState.CREATED, JobState.DEPLOYING, JobState.COMPLETED}
    )
    | _FAILED_STATES,
    JobState.COMPLETED: frozenset(),
    JobState.FAILED: frozenset({JobState.CREATED}),
    JobState.DEPLOY_FAILED: frozenset({JobState.CREATED}),
    JobState.STOPPED: frozenset({JobState.CREATED}),
}
