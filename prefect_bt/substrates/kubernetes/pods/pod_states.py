"""Tables from the state of a pod to a cause, with an explicit unknown. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, NamedTuple, cast

from prefect_bt.ledger.records import Cause
from prefect_bt.substrates.kubernetes.json_merge import Json
from prefect_bt.substrates.kubernetes.names import (
    AGENT,
    COMMANDS,
    INDEX_ANNOTATION,
    STAGING,
)
from prefect_bt.substrates.kubernetes.pods.agent_error import read_agent_error

_PLATFORM: Final = frozenset({AGENT, STAGING})


class Problem(NamedTuple):
    """A cause, and the message of Kubernetes without a full stop.

    `is_permanent`: waiting does not help.
    """

    cause: Cause
    message: str
    is_permanent: bool = False


class PodView(NamedTuple):
    """State of one pod, as its gang uses it."""

    name: str
    rank: int
    has_started: bool = False
    """True once a container of prefect-bt, which publishes a status, has run."""
    is_creating: bool = False
    """True while its machine mounts volumes, pulls images and creates containers, without an error
    in the status."""
    has_sandbox: bool = False
    """True once its volumes are mounted and its network is set up: then images are pulled."""
    agent_ended: bool = False
    """True once the agent's container has ended; others may still run."""
    has_ended: bool = False
    """True if no container runs, or Kubernetes gave up the machine."""
    blocked: Problem | None = None
    """Reason why the pod does not start."""
    failure: Problem | None = None
    """Reason why the pod or one of its containers ended, if Kubernetes reports it."""
    failed_container: str = ""
    """Name of the container that `failure` is about; "" if it is about the whole pod."""
    exists: bool = True
    """True while the pod is an object of the API."""


def read_pod(pod: Json) -> PodView:
    """Return the view of a pod object. Its rank is its index in the Job."""
    metadata, status = pod["metadata"], _part(pod, "status")
    name = str(metadata["name"])
    rank = int(_part(metadata, "annotations").get(INDEX_ANNOTATION, -1))
    containers = {str(one["name"]): one for one in _containers(status)}
    disruption = _find_disruption(pod, status)
    failed, failure = _find_container_failure(containers)
    if "deletionTimestamp" in metadata and not (failure and failure.cause is Cause.OUT_OF_MEMORY):
        failed, failure = "", Problem(Cause.POD_DELETED, "")  # the deletion ended the containers
    states = {which: _part(one, "state") for which, one in containers.items()}
    has_started = any(
        states.get(which, {}).keys() & {"running", "terminated"} for which in _PLATFORM
    )
    blocked = _find_block(status)
    is_pending = blocked is None and status.get("phase") == "Pending" and not has_started
    is_accepted = bool(containers or status.get("startTime"))
    if is_pending:
        blocked = _describe_step(_part(pod, "spec").get("nodeName", ""), is_accepted=is_accepted)
    return PodView(
        name,
        rank,
        has_started=has_started,
        is_creating=is_pending and is_accepted,
        has_sandbox=_has_condition(status, "PodReadyToStartContainers"),
        agent_ended="terminated" in states.get(AGENT, {}),
        has_ended=status.get("phase") in {"Succeeded", "Failed"} or _is_given_up(pod, disruption),
        blocked=blocked,
        failure=disruption or failure,
        failed_container="" if disruption else failed,
    )


def _is_given_up(pod: Json, disruption: Problem | None) -> bool:
    """Return whether Kubernetes deletes the pod because its machine does not answer.

    A machine with only a taint still runs: its pods flush and report their end.
    """
    lost = disruption is not None and disruption.cause is Cause.NODE_LOST
    deleted = "deletionTimestamp" in pod["metadata"]
    return lost and deleted and not _has_condition(_part(pod, "status"), "Ready")


def _containers(status: Json) -> Iterator[Json]:
    yield from status.get("initContainerStatuses") or []
    yield from status.get("containerStatuses") or []


# -- pods that do not start -----------------------------------------------------------------

_PULL_MESSAGES: Final = (
    (r"no match for platform|exec format error", Cause.IMAGE_UNUSABLE),
    (
        r"unauthorized|authentication required|denied|forbidden|\b40[13]\b",
        Cause.REGISTRY_REFUSED,
    ),
    (r"not found|manifest unknown|no such image|does not exist", Cause.IMAGE_NOT_FOUND),
    (
        r"no such host|timeout|timed out|refused|unreachable|misbehaving",
        Cause.REGISTRY_UNREACHABLE,
    ),
)
"""Patterns in the messages of container runtimes about a pull. The first match wins."""
IMAGE_CAUSES: Final = frozenset(cause for _, cause in _PULL_MESSAGES)
_WAITING_CAUSES: Final = {
    "InvalidImageName": Cause.CONFIGURATION,
    "CreateContainerConfigError": Cause.CONFIGURATION,
    "CreateContainerError": Cause.LAUNCH_FAILED,
    "RunContainerError": Cause.IMAGE_UNUSABLE,
    "ErrImageNeverPull": Cause.IMAGE_NOT_FOUND,
}
_PULL_REASONS: Final = {
    "ErrImagePull",
    "ImagePullBackOff",
    "ImageInspectError",
    "RegistryUnavailable",
    "SignatureValidationFailed",
}


_ROOT_REFUSED: Final = re.compile("runAsNonRoot and|non-root policy")
"""Messages about a container that may not run as root, and would: it never can."""


