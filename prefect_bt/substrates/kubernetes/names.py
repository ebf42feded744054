"""Names and labels of the objects of an attempt in the cluster."""

from __future__ import annotations

from hashlib import sha256
from typing import Final

from prefect_bt.planning.plan import GangPlan

LABEL_JOB: Final = "prefect-bt/job-id"
LABEL_ATTEMPT: Final = "prefect-bt/attempt"
LABEL_PROJECT: Final = "prefect-bt/project-id"
LABEL_STORE: Final = "prefect-bt/store"
"""Label that identifies the job's store; gc selects Jobs by it."""
LABEL_QUEUE: Final = "kueue.x-k8s.io/queue-name"
MANAGED_BY: Final = "app.kubernetes.io/managed-by"
INDEX_ANNOTATION: Final = "batch.kubernetes.io/job-completion-index"
JOB_NAME_LABEL: Final = "batch.kubernetes.io/job-name"
AGENT: Final = "agent"
COMMANDS: Final = "commands"
STAGING: Final = "weights"
"""Name of the init container of jobs with weights."""
CACHE_CLAIM: Final = "prefect-bt-cache"


def gang_name(job_id: str, attempt: int) -> str:
    """Return the name of the attempt's Job, of its Service and of its Secret.

    >>> gang_name("abc1234", 0)
    'prefect-bt-abc1234-0'
    """
    return f"prefect-bt-{job_id}-{attempt}"


def host_name(job_id: str, attempt: int, rank: int) -> str:
    """Return the DNS name of a rank's pod in its namespace, ready or not.

    >>> host_name("abc1234", 0, 1)
    'prefect-bt-abc1234-0-1.prefect-bt-abc1234-0'
    """
    name = gang_name(job_id, attempt)
    return f"{name}-{rank}.{name}"


def render_labels(gang: GangPlan) -> dict[str, str]:
    """Return the labels of every object of the attempt."""
    return {
        MANAGED_BY: "prefect-bt",
        LABEL_JOB: gang.job_id,
        LABEL_ATTEMPT: str(gang.attempt),
        LABEL_PROJECT: gang.project_id,
        LABEL_STORE: store_label(gang.nodes[0].store),
    }


def store_label(url: str) -> str:
    """Return the value of LABEL_STORE for a store.

    >>> store_label("s3://bucket/prefix")
    '9737a7d8f5fcd8b8'
    """
    return sha256(url.rstrip("/").encode()).hexdigest()[:16]
