"""Cause and remedy of a refusal by the API server, from its message. Pure.

RBAC, quotas and admission rules all answer 403; only the message differs (v1.20 to v1.36).
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from prefect_bt.ledger.records import Cause


class Refusal(NamedTuple):
    """A row of the table. `pattern`: regular expression for the message in lower case."""

    pattern: str
    cause: Cause
    remedy: str


_REFUSALS: Final = (
    Refusal(
        "exceeded quota",
        Cause.QUOTA_EXCEEDED,
        "Wait for other jobs to end, ask for less, or have the ResourceQuota raised.",
    ),
    Refusal(
        "status unknown for quota|insufficient quota to consume",
        Cause.QUOTA_EXCEEDED,
        "Wait until Kubernetes has counted what the ResourceQuota limits, or have it changed.",
    ),
    Refusal(
        "failed quota",
        Cause.QUOTA_EXCEEDED,
        "The quota requires limits of every pod: set enforce_limits in the Kubernetes Substrate "
        "block.",
    ),
    Refusal(
        "violates podsecurity",
        Cause.ADMISSION_DENIED,
        "Set run_as_user to a user other than root in the Kubernetes Substrate block, or use a "
        "namespace with the level `baseline`.",
    ),
    Refusal(
        "admission webhook",
        Cause.ADMISSION_DENIED,
        "Change what the message names, in the job or in the Kubernetes Substrate block.",
    ),
    Refusal(
        "no priorityclass",
        Cause.CONFIGURATION,
        "Correct priority_class in the Kubernetes Substrate block.",
    ),
    Refusal(
        "error looking up service account",
        Cause.CONFIGURATION,
        "Create the service account, or correct service_account in the Kubernetes Substrate block.",
    ),
    Refusal(
        'namespaces "[^"]*" not found',
        Cause.CONFIGURATION,
        "Create the namespace, or correct namespace in the Kubernetes Substrate block.",
    ),
    Refusal(
        "not yet ready to handle request",
        Cause.LAUNCH_FAILED,
        "The API server starts: the next attempt tries again.",
    ),
    Refusal(
        'is forbidden: user "',
        Cause.FORBIDDEN,
        "Apply deployments/kubernetes/rbac.yaml for the user of the kubeconfig.",
    ),
    Refusal(
        "is forbidden",
        Cause.ADMISSION_DENIED,
        "Change what the message names, in the job or in the Kubernetes Substrate block.",
    ),
    Refusal(
        "unauthorized",
        Cause.FORBIDDEN,
        "Log in to the cluster again: `kubectl get pods` should answer with the same kubeconfig.",
    ),
    Refusal(
        "must be less than or equal to",
        Cause.CONFIGURATION,
        "A LimitRange of the namespace limits each container: set enforce_limits in the Kubernetes "
        "Substrate block, ask for less, or have the LimitRange changed.",
    ),
)
_UNPROCESSABLE: Final = (400, 422)


def classify_refusal(message: str, status: int = 0) -> Refusal:
    """Return the first row that matches, else a row by the HTTP status."""
    text = message.lower()
    for row in _REFUSALS:
        if re.search(row.pattern, text):
            return row
    if status in _UNPROCESSABLE:
        return Refusal(
            "",
            Cause.CONFIGURATION,
            "Correct what the message names, in the definition or in the Kubernetes Substrate "
            "block.",
        )
    return Refusal("", Cause.LAUNCH_FAILED, "The next attempt tries again.")
