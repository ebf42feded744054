"""Rules of pods, Jobs and secrets that the published schemas do not hold."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

from .names import BAD_LABEL, LABEL, check_labels
from .quota import parse_quantity
from .resources import JOBS, PODS, SECRETS, Cause, Obj, Resource, bad_request, part, parts

QUANTITY = "^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$"
KEY = "[-._a-zA-Z0-9]+"
_BAD_KEY = (
    "a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g."
    f" 'key.name',  or 'KEY_NAME',  or 'key-name', regex used for validation is '{KEY}')"
)


def check_rules(resource: Resource, obj: Obj) -> Iterator[Cause]:
    if resource == PODS:
        policy = obj["spec"].get("restartPolicy") or "Always"
        if policy not in (known := ("Always", "OnFailure", "Never")):
            said = ", ".join(f'"{each}"' for each in known)
            why = f'Unsupported value: "{policy}": supported values: {said}'
            yield Cause("spec.restartPolicy", why)
        yield from _pod("spec", obj["spec"])
    if resource == JOBS:
        yield from _job(obj)
    if resource == SECRETS:
        yield from _secret(obj)


def _job(obj: Obj) -> Iterator[Cause]:
    spec, name = obj["spec"], obj["metadata"].get("name", "")
    template = spec["template"].get("spec", {})
    if spec.get("completionMode") == "Indexed":
        if spec.get("completions") is None:
            yield Cause("spec.completions", "Required value: when completion mode is Indexed")
        last = f"{name}-{(spec.get('completions') or 1) - 1}"
        if not re.fullmatch(LABEL, last) or len(last) > 63:
            why = f"will not able to create pod with invalid DNS label: {last}"
            yield Cause("metadata.name", f'Invalid value: "{name}": {why}')
    meta = part(spec["template"], "metadata")
    yield from check_labels("spec.template.labels", part(meta, "labels"))
    if template.get("restartPolicy") not in ("OnFailure", "Never"):
        why = 'Required value: valid values: "OnFailure", "Never"'
        yield Cause("spec.template.spec.restartPolicy", why)
    elif spec.get("podFailurePolicy") and template["restartPolicy"] != "Never":
        why = 'Invalid value: "OnFailure": only "Never" is supported when podFailurePolicy is'
        yield Cause("spec.template.spec.restartPolicy", f"{why} specified")
    yield from _pod("spec.template.spec", template)
    yield from _failure_policy(spec, template)


def _failure_policy(spec: Obj, template: Obj) -> Iterator[Cause]:
    names = [each["name"] for each in _containers(template)]
    for number, rule in enumerate(part(spec, "podFailurePolicy").get("rules", [])):
        field, codes = f"spec.podFailurePolicy.rules[{number}].onExitCodes", rule.get("onExitCodes")
        if not codes:
            continue
        if (name := codes.get("containerName")) and name not in names:
            why = "must be one of the container or initContainer names in the pod template"
            yield Cause(f"{field}.containerName", f'Invalid value: "{name}": {why}')
        if codes["operator"] == "In" and 0 in codes["values"]:
            where = f"{field}.values[{codes['values'].index(0)}]"
            yield Cause(where, "Invalid value: 0: must not be 0 for the In operator")
        if sorted(set(codes["values"])) != codes["values"]:
            shown = json.dumps(codes["values"], separators=(",", ":"))
            yield Cause(f"{field}.values", f"Invalid value: {shown}: must be ordered")


def _containers(spec: Obj) -> list[Obj]:
    return [*parts(spec, "initContainers"), *parts(spec, "containers")]


def _pod(field: str, spec: Obj) -> Iterator[Cause]:
    volumes = {volume["name"] for volume in parts(spec, "volumes")}
    if not spec.get("containers"):
        yield Cause(f"{field}.containers", "Required value")
    seen: set[str] = set()
    for kind in ("initContainers", "containers"):
        for number, container in enumerate(parts(spec, kind)):
            where = f"{field}.{kind}[{number}]"
            if container["name"] in seen:
                yield Cause(f"{where}.name", f'Duplicate value: "{container["name"]}"')
            seen.add(container["name"])
            yield from _container(where, container, volumes)
    for key in ("hostname", "subdomain"):
        if spec.get(key) and not re.fullmatch(LABEL, spec[key]):
            yield Cause(f"{field}.{key}", f'Invalid value: "{spec[key]}": {BAD_LABEL}')


def _container(field: str, container: Obj, volumes: set[str]) -> Iterator[Cause]:
    if not re.fullmatch(LABEL, container["name"]):
        yield Cause(f"{field}.name", f'Invalid value: "{container["name"]}": {BAD_LABEL}')
    if not container.get("image"):
        yield Cause(f"{field}.image", "Required value")
    for number, mount in enumerate(parts(container, "volumeMounts")):
        if mount["name"] not in volumes:
            yield Cause(f"{field}.volumeMounts[{number}].name", f'Not found: "{mount["name"]}"')
    yield from _resources(f"{field}.resources", part(container, "resources"))


def _resources(field: str, resources: Obj) -> Iterator[Cause]:
    limits = part(resources, "limits")
    for value in [*limits.values(), *part(resources, "requests").values()]:
        if not re.fullmatch(QUANTITY, str(value)):
            why = f"quantities must match the regular expression '{QUANTITY}'"
            raise bad_request(f'Pod in version "v1" cannot be handled as a Pod: {why}')
    for name, value in part(resources, "requests").items():
        if name not in limits:
            if "/" in name:
                why = "Required value: Limit must be set for non overcommitable resources"
                yield Cause(f"{field}.limits", why)
        elif parse_quantity(value) > parse_quantity(limits[name]):
            why = f"must be less than or equal to {name} limit of {limits[name]}"
            yield Cause(f"{field}.requests", f'Invalid value: "{value}": {why}')


def _secret(secret: Obj) -> Iterator[Cause]:
    for value in part(secret, "data").values():
        if (bad := re.search("[^A-Za-z0-9+/=]", value)) is not None:
            why = f"illegal base64 data at input byte {bad.start()}"
            raise bad_request(f'Secret in version "v1" cannot be handled as a Secret: {why}')
    data = {**part(secret, "data"), **part(secret, "stringData")}
    for key in data:
        if not re.fullmatch(KEY, key):
            yield Cause(f"data[{key}]", f'Invalid value: "{key}": {_BAD_KEY}')
    if sum(len(value) for value in data.values()) > 1 << 20:
        yield Cause("data", "Too long: may not be more than 1048576 bytes")
