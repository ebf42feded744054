"""Parse image references: `[host[:port]/]path[:tag][@digest]`, or the id of an image. Pure.

The grammar is the Docker Engine's. The parser of its SDK accepts more.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from prefect_bt.registries.pull_errors import PullError, PullErrorKind

DOCKER_HUB: Final = "docker.io"
_HUB_HOST: Final = re.compile(r"((index|registry-1)\.)?docker\.io|(registry\.)?hub\.docker\.com")
MAX_NAME_CHARS: Final = 255

_LABEL: Final = r"[a-zA-Z0-9](?:[a-zA-Z0-9-]*[a-zA-Z0-9])?"
_HOST: Final = re.compile(rf"(?:{_LABEL}(?:\.{_LABEL})*|\[[0-9a-fA-F:]+\])(?::[0-9]+)?", re.ASCII)
_PART: Final = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_ID: Final = re.compile(r"sha256:[0-9a-f]{64}")
_REPOSITORY: Final = re.compile(
    rf"(?P<path>{_PART}(?:/{_PART})*)(?::(?P<tag>\w[\w.-]{{0,127}}))?"
    rf"(?:@(?P<digest>{_ID.pattern}|sha512:[0-9a-f]{{128}}))?",
    re.ASCII,
)


class ImageReference(NamedTuple):
    """A parsed reference. For an image's id, `path` is empty and `digest` is the id."""

    text: str
    host: str = ""
    path: str = ""
    tag: str = ""
    digest: str = ""
    has_explicit_host: bool = False

    @property
    def is_id(self) -> bool:
        return not self.path

    @property
    def name(self) -> str:
        """Return the repository as the Engine shows it: `busybox`, `ghcr.io/team/train`."""
        if self.host == DOCKER_HUB:
            return self.path.removeprefix("library/")
        return f"{self.host}/{self.path}"

    @property
    def pull_name(self) -> str:
        """Return the name to pull: by digest if there is one, else by tag."""
        if self.is_id:
            return self.digest
        return self.pinned(self.digest) if self.digest else f"{self.name}:{self.tag}"

    def pinned(self, digest: str) -> str:
        return f"{self.name}@{digest}"


def parse_reference(text: str) -> ImageReference:
    """Return the parsed reference; PullError REFERENCE if the Docker Engine would refuse it."""
    if _ID.fullmatch(text):
        return ImageReference(text, digest=text)
    first, slash, rest = text.partition("/")
    explicit = bool(slash and (first == "localhost" or re.search("[.:A-Z]", first)))
    host, rest = (first, rest) if explicit else (DOCKER_HUB, text)
    found = _REPOSITORY.fullmatch(rest)
    path = found["path"] if found else ""
    if not found or not _HOST.fullmatch(host) or len(f"{host}/{path}") > MAX_NAME_CHARS:
        problem = "it is not [host[:port]/]repository[:tag][@digest], in lower case"
        raise PullError(PullErrorKind.REFERENCE, f"{text!r}: {problem}")
    if _HUB_HOST.fullmatch(host):
        host, path = DOCKER_HUB, path if "/" in path else f"library/{path}"
    if re.fullmatch(r"library/[0-9a-f]{64}", path):
        problem = "64 hex digits are an image's id: write sha256: before them"
        raise PullError(PullErrorKind.REFERENCE, f"{text!r}: {problem}")
    digest = found["digest"] or ""
    tag = found["tag"] or ("" if digest else "latest")
    return ImageReference(text, host, path, tag, digest, explicit)


def normalize_registry_host(registry: str) -> str:
    """Return the host of docker_auth's `registry`, without scheme and path."""
    host = re.sub("^.*?://", "", registry.strip()).partition("/")[0].lower()
    return DOCKER_HUB if _HUB_HOST.fullmatch(host) else host
