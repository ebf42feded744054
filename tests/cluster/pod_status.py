"""The status of a pod, made of the states of its containers."""

from __future__ import annotations

from collections.abc import Sequence

from .containers import Container
from .objects import has_condition, set_condition
from .resources import Obj

_UNREADY = "containers with unready status: [{}]"


def write_status(
    pod: Obj, inits: Sequence[Container], mains: Sequence[Container], address: str, started: str
) -> None:
    """Bring the pod's status up to date."""
    status = pod["status"]
    status["startTime"] = started
    initialized = all(each.ended and not each.ended["exitCode"] for each in inits)
    first = "ContainerCreating" if initialized or not inits else "PodInitializing"
    status["hostIP"], status["hostIPs"] = "127.0.0.1", [{"ip": "127.0.0.1"}]
    if address:
        status["podIP"], status["podIPs"] = address, [{"ip": address}]
    if inits:
        status["initContainerStatuses"] = [_container(each, "PodInitializing") for each in inits]
    status["containerStatuses"] = [_container(each, first) for each in mains]
    if status.get("reason") != "Evicted":
        status["phase"] = _phase(inits, mains)
    _write_conditions(pod, inits, mains, initialized, bool(address))


def _phase(inits: Sequence[Container], mains: Sequence[Container]) -> str:
    if any(each.ended and each.ended["exitCode"] for each in inits):
        return "Failed"
    if not all(each.running or each.ended for each in mains):
        return "Pending"
    if any(each.running for each in mains):
        return "Running"
    failed = any(each.ended and each.ended["exitCode"] for each in mains)
    return "Failed" if failed else "Succeeded"


def _container(container: Container, first: str) -> Obj:
    status: Obj = {"name": container.name, "image": container.spec["image"], "lastState": {}}
    status |= {"ready": container.running, "started": container.running, "restartCount": 0}
    status |= {"imageID": container.image_id if container.id else ""}
    status["state"] = container.state or {"waiting": {"reason": first}}
    if container.id:
        status["containerID"] = f"docker://{container.id}"
    return status


def _write_conditions(
    pod: Obj,
    inits: Sequence[Container],
    mains: Sequence[Container],
    initialized: bool,
    has_network: bool,
) -> None:
    phase = pod["status"]["phase"]
    over = {"Failed": "PodFailed", "Succeeded": "PodCompleted"}.get(phase, "")
    set_condition(pod, "PodReadyToStartContainers", has_network and not over)
    if initialized:
        set_condition(pod, "Initialized", True, reason=over if over == "PodCompleted" else "")
    else:
        names = " ".join(each.name for each in inits if not each.ended or each.ended["exitCode"])
        said = f"containers with incomplete status: [{names}]"
        reason = "ContainersNotInitialized"
        set_condition(pod, "Initialized", False, reason=reason, message=said)
    unready = " ".join(each.name for each in mains if not each.running)
    why = {"reason": over} if over else {}
    if unready and not over:
        why = {"reason": "ContainersNotReady", "message": _UNREADY.format(unready)}
    for type in ("Ready", "ContainersReady"):
        set_condition(pod, type, not unready, **why)
    if not has_condition(pod, "PodScheduled"):
        set_condition(pod, "PodScheduled", True)
