"""Problems that the events of a Job and of its pods report. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from prefect_bt.ledger.records import Cause
from prefect_bt.substrates.kubernetes.json_merge import Json
from prefect_bt.substrates.kubernetes.pods.pod_states import Problem, format_line
from prefect_bt.substrates.kubernetes.pods.waiting_message import normalize_message
from prefect_bt.substrates.kubernetes.refusals import classify_refusal

_HARMLESS: Final = frozenset(
    {
        "AlreadyMountedVolume",
        "DNSConfigForming",
        "FailedScheduling",  # a condition of the pod has the reason
        "FailedToRetrieveImagePullSecret",  # a refused pull is in the pod's status
        "MissingClusterDNS",
        "PossibleMemoryBackedVolumesOnDisk",
        "VolumePermissionChangeInProgress",
    }
)
"""Reasons of warnings about pods that do start."""
_VAGUE: Final = re.compile("timed out waiting for the condition|context deadline exceeded")
_DENIED: Final = re.compile(
    "violates podsecurity|denied (the )?request|"
    "unable to validate against any security context constraint"
)
"""Refusals that depend on the pod alone. Quotas become free; a webhook that fails may recover."""
_DENIALS: Final = 2
"""Refused pods after which the Job cannot succeed."""


def read_pod_warnings(events: Sequence[Json]) -> dict[str, tuple[Problem, ...]]:
    """Return the warnings by the name of their pod, each kind of message once; the newest is last.

    A warning that only says that time was up is left out if another one says why.
    """
    warnings: dict[str, dict[str, str]] = {}
    for event in sorted(events, key=_event_time):
        if event.get("reason") not in _HARMLESS:
            message = format_line(event.get("message"))
            kinds = warnings.setdefault(str(event["involvedObject"]["name"]), {})
            first = kinds.pop(kind := normalize_message(message), message)
            kinds[kind] = first
    return {name: _choose_warnings(list(kinds.values())) for name, kinds in warnings.items()}


def _choose_warnings(messages: list[str]) -> tuple[Problem, ...]:
    clear = [message for message in messages if not _VAGUE.search(message)]
    return tuple(Problem(Cause.LAUNCH_FAILED, message) for message in clear or messages)


def read_failed_creation(events: Sequence[Json]) -> Problem | None:
    """Return the newest problem of a Job whose pods could not be created."""
    failed = [event for event in events if event.get("reason") == "FailedCreate"]
    if not failed:
        return None
    message = _read_refusal(max(failed, key=_event_time))
    refusal = classify_refusal(message)
    if not _DENIED.search(message.lower()):
        return Problem(refusal.cause, message)
    denials = sum(
        int(event.get("count") or 1)
        for event in failed
        if _DENIED.search(_read_refusal(event).lower())
    )
    what = f"{message}. {refusal.remedy.rstrip('.')}"
    return Problem(Cause.ADMISSION_DENIED, what, is_permanent=denials >= _DENIALS)


def _read_refusal(event: Json) -> str:
    message = format_line(event.get("message"))
    return message.removeprefix("(combined from similar events): ").removeprefix("Error creating: ")


def _event_time(event: Json) -> str:
    return str(event.get("lastTimestamp") or event.get("eventTime") or "")
