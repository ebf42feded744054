"""Checks of written objects: the published schemas, and the rules that schemas do not hold."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib import import_module
from typing import Any

from .resources import (
    JOBS,
    NAMESPACES,
    PODS,
    SERVICES,
    Cause,
    Obj,
    Resource,
    as_object,
    bad_request,
    invalid,
    part,
    parts,
)

VERSION = "1.33"
kubernetes_validate: Any = import_module("kubernetes_validate")
LABEL = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
SUBDOMAIN = rf"{LABEL}(\.{LABEL})*"
LABEL_VALUE = "(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?"
LABEL_KEY = "([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]"
QUANTITY = r"[0-9]+(\.[0-9]+)?(m|k|M|G|T|P|Ki|Mi|Gi|Ti|Pi|e[0-9]+)?"
_BAD_SUBDOMAIN = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or"
    " '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used"
    f" for validation is '{SUBDOMAIN}')"
)
_BAD_LABEL = (
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and"
    " must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex"
    f" used for validation is '{LABEL}')"
)
_BAD_VALUE = (
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or"
    " '.', and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value', "
    f" or '12345', regex used for validation is '{LABEL_VALUE}')"
)
_BAD_KEY = (
    "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end"
    " with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for"
    f" validation is '{LABEL_KEY}')"
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
        raise bad_request(f'{kind} in version "v1" cannot be handled as a {resource.kind}: {why}')
    _check_schema(resource, obj)
    causes = [*_metadata(resource, obj), *_rules(resource, obj)]
    if causes:
        raise invalid(resource, obj["metadata"].get("name", ""), causes)


def _check_schema(resource: Resource, obj: Obj) -> None:
    try:
        kubernetes_validate.validate(obj, VERSION, strict=True)
    except kubernetes_validate.ValidationError as fault:
        raise _refusal(resource, obj, fault) from None


def _refusal(resource: Resource, obj: Obj, fault: Any) -> Exception:
    where = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in fault.path)
    where = where.removeprefix(".")
    if fault.validator == "required":
        missing = fault.message.split("'")[1]
        cause = Cause(f"{where}.{missing}".removeprefix("."), "Required value")
        return invalid(resource, obj.get("metadata", {}).get("name", ""), [cause])
    if fault.validator == "enum":
        cause = Cause(where, f'Unsupported value: "{fault.instance}"')
        return invalid(resource, obj["metadata"].get("name", ""), [cause])
    if fault.validator == "additionalProperties":
        unknown = fault.message.split("'")[1]
        why = f'strict decoding error: unknown field "{where}.{unknown}"'.replace('".', '"')
    else:
        why = f"json: cannot unmarshal into Go struct field {where}: {fault.message[:200]}"
    return bad_request(
        f'{resource.kind} in version "v1" cannot be handled as a {resource.kind}: {why}'
    )


def _metadata(resource: Resource, obj: Obj) -> Iterator[Cause]:
    meta = part(obj, "metadata")
    name = meta.get("name") or (meta.get("generateName", "") and meta["generateName"] + "x")
    if not name:
        yield Cause("metadata.name", "Required value: name or generateName is required")
    elif resource in (SERVICES, NAMESPACES):
        if not re.fullmatch(LABEL, name) or len(name) > 63:
            yield Cause("metadata.name", f'Invalid value: "{name}": {_BAD_LABEL}')
    elif not re.fullmatch(SUBDOMAIN, name) and resource.group != "rbac.authorization.k8s.io":
        yield Cause("metadata.name", f'Invalid value: "{name}": {_BAD_SUBDOMAIN}')
    elif len(name) > 253:
        yield Cause("metadata.name", f'Invalid value: "{name}": must be no more than 253 bytes')
    yield from _labels("metadata.labels", part(meta, "labels"))


def _labels(field: str, labels: Obj) -> Iterator[Cause]:
    for key, value in labels.items():
        if not re.fullmatch(LABEL_KEY, key.rpartition("/")[2]):
            yield Cause(field, f'Invalid value: "{key}": {_BAD_KEY}')
        if len(value) > 63:
            yield Cause(field, f'Invalid value: "{value}": must be no more than 63 bytes')
        elif not re.fullmatch(LABEL_VALUE, value):
            yield Cause(field, f'Invalid value: "{value}": {_BAD_VALUE}')


def _rules(resource: Resource, obj: Obj) -> Iterator[Cause]:
    if resource == PODS:
        yield from _pod("spec", obj["spec"])
    if resource == JOBS:
        yield from _job(obj)


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
    yield from _labels("spec.template.labels", part(meta, "labels"))
    if template.get("restartPolicy") not in ("OnFailure", "Never"):
        why = 'Required value: valid values: "OnFailure", "Never"'
        yield Cause("spec.template.spec.restartPolicy", why)
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
            yield Cause(f"{field}.values", "Invalid value: must be ordered and without duplicates")


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
            yield Cause(f"{field}.{key}", f'Invalid value: "{spec[key]}": {_BAD_LABEL}')


def _container(field: str, container: Obj, volumes: set[str]) -> Iterator[Cause]:
    if not re.fullmatch(LABEL, container["name"]):
        yield Cause(f"{field}.name", f'Invalid value: "{container["name"]}": {_BAD_LABEL}')
    if not container.get("image"):
        yield Cause(f"{field}.image", "Required value")
    for number, mount in enumerate(parts(container, "volumeMounts")):
        if mount["name"] not in volumes:
            yield Cause(f"{field}.volumeMounts[{number}].name", f'Not found: "{mount["name"]}"')
    resources = part(container, "resources")
    for kind in ("limits", "requests"):
        for name, value in part(resources, kind).items():
            if not re.fullmatch(QUANTITY, str(value)):
                why = "quantities must match the regular expression"
                yield Cause(f"{field}.resources.{kind}.{name}", f'Invalid value: "{value}": {why}')
