"""The kinds of objects that the API server has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

Obj = dict[str, Any]
"""The JSON of an object of the API, or of a part of one."""


def part(obj: Obj, key: str) -> Obj:
    """Return the part of that name; an empty one when there is none."""
    return obj.get(key) or {}


def parts(obj: Obj, key: str) -> list[Any]:
    """Return the list of that name; an empty one when there is none."""
    return obj.get(key) or []


def as_object(value: Any) -> Obj:
    """Return the value if it is an object, else an empty one."""
    return cast("Obj", value) if isinstance(value, dict) else {}


def place(obj: Obj) -> tuple[str, str]:
    """Return the object's namespace, empty when it has none, and its name."""
    return obj["metadata"].get("namespace", ""), obj["metadata"]["name"]


RBAC = "rbac.authorization.k8s.io"


@dataclass(frozen=True)
class Resource:
    name: str
    kind: str
    group: str = ""
    namespaced: bool = True

    @property
    def api_version(self) -> str:
        return f"{self.group}/v1" if self.group else "v1"

    @property
    def full_name(self) -> str:
        """The name in messages: `pods`, `jobs.batch`."""
        return f"{self.name}.{self.group}" if self.group else self.name


PODS = Resource("pods", "Pod")
JOBS = Resource("jobs", "Job", "batch")
SECRETS = Resource("secrets", "Secret")
SERVICES = Resource("services", "Service")
EVENTS = Resource("events", "Event")
QUOTAS = Resource("resourcequotas", "ResourceQuota")
CONFIG_MAPS = Resource("configmaps", "ConfigMap")
ROLES = Resource("roles", "Role", RBAC)
BINDINGS = Resource("rolebindings", "RoleBinding", RBAC)
CLUSTER_ROLES = Resource("clusterroles", "ClusterRole", RBAC, namespaced=False)
CLUSTER_BINDINGS = Resource("clusterrolebindings", "ClusterRoleBinding", RBAC, namespaced=False)
NAMESPACES = Resource("namespaces", "Namespace", namespaced=False)
NODES = Resource("nodes", "Node", namespaced=False)

RESOURCES = (
    *(PODS, JOBS, SECRETS, SERVICES, EVENTS, QUOTAS, CONFIG_MAPS, NAMESPACES, NODES),
    *(ROLES, BINDINGS, CLUSTER_ROLES, CLUSTER_BINDINGS),
)
BY_NAME = {(resource.group, resource.name): resource for resource in RESOURCES}
