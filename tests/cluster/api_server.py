"""The API server: who may ask, what is refused, and what is answered."""

from __future__ import annotations

import threading
from collections.abc import Callable

from .access import Access, Attempt
from .calls import Call, Request
from .http_server import Handler, HttpServer
from .objects import Store
from .resources import (
    BY_NAME,
    REVIEWS,
    ApiError,
    Obj,
    Resource,
    as_object,
    bad_request,
    part,
    parts,
)
from .verbs import Verbs

_PATCHES = ("application/merge-patch+json", "application/strategic-merge-patch+json")


class ApiServer:
    """Listens on a port that stays the same when it listens again."""

    def __init__(self, store: Store) -> None:
        self.store, self.verbs, self.access = store, Verbs(store), Access(store)
        self.log: list[Request] = []
        self.throttled = 0
        self.silent = threading.Event()
        self.read_log: Callable[[Obj, str, dict[str, str]], bytes] = _no_log
        self.port = 0
        self._server: HttpServer | None = None

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        self._server = HttpServer(("127.0.0.1", self.port), Handler)
        self._server.api = self
        self.port = self._server.server_port
        run = self._server.serve_forever
        threading.Thread(target=run, args=(0.05,), daemon=True).start()

    def stop(self) -> None:
        """Stop to listen and cut all connections."""
        server, self._server = self._server, None
        if server is not None:
            server.ended.set()
            server.shutdown()
            server.server_close()
            server.cut_all()
        with self.store.changed:
            self.store.changed.notify_all()

    def throttle(self) -> None:
        """Refuse the request if it is one of those to be refused."""
        with self.store.changed:
            if self.throttled:
                self.throttled -= 1
                said = "Too many requests, please try again later."
                raise ApiError(429, "TooManyRequests", said, {"retryAfterSeconds": 1})

    def answer(self, call: Call) -> tuple[int, Obj | bytes]:
        """Do what is asked and return the code and the body."""
        attempt, verbs = call.attempt, self.verbs
        resource, sub = attempt.resource, attempt.subresource
        if resource == REVIEWS:
            return 201, self._review(call)
        if attempt.verb == "create":
            if sub == "eviction":
                return 201, verbs.evict(*call.where, call.body)
            return 201, verbs.create(resource, attempt.namespace, call.body)
        if attempt.verb == "update":
            return 200, verbs.replace(resource, call.where, call.body, sub)
        if attempt.verb == "patch":
            if call.content_type not in _PATCHES:
                said = "415: Unsupported Media Type"
                raise ApiError(415, "UnsupportedMediaType", said, {})
            return 200, verbs.patch(resource, call.where, call.body, sub)
        if attempt.verb == "delete":
            return 200, verbs.delete(resource, call.where, _options(call))
        if attempt.verb == "get":
            found = self.store.get(resource, *call.where)
            return (200, self._log(found, call)) if sub == "log" else (200, found)
        return 200, self._list(call)

    def _list(self, call: Call) -> Obj:
        attempt, resource = call.attempt, call.attempt.resource
        with self.store.changed:
            items = self.verbs.select(resource, attempt.namespace, call.query)
            version = str(self.store.version)
        if attempt.verb == "deletecollection":
            for item in items:
                where = (attempt.namespace, item["metadata"]["name"])
                self.verbs.delete(resource, where, _options(call))
        listing = {"kind": f"{resource.kind}List", "apiVersion": resource.api_version}
        return {**listing, "metadata": {"resourceVersion": version}, "items": items}

    def _log(self, pod: Obj, call: Call) -> bytes:
        names = [each["name"] for each in pod["spec"]["containers"]]
        inits = [each["name"] for each in parts(pod["spec"], "initContainers")]
        name, container = pod["metadata"]["name"], call.query.get("container", "")
        if not container and len(names) > 1:
            said = f"a container name must be specified for pod {name}, choose one of:"
            raise bad_request(f"{said} [{' '.join([*inits, *names])}]")
        container = container or names[0]
        if container not in [*inits, *names]:
            raise bad_request(f"container {container} is not valid for pod {name}")
        return self.read_log(pod, container, call.query)

    def _review(self, call: Call) -> Obj:
        asked = part(call.body["spec"], "resourceAttributes")
        group, name = asked.get("group", ""), asked.get("resource", "")
        resource = BY_NAME.get((group, name), Resource(name, name, group))
        place = (asked.get("namespace", ""), asked.get("name", ""))
        words = (asked.get("verb", ""), resource, asked.get("subresource", ""))
        allowed = self.access.allows(Attempt(call.attempt.user, *words, *place))
        return {**call.body, "status": {"allowed": allowed}}


def _options(call: Call) -> Obj:
    body = as_object(call.body)
    names = ("gracePeriodSeconds", "propagationPolicy")
    return {**body, **{name: call.query[name] for name in names if name in call.query}}


def _no_log(pod: Obj, container: str, query: dict[str, str]) -> bytes:
    return b""
