"""Checks of objects: by the published schemas, and by rules that schemas do not contain."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib import import_module
from typing import Any

from .admission import parse_quantity
from .api_errors import Cause, bad_request, invalid
from .resources import (
    JOBS,
    PODS,
    RBAC,
    Obj,
    Resource,
    as_object,
    part,
    parts,
)

VERSION = "1.33"
"""The version of the newest schemas in the package."""
kubernetes_validate: Any = import_module("kubernetes_validate")

SUBDOMAIN = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*"
LABEL_VALUE = "(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?"
QUANTITY = "^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$"
BAD_SUBDOMAIN = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or"
    " '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used"
    f" for validation is '{SUBDOMAIN}')"
)
BAD_VALUE = (
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or"
    " '.', and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value', "
    f" or '12345', regex used for validation is '{LABEL_VALUE}')"
)


def check(resource: Resource, given: Any) -> None:
    """Refuse an object as a real API server with strict field validation does."""
    obj = as_object(given)
    if "kind" not in obj or "apiVersion" not in obj:
        raise bad_request("Object 'Kind' is missing in the body")
    kind: str = obj["kind"]
    if (kind, obj["apiVersion"]) != (resource.kind, resource.api_version):
        group = resource.group or "core"
        why = f"converting (v1.{kind}) to ({group}.{resource.kind}): unknown conversion"
        raise _unreadable(kind, why, resource.kind)
    try:
        kubernetes_validate.validate(obj, VERSION, strict=True)
    except kubernetes_validate.ValidationError as fault:
        raise _refusal(resource, obj, fault) from None
    causes = [*_metadata(resource, obj), *_rules(resource, obj)]
    if causes:
        raise invalid(resource, obj["metadata"].get("name", ""), causes)


def _unreadable(kind: str, why: str, wanted: str = "") -> Exception:
    said = f'{kind} in version "v1" cannot be handled as a {wanted or kind}'
    return bad_request(f"{said}: {why}")


def _refusal(resource: Resource, obj: Obj, fault: Any) -> Exception:
    """Return a real server's error for a fault that the schema's check found."""
    where = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in fault.path)
    where, name = where.removeprefix("."), part(obj, "metadata").get("name", "")
    if fault.validator == "required":
        field = f"{where}.{fault.message.split(chr(39))[1]}".removeprefix(".")
        return invalid(resource, name, [Cause(field, "Required value")])
    if fault.validator == "additionalProperties":
        field = f"{where}.{fault.message.split(chr(39))[1]}".removeprefix(".")
        return _unreadable(resource.kind, f'strict decoding error: unknown field "{field}"')
    why = f"json: cannot unmarshal into Go struct field {where}: {fault.message[:200]}"
    return _unreadable(resource.kind, why)


def _metadata(resource: Resource, obj: Obj) -> Iterator[Cause]:
    meta = part(obj, "metadata")
    name = meta.get("name") or (meta.get("generateName", "") and meta["generateName"] + "x")
    if not name:
        yield Cause("metadata.name", "Required value: name or generateName is required")
    elif not re.fullmatch(SUBDOMAIN, name) and resource.group != RBAC:
        yield Cause("metadata.name", f'Invalid value: "{name}": {BAD_SUBDOMAIN}')
    yield from _labels("metadata.labels", part(meta, "labels"))


def _labels(field: str, labels: Obj) -> Iterator[Cause]:
    for value in labels.values():
        if len(value) > 63:
            yield Cause(field, f'Invalid value: "{value}": must be no more than 63 bytes')
        elif not re.fullmatch(LABEL_VALUE, value):
            yield Cause(field, f'Invalid value: "{value}": {BAD_VALUE}')


def _rules(resource: Resource, obj: Obj) -> Iterator[Cause]:
    if resource == PODS:
        yield from _pod("spec", obj["spec"])
    if resource == JOBS:
        yield from _job(obj)


def _job(obj: Obj) -> Iterator[Cause]:
    spec, name = obj["spec"], obj["metadata"].get("name", "")
    template = spec["template"].get("spec", {})
    last = f"{name}-{(spec.get('completions') or 1) - 1}"
    if not re.fullmatch(SUBDOMAIN, last) or len(last) > 63:
        why = f"will not able to create pod with invalid DNS label: {last}"
        yield Cause("metadata.name", f'Invalid value: "{name}": {why}')
    yield from _labels("spec.template.labels", part(part(spec["template"], "metadata"), "labels"))
    if template.get("restartPolicy") not in ("OnFailure", "Never"):
        why = 'Required value: valid values: "OnFailure", "Never"'
        yield Cause("spec.template.spec.restartPolicy", why)
    yield from _pod("spec.template.spec", template)
    yield from _failure_policy(spec, template)


def _failure_policy(spec: Obj, template: Obj) -> Iterator[Cause]:
    containers = [*parts(template, "initContainers"), *parts(template, "containers")]
    names = [each["name"] for each in containers]
    for number, rule in enumerate(part(spec, "podFailurePolicy").get("rules", [])):
        name = part(rule, "onExitCodes").get("containerName")
        if name and name not in names:
            why = "must be one of the container or initContainer names in the pod template"
            field = f"spec.podFailurePolicy.rules[{number}].onExitCodes.containerName"
            yield Cause(field, f'Invalid value: "{name}": {why}')


def _pod(field: str, spec: Obj) -> Iterator[Cause]:
    volumes = {volume["name"] for volume in parts(spec, "volumes")}
    for kind in ("initContainers", "containers"):
        for number, container in enumerate(parts(spec, kind)):
            where = f"{field}.{kind}[{number}]"
            yield from _container(where, container, volumes)


def _container(field: str, container: Obj, volumes: set[str]) -> Iterator[Cause]:
    if not container.get("image"):
        yield Cause(f"{field}.image", "Required value")
    for number, mount in enumerate(parts(container, "volumeMounts")):
        if mount["name"] not in volumes:
            yield Cause(f"{field}.volumeMounts[{number}].name", f'Not found: "{mount["name"]}"')
    resources = part(container, "resources")
    limits, requests = part(resources, "limits"), part(resources, "requests")
    for value in [*limits.values(), *requests.values()]:
        if not re.fullmatch(QUANTITY, str(value)):
            why = f"quantities must match the regular expression '{QUANTITY}'"
            raise _unreadable("Pod", why)
    for name, value in requests.items():
        if name not in limits and "/" in name:
            why = "Required value: Limit must be set for non overcommitable resources"
            yield Cause(f"{field}.resources.limits", why)
        elif name in limits and parse_quantity(value) > parse_quantity(limits[name]):
            why = f"must be less than or equal to {name} limit of {limits[name]}"
            yield Cause(f"{field}.resources.requests", f'Invalid value: "{value}": {why}')
