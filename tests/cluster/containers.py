"""A pod's containers on the Engine: images, environment, limits, and what became of them."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any

from .engine import Engine, errors
from .objects import Store
from .quota import parse_quantity
from .resources import ApiError, Obj, part, parts
from .volumes import data_of

EPOCH = "1970-01-01T00:00:00Z"


class Waiting(Exception):
    """A container cannot be started now: the reason and the message of its waiting state."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason, self.message = reason, message


@dataclass
class Container:
    """One container of a pod as the kubelet knows it."""

    spec: Obj
    id: str = ""
    image_id: str = ""
    state: Obj = field(default_factory=Obj)
    tried: float = 0.0

    @property
    def name(self) -> str:
        return self.spec["name"]

    @property
    def ended(self) -> Obj | None:
        return self.state.get("terminated")

    @property
    def running(self) -> bool:
        return "running" in self.state


def find_image(client: Engine, store: Store, pod: Obj, container: Obj) -> Obj:
    """Return the image as the Engine tells of it, pulled if the policy says so."""
    image, policy = container["image"], container["imagePullPolicy"]
    if policy != "Always":
        try:
            return client.inspect_image(image)
        except errors.ImageNotFound:
            if policy == "Never":
                said = f'Container image "{image}" is not present with pull policy of Never'
                raise Waiting("ErrImageNeverPull", said) from None
    try:
        client.pull(image, auth_config=_login(store, pod, image))
        return client.inspect_image(image)
    except errors.DockerException as error:
        said = f'failed to pull and unpack image "{image}": {error}'
        raise Waiting("ErrImagePull", said) from None


def _login(store: Store, pod: Obj, image: str) -> dict[str, str] | None:
    """Return the login for the image's registry of the pod's pull secrets."""
    for secret in parts(pod["spec"], "imagePullSecrets"):
        try:
            data = data_of(store, "secrets", pod["metadata"]["namespace"], secret["name"])
        except ApiError:
            continue
        for host, login in json.loads(data[".dockerconfigjson"])["auths"].items():
            if image.startswith(host.removeprefix("https://").rstrip("/") + "/"):
                return {"username": login["username"], "password": login["password"]}
    return None


def make_container(client: Engine, pod: Obj, container: Obj, image: Obj, **given: Any) -> str:
    """Create the container in the namespace of the holder; `given` are the Engine's options."""
    context = {**part(pod["spec"], "securityContext"), **part(container, "securityContext")}
    _check_user(pod, container, context, image)
    env, network = given["env"], f"container:{given['holder']}"
    more = {**_security(context), **_limits(container)}
    host = client.create_host_config(network_mode=network, mounts=given["mounts"], **more)
    made = client.create_container(
        image["Id"],
        name=given["name"],
        entrypoint=_expanded(container.get("command"), env),
        command=_expanded(container.get("args"), env),
        environment=env,
        working_dir=container.get("workingDir"),
        user=_user(context),
        labels=given["labels"],
        host_config=host,
    )
    return made["Id"]


def _check_user(pod: Obj, container: Obj, context: Obj, image: Obj) -> None:
    user = context.get("runAsUser")
    root = (image["Config"].get("User") or "0").partition(":")[0] in ("0", "root")
    if context.get("runAsNonRoot") and (user == 0 or (user is None and root)):
        meta = pod["metadata"]
        where = f'pod: "{meta["name"]}_{meta["namespace"]}({meta["uid"]})"'
        said = "container has runAsNonRoot and image will run as root"
        said = f"{said} ({where}, container: {container['name']})"
        raise Waiting("CreateContainerConfigError", said)


def _user(context: Obj) -> str | None:
    user, group = context.get("runAsUser"), context.get("runAsGroup")
    if user is None and group is None:
        return None
    return f"{user or 0}:{group or 0}"


def _security(context: Obj) -> Obj:
    capabilities = part(context, "capabilities")
    groups = [*parts(context, "supplementalGroups")]
    if context.get("fsGroup") is not None:
        groups.append(context["fsGroup"])
    kept: Obj = {"cap_add": capabilities.get("add"), "cap_drop": capabilities.get("drop")}
    kept |= {"read_only": context.get("readOnlyRootFilesystem"), "group_add": groups}
    kept["privileged"] = bool(context.get("privileged"))
    if context.get("allowPrivilegeEscalation") is False:
        kept["security_opt"] = ["no-new-privileges"]
    return {key: value for key, value in kept.items() if value}