def _find_block(status: Json) -> Problem | None:
    """Return the error in the status for which the pod does not start."""
    for one in _containers(status):
        waiting = _part(_part(one, "state"), "waiting")
        reason, message = str(waiting.get("reason", "")), str(waiting.get("message", ""))
        problem = _read_waiting(reason, message, image=str(one.get("image", "")))
        if problem is not None:
            return _name_container(one, problem)
    for condition in _conditions(status):
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            return Problem(Cause.UNSCHEDULABLE, format_line(condition.get("message", "")))
    return None


def _describe_step(machine: str, *, is_accepted: bool) -> Problem:
    """Return what a pod without an error waits for."""
    step = f"the kubelet of its machine {machine} has not accepted it"
    if is_accepted:
        step = f"its containers are being created on {machine}"
    elif not machine:
        step = "it is being scheduled"
    return Problem(Cause.LAUNCH_FAILED, step)


def _read_waiting(reason: str, message: str, *, image: str) -> Problem | None:
    if reason in _PULL_REASONS:
        # The name of an image may contain a pattern.
        said = message.replace(image, "") if image else message
        fitting = (cause for words, cause in _PULL_MESSAGES if re.search(words, said, re.I))
        cause = next(fitting, Cause.IMAGE_PULL_FAILED)
        return Problem(cause, format_line(message) or reason)
    cause = _WAITING_CAUSES.get(reason)
    if cause is None:
        return None
    return Problem(cause, format_line(message) or reason, bool(_ROOT_REFUSED.search(message)))


def _name_container(container: Json, problem: Problem) -> Problem:
    """Name another image than the job's in the message, so that users change the right one."""
    name = container["name"]
    if name == COMMANDS and problem.is_permanent:
        cure = (
            "Set run_as_user to the id of a user other than root in the Kubernetes Substrate block"
        )
        return problem._replace(message=f"{problem.message}. {cure}")
    if name == COMMANDS:
        return problem
    if name not in _PLATFORM:  # added by an admission webhook
        return problem._replace(message=f"the container {name!r}: {problem.message}")
    return Problem(
        Cause.CONFIGURATION,
        f"prefect-bt's own image {container['image']!r} cannot be used: {problem.message}. Build "
        "and push it (deployments/README.md), and name it in agent_image of the Kubernetes "
        "Substrate block",
        problem.is_permanent,
    )


# -- pods that ended ------------------------------------------------------------------------

_DISRUPTIONS: Final = {
    "PreemptionByScheduler": Cause.PREEMPTED,
    "EvictionByEvictionAPI": Cause.EVICTED,
    "TerminationByKubelet": Cause.EVICTED,
    "DeletionByTaintManager": Cause.NODE_LOST,
    "DeletionByPodGC": Cause.NODE_LOST,
}
"""Reasons of the condition DisruptionTarget."""
_POD_REASONS: Final = {
    "Evicted": Cause.EVICTED,
    "Preempting": Cause.PREEMPTED,
    "NodeLost": Cause.NODE_LOST,
    "NodeShutdown": Cause.PREEMPTED,
    "Terminated": Cause.PREEMPTED,
    "UnexpectedAdmissionError": Cause.CAPACITY_MISSING,
    "OutOfcpu": Cause.CAPACITY_MISSING,
    "OutOfmemory": Cause.CAPACITY_MISSING,
    "OutOfpods": Cause.CAPACITY_MISSING,
    "NodeAffinity": Cause.UNSCHEDULABLE,
}


def _find_disruption(pod: Json, status: Json) -> Problem | None:
    reason = str(status.get("reason", ""))
    if reason in _POD_REASONS:
        return Problem(_POD_REASONS[reason], format_line(status.get("message", "")) or reason)
    for condition in _conditions(status):
        if condition["type"] == "DisruptionTarget" and condition["status"] == "True":
            which = str(condition.get("reason", ""))
            cause = _DISRUPTIONS.get(which, Cause.EVICTED)
            machine = _part(pod, "spec").get("nodeName", "")
            where = f" (machine {machine})" if machine else ""
            return Problem(cause, f"{format_line(condition.get('message', '')) or which}{where}")
    return None


def _find_container_failure(containers: dict[str, Json]) -> tuple[str, Problem | None]:
    """Return the name of the container that failed, and the problem."""
    for name in (COMMANDS, AGENT, STAGING):
        container = containers.get(name, {})
        ended = _part(_part(container, "state"), "terminated")
        if ended.get("exitCode"):
            return name, _read_end(container, ended)
    return "", None


def _read_end(container: Json, ended: Json) -> Problem:
    name, reason = container["name"], str(ended.get("reason", ""))
    is_platform = name in _PLATFORM
    cause, message = Cause.KILLED, format_line(ended.get("message"))
    if is_platform:
        cause, line = read_agent_error(str(ended.get("message") or ""), ended["exitCode"])
        message = format_line(line)
    if reason == "OOMKilled":
        cause = Cause.NODE_LOST if is_platform else Cause.OUT_OF_MEMORY
        return Problem(cause, f"the container {name!r} was killed for lack of memory")
    if reason in {"StartError", "ContainerCannotRun"}:
        cause = Cause.CONFIGURATION if is_platform else Cause.IMAGE_UNUSABLE
        return _name_container(container, Problem(cause, message or reason))
    what = f"the container {name!r} ended with {ended['exitCode']}"
    return Problem(cause, f"{what}: {message}" if message else what)


def _part(value: Json, name: str) -> Json:
    """Return the object under the name, or an empty object."""
    return cast("Json", value.get(name) or {})


def _conditions(status: Json) -> list[Json]:
    return status.get("conditions") or []


def _has_condition(status: Json, kind: str) -> bool:
    return any(one["type"] == kind and one["status"] == "True" for one in _conditions(status))


def format_line(message: object) -> str:
    """Return the message as one line without a full stop."""
    return " ".join(str(message or "").split()).rstrip(".")
