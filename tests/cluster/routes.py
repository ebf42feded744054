"""Paths of the API: which object, list or fixed page one names."""

from __future__ import annotations

from .resources import BY_NAME, NAMESPACES, ApiError, Obj, Resource

VERSION = {"major": "1", "minor": "36", "gitVersion": "v1.36.2", "platform": "linux/amd64"}
SUBRESOURCES = {"pods": ("status", "log", "eviction"), "jobs": ("status",)}
Route = tuple[Resource, str, str, str]
"""A resource, a namespace, a name and a subresource; the last three may be empty."""


def unknown_path() -> ApiError:
    said = "the server could not find the requested resource"
    return ApiError(404, "NotFound", said, {})


def fixed_page(path: str) -> Obj | bytes | None:
    """Return the page that is the same for everybody, if the path is one's."""
    if path in ("/readyz", "/livez", "/healthz"):
        return b"ok"
    if path == "/version":
        return dict(VERSION)
    if path == "/api":
        return {"kind": "APIVersions", "versions": ["v1"]}
    if path == "/apis":
        return {
            "kind": "APIGroupList",
            "apiVersion": "v1",
            "groups": [_group(g) for g in _groups()],
        }
    group = "" if path == "/api/v1" else path.removeprefix("/apis/").removesuffix("/v1")
    if not group or (path == f"/apis/{group}/v1" and group in _groups()):
        found = [_listed(each) for each in BY_NAME.values() if each.group == group]
        name = f"{group}/v1" if group else "v1"
        return {"kind": "APIResourceList", "groupVersion": name, "resources": found}
    return None


def _groups() -> list[str]:
    return sorted({each.group for each in BY_NAME.values() if each.group})


def _group(name: str) -> Obj:
    version = {"groupVersion": f"{name}/v1", "version": "v1"}
    return {"name": name, "versions": [version], "preferredVersion": version}


def _listed(resource: Resource) -> Obj:
    return {"name": resource.name, "kind": resource.kind, "namespaced": resource.namespaced}


def route(path: str) -> Route:
    parts = path.strip("/").split("/")
    if parts[:2] == ["api", "v1"]:
        group, rest = "", parts[2:]
    elif parts[0] == "apis" and parts[2:3] == ["v1"]:
        group, rest = parts[1], parts[3:]
    else:
        raise unknown_path()
    namespace = ""
    if rest[:1] == ["namespaces"] and len(rest) == 2:
        return NAMESPACES, rest[1], rest[1], ""
    if rest[:1] == ["namespaces"] and len(rest) > 2:
        namespace, rest = rest[1], rest[2:]
    resource = BY_NAME.get((group, rest[0] if rest else ""))
    name, sub = [*rest[1:3], "", ""][:2]
    known = resource is not None and (not sub or sub in SUBRESOURCES.get(resource.name, ()))
    if resource is None or not known or len(rest) > 3 or bool(namespace) > resource.namespaced:
        raise unknown_path()
    return resource, namespace, name, sub
