"""Requests about a job and its nodes, in one folder of the store that the nodes' machines list.

<job>/nodes/requests/
    stop.json                 stop of the job; create-only, deleted by a retry
    preempt.json              a spot job must give up its place; create-only, deleted when the job
                              is back in the queue
    <attempt>-rank-<r>.json   to one node; replaced
    reader                    empty; replaced while a process reads the live logs
    owner                     empty; replaced while a flow runs the job

A node's machine acts by itself on a stop that no flow passes on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

READER: Final = "reader"
OWNER: Final = "owner"
STOP: Final = "stop.json"
PREEMPT: Final = "preempt.json"


@dataclass(frozen=True)
class StopRequest:
    """Request to end a job, or the commands of one of its nodes. Times in seconds."""

    reason: str = ""
    """Why a node is to end: a StopReason or a description; "" for none."""
    by: str = ""
    """Requester: a user, Prefect's cancellation, a signal; "" for a gang's own decision."""
    at: float = 0.0
    """When a job's stop was requested, in epoch seconds."""
    force: bool = False
    """Whether to send SIGKILL now. A later polite request does not replace a forced one."""
    grace: float | None = None
    """Seconds until the requester sends a forced request; None: the plan's."""
    unanswered: bool = False
    """Whether the agent did not react in time, and the requester killed it."""
    kill: str = ""
    """Unique ID of a request to kill the commands, after which the node flushes; "" for none."""


@dataclass(frozen=True)
class PendingRequests:
    """What one listing of the folder shows."""

    names: frozenset[str] = frozenset()
    ranks: frozenset[int] = frozenset()
    """Ranks of the attempt that have a request."""
    reader_mark: float = 0.0
    """Date of the last mark of a reader, by the store's clock; 0: there is none."""

    @property
    def stops_job(self) -> bool:
        return STOP in self.names
