"""Checks of objects: by the published schemas, and by rules that schemas do not contain."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib import import_module
from typing import Any

from .admission import parse_quantity
from .api_errors import bad_request, invalid
from .resources import JOBS, PODS, RBAC, Obj, Resource, part, parts

VERSION = "1.33"
"""The version of the newest schemas in the package."""
kubernetes_validate: Any = import_module("kubernetes_validate")

SUBDOMAIN = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*"
LABEL_VALUE = "(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?"
QUANTITY = "([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)"


def check(resource: Resource, obj: Obj) -> None:
    """Refuse an object as a real API server with strict field validation does."""
    if (obj.get("kind"), obj.get("apiVersion")) != (resource.kind, resource.api_version):
        raise bad_request(f"the body is not a {resource.kind} of {resource.api_version}")
    try:
        kubernetes_validate.validate(obj, VERSION, strict=True)
    except kubernetes_validate.ValidationError as fault:
        if fault.validator == "required":
            raise invalid(fault.message) from None
        raise bad_request(fault.message) from None
    if faults := [*_metadata(resource, obj), *_rules(resource, obj)]:
        raise invalid(", ".join(faults))


def _metadata(resource: Resource, obj: Obj) -> Iterator[str]:
    meta = part(obj, "metadata")
    name = meta.get("name") or (meta.get("generateName", "") and meta["generateName"] + "x")
    if not name:
        yield "metadata.name: name or generateName is required"
    elif not re.fullmatch(SUBDOMAIN, name) and resource.group != RBAC:
        yield f"metadata.name: {name}"
    yield from _labels("metadata.labels", part(meta, "labels"))


def _labels(field: str, labels: Obj) -> Iterator[str]:
    for value in labels.values():
        if len(value) > 63 or not re.fullmatch(LABEL_VALUE, value):
            yield f"{field}: {value}"


def _rules(resource: Resource, obj: Obj) -> Iterator[str]:
    if resource == PODS:
        yield from _pod("spec", obj["spec"])
    if resource == JOBS:
        yield from _job(obj)


def _job(obj: Obj) -> Iterator[str]:
    spec, name = obj["spec"], obj["metadata"].get("name", "")
    template = spec["template"].get("spec", {})
    last = f"{name}-{(spec.get('completions') or 1) - 1}"
    if not re.fullmatch(SUBDOMAIN, last) or len(last) > 63:
        yield f"metadata.name: {last} is no DNS label"
    yield from _labels("spec.template.labels", part(part(spec["template"], "metadata"), "labels"))
    if template.get("restartPolicy") not in ("OnFailure", "Never"):
        yield "spec.template.spec.restartPolicy"
    yield from _pod("spec.template.spec", template)
    names = [each["name"] for each in [*parts(template, "initContainers"), *template["containers"]]]
    for rule in part(spec, "podFailurePolicy").get("rules", []):
        name = part(rule, "onExitCodes").get("containerName")
        if name and name not in names:
            yield f"spec.podFailurePolicy.rules: {name} is no container"


def _pod(field: str, spec: Obj) -> Iterator[str]:
    volumes = {volume["name"] for volume in parts(spec, "volumes")}
    for kind in ("initContainers", "containers"):
        for number, container in enumerate(parts(spec, kind)):
            yield from _container(f"{field}.{kind}[{number}]", container, volumes)


def _container(field: str, container: Obj, volumes: set[str]) -> Iterator[str]:
    if not container.get("image"):
        yield f"{field}.image: is required"
    for mount in parts(container, "volumeMounts"):
        if mount["name"] not in volumes:
            yield f"{field}.volumeMounts: {mount['name']} is no volume"
    resources = part(container, "resources")
    limits, requests = part(resources, "limits"), part(resources, "requests")
    for value in [*limits.values(), *requests.values()]:
        if not re.fullmatch(QUANTITY, str(value)):
            raise bad_request(f"{field}.resources: {value} is no quantity")
    for name, value in requests.items():
        if name not in limits and "/" in name:
            yield f"{field}.resources.limits: {name} needs a limit"
        elif name in limits and parse_quantity(value) > parse_quantity(limits[name]):
            yield f"{field}.resources.requests: {name} is more than its limit"
