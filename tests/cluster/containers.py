"""The containers of a pod: their options on the Engine, and their part of the pod's status."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, TypeAlias

from .resources import Obj, part, parts
from .store import set_condition, timestamp

Engine: TypeAlias = Any
"""A `docker.APIClient`, which has no types."""
errors: Any = import_module("docker.errors")
INSPECTED_SECONDS = 2.0


@dataclass
class Container:
    """One container of a pod and its last known state."""

    spec: Obj
    id: str = ""
    state: Obj = field(default_factory=Obj)
    tried: float = 0.0
    pid: int = 0
    """Its first process; 0 before it starts."""
    inspected: float = 0.0

    @property
    def name(self) -> str:
        return self.spec["name"]

    @property
    def ended(self) -> Obj | None:
        return self.state.get("terminated")

    @property
    def failed(self) -> bool:
        return bool(self.ended and self.ended["exitCode"])

    @property
    def running(self) -> bool:
        return "running" in self.state


def find_image(client: Engine, image: str) -> Obj:
    """Return what the Engine knows of the image, which is pulled if it is not there."""
    try:
        return client.inspect_image(image)
    except errors.ImageNotFound:
        client.pull(image)
        return client.inspect_image(image)


def make_container(client: Engine, pod: Obj, container: Obj, image: Obj, **given: Any) -> str:
    """Create the container in the network of the holder; `given` are the Engine's options."""
    context = {**part(pod["spec"], "securityContext"), **part(container, "securityContext")}
    env = environment(pod, container)
    user, group = context.get("runAsUser"), context.get("runAsGroup")
    host = client.create_host_config(
        network_mode=f"container:{given['holder']}", mounts=given["mounts"], **_security(context)
    )
    made = client.create_container(
        image["Id"],
        name=given["name"],
        entrypoint=[_expand(word, env) for word in parts(container, "command")] or None,
        command=[_expand(word, env) for word in parts(container, "args")] or None,
        environment=env,
        working_dir=container.get("workingDir"),
        user=None if user is None and group is None else f"{user or 0}:{group or 0}",
        labels=given["labels"],
        host_config=host,
    )
    return made["Id"]


def _security(context: Obj) -> Obj:
    capabilities, group = part(context, "capabilities"), context.get("fsGroup")
    kept: Obj = {"cap_drop": capabilities.get("drop")}
    kept["read_only"] = context.get("readOnlyRootFilesystem")
    kept["group_add"] = [] if group is None else [group]
    if context.get("allowPrivilegeEscalation") is False:
        kept["security_opt"] = ["no-new-privileges"]
    return {key: value for key, value in kept.items() if value}


def environment(pod: Obj, container: Obj) -> dict[str, str]:
    """Return the container's variables, also those taken from labels and annotations."""
    found: dict[str, str] = {}
    for each in parts(container, "env"):
        taken = part(part(each, "valueFrom"), "fieldRef").get("fieldPath")
        value = _field(pod, taken) if taken else _expand(each.get("value") or "", found)
        found[each["name"]] = value
    return found


def _field(pod: Obj, path: str) -> str:
    kind, _, name = path.removeprefix("metadata.").removesuffix("']").partition("['")
    return pod["metadata"][kind][name]


def _expand(text: str, env: dict[str, str]) -> str:
    """Replace `$(NAME)` by the variable's value, and `$$` by `$`."""

    def value(found: re.Match[str]) -> str:
        return "$" if found[0] == "$$" else env.get(found[1], found[0])

    return re.sub(r"\$\$|\$\(([^)]*)\)", value, text)


# --- statuses


def inspect(client: Engine, container: Container) -> None:
    """Read the container's state from the Engine, unless its process has just been seen alive."""
    now = time.monotonic()
    alive = container.running and Path(f"/proc/{container.pid}").exists()
    if alive and now < container.inspected + INSPECTED_SECONDS:
        return
    found = client.inspect_container(container.id)
    container.state, container.pid = state_of(found), found["State"]["Pid"]
    container.inspected = now


def state_of(inspected: Obj) -> Obj:
    """Return the container's state as a pod's status has it."""
    state = inspected["State"]
    started = state["StartedAt"][:19] + "Z"
    if state["Status"] in ("running", "paused"):
        return {"running": {"startedAt": started}}
    if state["Status"] == "created":
        return {"waiting": {"reason": "ContainerCreating"}}
    code = state["ExitCode"]
    reason = "Error" if code else "Completed"
    return ended_state(code, reason, startedAt=started, finishedAt=state["FinishedAt"][:19] + "Z")


def ended_state(code: int, reason: str, **more: Any) -> Obj:
    times = {"startedAt": None, "finishedAt": timestamp()}
    return {"terminated": {"exitCode": code, "reason": reason, **times, **more}}


def write_status(
    pod: Obj, inits: Sequence[Container], mains: Sequence[Container], address: str
) -> None:
    """Set the pod's status from the states of its containers."""
    status = pod["status"]
    status.setdefault("startTime", timestamp())
    first = "ContainerCreating" if all(each.ended for each in inits) else "PodInitializing"
    if address:
        status["podIP"], status["podIPs"] = address, [{"ip": address}]
    if inits:
        status["initContainerStatuses"] = [_status(each, "PodInitializing") for each in inits]
    status["containerStatuses"] = [_status(each, first) for each in mains]
    status["phase"] = _phase(inits, mains)
    set_condition(pod, "Ready", all(each.running for each in mains))


def _phase(inits: Sequence[Container], mains: Sequence[Container]) -> str:
    if any(each.failed for each in inits):
        return "Failed"
    if not all(each.running or each.ended for each in mains):
        return "Pending"
    if any(each.running for each in mains):
        return "Running"
    return "Failed" if any(each.failed for each in mains) else "Succeeded"


def _status(container: Container, first: str) -> Obj:
    status: Obj = {"name": container.name, "image": container.spec["image"], "restartCount": 0}
    status["state"] = container.state or {"waiting": {"reason": first}}
    if container.id:
        status["containerID"] = f"docker://{container.id}"
    return status
