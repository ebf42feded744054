"""The API server: routes, authorization by roles, and the answer of each request."""

from __future__ import annotations

import secrets
import threading
import time
from dataclasses import dataclass, field
from typing import Any

from .api_errors import ApiError, forbidden
from .http_server import Handler, HttpServer
from .resources import (
    BINDINGS,
    BY_NAME,
    CLUSTER_BINDINGS,
    CLUSTER_ROLES,
    ROLES,
    Obj,
    Resource,
    as_object,
    parts,
)
from .store import Store, matches
from .verbs import Verbs

ADMIN = "admin"
SUBRESOURCES = (("pods", "eviction"),)


@dataclass
class Request:
    """A request, with its path and its body read."""

    user: str
    verb: str
    resource: Resource
    subresource: str = ""
    namespace: str = ""
    name: str = ""
    query: dict[str, str] = field(default_factory=dict[str, str])
    body: Any = None
    content_type: str = ""

    @property
    def path(self) -> str:
        """The resource as rules name it: `pods/eviction`."""
        return "/".join(filter(None, (self.resource.name, self.subresource)))

    @property
    def options(self) -> Obj:
        """The options of a deletion, from the body and the query."""
        return {**as_object(self.body), **self.query}

    def sentence(self) -> str:
        where = f'in the namespace "{self.namespace}"' if self.namespace else "at the cluster scope"
        what = f'cannot {self.verb} resource "{self.path}" in API group "{self.resource.group}"'
        return f'User "{self.user}" {what} {where}'


def route(path: str) -> tuple[Resource, str, str, str]:
    """Return the resource, the namespace, the name and the subresource that a path names."""
    words = path.strip("/").split("/")
    group, rest = ("", words[2:]) if words[0] == "api" else ("".join(words[1:2]), words[3:])
    namespace = ""
    if rest[:1] == ["namespaces"] and len(rest) > 2:
        namespace, rest = rest[1], rest[2:]
    resource = BY_NAME.get((group, rest[0] if rest else ""))
    name, sub = [*rest[1:3], "", ""][:2]
    if resource is None or len(rest) > 3 or (sub and (resource.name, sub) not in SUBRESOURCES):
        raise ApiError(404, "NotFound", "the server could not find the requested resource")
    return resource, namespace, name, sub


class ApiServer:
    """Listens on one port, the same one after `stop` and `start`."""

    def __init__(self, store: Store) -> None:
        self.store, self.verbs = store, Verbs(store)
        self.port = 0
        self._loaded_at = 0.0
        """When the rules of authorization are known."""
        self.early_answer = 403
        """What users get before that: 403, or 401 as from a login that needs a list of keys."""
        self._tokens: dict[str, str] = {}
        self._server: HttpServer | None = None

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self, loading: float = 0.0) -> None:
        """Listen. `loading`: seconds for which users are refused, as by a server that restarts."""
        self._loaded_at = time.monotonic() + loading
        self._server = HttpServer(("127.0.0.1", self.port), Handler)
        self._server.api = self
        self.port = self._server.server_port
        run = self._server.serve_forever
        threading.Thread(target=run, args=(0.05,), daemon=True).start()

    def stop(self) -> None:
        """Close the port and all connections."""
        server, self._server = self._server, None
        if server is not None:
            server.ended.set()
            server.shutdown()
            server.server_close()
            server.cut_all()

    # --- users and their rights

    def token(self, user: str) -> str:
        """Return the user's token; the user exists from now on."""
        return self._tokens.setdefault(user, secrets.token_urlsafe(16))

    def user(self, header: str) -> str:
        """Return whose `Authorization` this is."""
        is_early = self._is_loading() and self.early_answer == 401
        for user, token in self._tokens.items():
            if header == f"Bearer {token}" and (user == ADMIN or not is_early):
                return user
        raise ApiError(401, "Unauthorized", "Unauthorized")

    def authorize(self, call: Request) -> None:
        """Refuse what no role lets the user do; the admin may do everything."""
        if self._is_loading() and call.user != ADMIN:
            raise forbidden(call.resource, call.name, call.sentence())
        bindings = self.store.all(BINDINGS, call.namespace) if call.namespace else []
        for binding in [*bindings, *self.store.all(CLUSTER_BINDINGS)]:
            if any(_is_subject(each, call.user) for each in parts(binding, "subjects")):
                reference = binding["roleRef"]
                is_namespaced = reference["kind"] == "Role"
                kind, where = (ROLES, call.namespace) if is_namespaced else (CLUSTER_ROLES, "")
                role = self.store.find(kind, where, reference["name"])
                if any(_covers(rule, call) for rule in parts(role or {}, "rules")):
                    return
        if call.user != ADMIN:
            raise forbidden(call.resource, call.name, call.sentence())

    def _is_loading(self) -> bool:
        return time.monotonic() < self._loaded_at

    # --- answers

    def check_ready(self, user: str) -> None:
        """Answer /readyz, whose own rule is also unknown at first."""
        if self._is_loading():
            why = f'forbidden: User "{user}" cannot get path "/readyz"'
            if user != ADMIN:
                raise ApiError(403, "Forbidden", why)
            raise ApiError(500, "InternalError", "[-]poststarthook/rbac/bootstrap-roles failed")

    def answer(self, call: Request) -> tuple[int, Obj]:
        """Apply the request; return the code and the body."""
        resource, where = call.resource, (call.namespace, call.name)
        if call.verb == "create" and call.subresource == "eviction":
            return 201, self.verbs.evict(*where)
        if call.verb == "create":
            return 201, self.verbs.create(resource, call.namespace, call.body)
        if call.verb == "patch":
            if call.content_type != "application/merge-patch+json":
                raise ApiError(415, "UnsupportedMediaType", "415: Unsupported Media Type")
            return 200, self.verbs.patch(resource, *where, call.body)
        if call.verb == "delete":
            return 200, self.verbs.delete(resource, *where, call.options)
        if call.verb == "get":
            return 200, self.store.get(resource, *where)
        return 200, self._list(call)

    def _list(self, call: Request) -> Obj:
        resource, namespace = call.resource, call.namespace
        matches({"metadata": {}}, call.query)  # refuses a bad selector also without objects
        with self.store.changed:
            items = [obj for obj in self.store.all(resource, namespace) if matches(obj, call.query)]
            version = str(self.store.version)
            if call.verb == "deletecollection":
                for item in items:
                    self.verbs.delete(resource, namespace, item["metadata"]["name"], call.options)
        listing = {"kind": f"{resource.kind}List", "apiVersion": resource.api_version}
        return {**listing, "metadata": {"resourceVersion": version}, "items": items}


def _is_subject(subject: Obj, user: str) -> bool:
    if subject["kind"] == "ServiceAccount":
        return user == f"system:serviceaccount:{subject.get('namespace', '')}:{subject['name']}"
    return subject["kind"] == "User" and subject["name"] == user


def _covers(rule: Obj, call: Request) -> bool:
    names = parts(rule, "resourceNames")
    return (
        bool({call.verb, "*"} & set(rule["verbs"]))
        and bool({call.resource.group, "*"} & set(parts(rule, "apiGroups")))
        and bool({call.path, "*"} & set(parts(rule, "resources")))
        and (not names or call.name in names)
    )
