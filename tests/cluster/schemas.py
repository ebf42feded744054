"""Checks of written objects: the published schemas, and the rules that schemas do not hold."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from .names import check_metadata
from .resources import Cause, Obj, Resource, as_object, bad_request, invalid
from .rules import check_rules

VERSION = "1.33"
kubernetes_validate: Any = import_module("kubernetes_validate")
kubernetes_validate: Any = import_module("kubernetes_validate")


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
    causes = [*check_metadata(resource, obj), *check_rules(resource, obj)]
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
        known = ", ".join(f'"{each}"' for each in fault.validator_value if each is not None)
        said = f'Unsupported value: "{fault.instance}": supported values: {known}'
        cause = Cause(where, said)
        return invalid(resource, obj["metadata"].get("name", ""), [cause])
    if fault.validator == "additionalProperties":
        unknown = fault.message.split("'")[1]
        why = f'strict decoding error: unknown field "{where}.{unknown}"'.replace('".', '"')
    else:
        why = f"json: cannot unmarshal into Go struct field {where}: {fault.message[:200]}"
    return bad_request(
        f'{resource.kind} in version "v1" cannot be handled as a {resource.kind}: {why}'
    )
