"""Who may do what: users, tokens, and the roles that are bound to them."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import dataclass

from .objects import Store
from .resources import (
    BINDINGS,
    CLUSTER_BINDINGS,
    CLUSTER_ROLES,
    ROLES,
    ApiError,
    Obj,
    Resource,
    forbidden,
    parts,
)

ADMIN = "admin"


@dataclass(frozen=True)
class Attempt:
    """What a user wants to do."""

    user: str
    verb: str
    resource: Resource
    subresource: str = ""
    namespace: str = ""
    name: str = ""

    @property
    def path(self) -> str:
        """The resource as rules name it: `pods/log`."""
        return "/".join(filter(None, (self.resource.name, self.subresource)))

    def sentence(self) -> str:
        where = f'in the namespace "{self.namespace}"' if self.namespace else "at the cluster scope"
        what = f'cannot {self.verb} resource "{self.path}" in API group "{self.resource.group}"'
        return f'User "{self.user}" {what} {where}'


class Access:
    """The tokens of users; the admin may do everything, others what rules say."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._tokens: dict[str, str] = {}

    def token(self, user: str) -> str:
        """Return the user's token; the user exists from now on."""
        return self._tokens.setdefault(user, secrets.token_urlsafe(16))

    def user(self, header: str) -> str:
        """Return whose `Authorization` this is."""
        for user, token in self._tokens.items():
            if header == f"Bearer {token}":
                return user
        raise ApiError(401, "Unauthorized", "Unauthorized")

    def check(self, attempt: Attempt) -> None:
        if not self.allows(attempt):
            raise forbidden(attempt.resource, attempt.name, attempt.sentence())

    def allows(self, attempt: Attempt) -> bool:
        if attempt.user == ADMIN or attempt.resource.name == "selfsubjectaccessreviews":
            return True
        return any(_covers(rule, attempt) for rule in self._rules(attempt))

    def _rules(self, attempt: Attempt) -> Iterator[Obj]:
        bindings = self._store.all(CLUSTER_BINDINGS)
        if attempt.namespace:
            bindings = [*bindings, *self._store.all(BINDINGS, attempt.namespace)]
        for binding in bindings:
            if any(_is_subject(each, attempt.user) for each in parts(binding, "subjects")):
                role, namespace = binding["roleRef"], attempt.namespace
                found = (
                    self._store.find(CLUSTER_ROLES, "", role["name"])
                    if role["kind"] == "ClusterRole"
                    else self._store.find(ROLES, namespace, role["name"])
                )
                yield from parts(found or {}, "rules")


def _is_subject(subject: Obj, user: str) -> bool:
    everyone = subject["kind"] == "Group" and subject["name"] == "system:authenticated"
    if subject["kind"] == "ServiceAccount":
        return user == f"system:serviceaccount:{subject.get('namespace', '')}:{subject['name']}"
    return everyone or (subject["kind"] == "User" and subject["name"] == user)


def _covers(rule: Obj, attempt: Attempt) -> bool:
    names = parts(rule, "resourceNames")
    wanted = {attempt.path, f"*/{attempt.subresource}", "*"}
    return (
        bool({attempt.verb, "*"} & set(rule["verbs"]))
        and bool({attempt.resource.group, "*"} & set(parts(rule, "apiGroups")))
        and bool(wanted & set(parts(rule, "resources")))
        and (not names or attempt.name in names)
    )