def _limits(container: Obj) -> Obj:
    limits = part(container["resources"], "limits")
    kept: Obj = {}
    if "memory" in limits:
        kept["mem_limit"] = kept["memswap_limit"] = int(parse_quantity(limits["memory"]))
    if "cpu" in limits:
        kept["cpu_period"] = 100_000
        kept["cpu_quota"] = max(1000, int(parse_quantity(limits["cpu"]) * 100_000))
    return kept


def environment(store: Store, pod: Obj, container: Obj, ip: str) -> dict[str, str]:
    """Return the container's variables, also those taken from fields, secrets and config maps."""
    namespace = pod["metadata"]["namespace"]
    found: dict[str, str] = {}
    for source in parts(container, "envFrom"):
        for key, kind in (("secretRef", "secrets"), ("configMapRef", "configmaps")):
            if ref := source.get(key):
                for name, value in _values(store, kind, namespace, ref).items():
                    found[source.get("prefix", "") + name] = value
    for each in parts(container, "env"):
        source = part(each, "valueFrom")
        if field := source.get("fieldRef"):
            found[each["name"]] = _field(pod, field["fieldPath"], ip)
        elif source:
            found |= _taken(store, namespace, each["name"], source)
        else:
            found[each["name"]] = _expand(each.get("value") or "", found)
    return found


def _taken(store: Store, namespace: str, name: str, source: Obj) -> dict[str, str]:
    """Return the variable with the value of a key of a secret or config map, if there is one."""
    kind = "secrets" if "secretKeyRef" in source else "configmaps"
    ref: Obj = source.get("secretKeyRef") or source["configMapKeyRef"]
    values = _values(store, kind, namespace, ref)
    if ref["key"] in values:
        return {name: values[ref["key"]]}
    if ref.get("optional"):
        return {}
    where = f"{'Secret' if kind == 'secrets' else 'ConfigMap'} {namespace}/{ref['name']}"
    said = f"couldn't find key {ref['key']} in {where}"
    raise Waiting("CreateContainerConfigError", said)


def _values(store: Store, kind: str, namespace: str, ref: Obj) -> dict[str, str]:
    try:
        data = data_of(store, kind, namespace, ref["name"])
    except ApiError:
        if ref.get("optional"):
            return {}
        said = f'{kind.removesuffix("s")} "{ref["name"]}" not found'
        raise Waiting("CreateContainerConfigError", said) from None
    return {key: value.decode() for key, value in data.items()}


def _field(pod: Obj, path: str, ip: str) -> str:
    if keyed := re.fullmatch(r"metadata\.(labels|annotations)\['(.+)'\]", path):
        return part(pod["metadata"], keyed[1]).get(keyed[2], "")
    if path == "status.podIP":
        return ip
    found: Any = pod
    for name in path.split("."):
        found = found.get(name, {})
    return str(found or "")


def _expand(text: str, env: dict[str, str]) -> str:
    """Put variables in the places of `$(NAME)`; two dollars stand for one, before anything."""

    def value(found: re.Match[str]) -> str:
        return "$" if found[0] == "$$" else env.get(found[1], found[0])

    return re.sub(r"\$\$|\$\(([^)]*)\)", value, text)


def _expanded(words: list[str] | None, env: dict[str, str]) -> list[str] | None:
    return [_expand(word, env) for word in words] if words else None


def state_of(inspected: Obj) -> Obj:
    """Return the container's state as a pod's status has it."""
    state, now = inspected["State"], inspected["State"]["StartedAt"]
    started = now[:19] + "Z"
    if state["Status"] in ("running", "paused"):
        return {"running": {"startedAt": started}}
    if state["Status"] == "created":
        return {"waiting": {"reason": "ContainerCreating"}}
    code = state["ExitCode"]
    reason = "OOMKilled" if state["OOMKilled"] else "Error" if code else "Completed"
    ended: Obj = {"exitCode": code, "reason": reason, "startedAt": started}
    ended |= {"finishedAt": state["FinishedAt"][:19] + "Z"}
    return {"terminated": {**ended, "containerID": f"docker://{inspected['Id']}"}}


def start_error(error: Exception, now: str, id: str) -> Obj:
    """Return the state of a container whose command could not be started."""
    said = f"failed to create containerd task: {error}"
    ended: Obj = {"exitCode": 128, "reason": "StartError", "message": said, "startedAt": EPOCH}
    return {"terminated": {**ended, "finishedAt": now, "containerID": f"docker://{id}"}}
