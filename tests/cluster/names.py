"""Names and labels: what they may consist of, and the sentences about those that do not."""

from __future__ import annotations

import re
from collections.abc import Iterator

from .resources import NAMESPACES, RBAC, SERVICES, Cause, Obj, Resource, part

LABEL = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
SUBDOMAIN = rf"{LABEL}(\.{LABEL})*"
LABEL_VALUE = "(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?"
LABEL_KEY = "([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]"
BAD_SUBDOMAIN = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or"
    " '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used"
    f" for validation is '{SUBDOMAIN}')"
)
BAD_LABEL = (
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and"
    " must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex"
    f" used for validation is '{LABEL}')"
)
BAD_VALUE = (
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or"
    " '.', and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value', "
    f" or '12345', regex used for validation is '{LABEL_VALUE}')"
)
BAD_KEY = (
    "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end"
    " with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for"
    f" validation is '{LABEL_KEY}')"
)


def check_metadata(resource: Resource, obj: Obj) -> Iterator[Cause]:
    meta = part(obj, "metadata")
    name = meta.get("name") or (meta.get("generateName", "") and meta["generateName"] + "x")
    if not name:
        yield Cause("metadata.name", "Required value: name or generateName is required")
    elif resource in (SERVICES, NAMESPACES):
        if not re.fullmatch(LABEL, name) or len(name) > 63:
            yield Cause("metadata.name", f'Invalid value: "{name}": {BAD_LABEL}')
    elif not re.fullmatch(SUBDOMAIN, name) and resource.group != RBAC:
        yield Cause("metadata.name", f'Invalid value: "{name}": {BAD_SUBDOMAIN}')
    elif len(name) > 253:
        yield Cause("metadata.name", f'Invalid value: "{name}": must be no more than 253 bytes')
    yield from check_labels("metadata.labels", part(meta, "labels"))


def check_labels(field: str, labels: Obj) -> Iterator[Cause]:
    for key, value in labels.items():
        if not re.fullmatch(LABEL_KEY, key.rpartition("/")[2]):
            yield Cause(field, f'Invalid value: "{key}": {BAD_KEY}')
        if len(value) > 63:
            yield Cause(field, f'Invalid value: "{value}": must be no more than 63 bytes')
        elif not re.fullmatch(LABEL_VALUE, value):
            yield Cause(field, f'Invalid value: "{value}": {BAD_VALUE}')
