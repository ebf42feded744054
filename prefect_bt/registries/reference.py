"""What names an image: `[host[:port]/]path[:tag][@digest]`, or the id of one on this Engine. Pure.

The grammar is that of the Docker Engine (distribution's `reference`), which is stricter than what
registries would take.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from prefect_bt.registries.pull_errors import PullError, PullErrorKind

DOCKER_HUB: Final = "docker.io"
_HUB_NAMES: Final = {
    DOCKER_HUB,
    "index.docker.io",
    "registry-1.docker.io",
    "registry.hub.docker.com",
    "hub.docker.com",
}
MAX_NAME_CHARS: Final = 255
"""Characters of a name without tag and digest."""

_LABEL: Final = r"[a-zA-Z0-9](?:[a-zA-Z0-9-]*[a-zA-Z0-9])?"
_HOST: Final = rf"(?:{_LABEL}(?:\.{_LABEL})*|\[[0-9a-fA-F:]+\])(?::[0-9]+)?"
_PART: Final = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_HOSTS: Final = re.compile(_HOST, re.ASCII)
_PATH: Final = re.compile(rf"{_PART}(?:/{_PART})*", re.ASCII)
_TAG: Final = re.compile(r"\w[\w.-]{0,127}", re.ASCII)
_DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}|sha512:[0-9a-f]{128}")
_ID: Final = re.compile(r"sha256:[0-9a-f]{64}")


@dataclass(frozen=True)
class ImageReference:
    """`text` as it was written; `path` is empty for an image's id, which is then `digest`."""

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
        """Without tag and digest, as the Engine shows it: `busybox`, `ghcr.io/team/train`."""
        if self.host == DOCKER_HUB:
            return self.path.removeprefix("library/")
        return f"{self.host}/{self.path}"

    @property
    def pull_name(self) -> str:
        """What the Engine is asked for: a digest before a tag, `latest` when there is neither."""
        if self.is_id:
            return self.digest
        return self.pinned(self.digest) if self.digest else f"{self.name}:{self.tag}"

    def pinned(self, digest: str) -> str:
        return f"{self.name}@{digest}"


def parse_reference(text: str) -> ImageReference:
    """Trouble, fault REFERENCE, for what the Docker Engine would not take."""
    if _ID.fullmatch(text):
        return ImageReference(text, digest=text)
    rest, at, digest = text.partition("@")
    if at and not _DIGEST.fullmatch(digest):
        raise _invalid_reference(
            text, "what follows the @ is no digest such as sha256: and 64 hex digits"
        )
    name, tag = _split_tag(rest)
    if tag is not None and not _TAG.fullmatch(tag):
        raise _invalid_reference(text, f"{tag!r} is no tag")
    host, path, given = _split_host(name)
    _validate_name(text, host, path)
    return ImageReference(text, host, path, tag or ("" if digest else "latest"), digest, given)


def normalize_registry_host(registry: str) -> str:
    """The host that docker_auth's `registry` means: no scheme, no path, Docker Hub by one name.

    >>> normalize_registry_host("https://index.docker.io/v1/")
    'docker.io'
    """
    rest = registry.strip().partition("://")[2] or registry.strip()
    host = rest.partition("/")[0].lower()
    return DOCKER_HUB if host in _HUB_NAMES else host


def _split_tag(rest: str) -> tuple[str, str | None]:
    """A colon before a slash is a port's."""
    name, colon, tag = rest.rpartition(":")
    return (rest, None) if not colon or "/" in tag else (name, tag)


def _split_host(name: str) -> tuple[str, str, bool]:
    first, slash, path = name.partition("/")
    is_host = "." in first or ":" in first or first == "localhost" or first != first.lower()
    if not slash or not is_host:
        return DOCKER_HUB, name if slash else f"library/{name}", False
    if first in _HUB_NAMES:
        return DOCKER_HUB, path if "/" in path else f"library/{path}", True
    return first, path, True


def _validate_name(text: str, host: str, path: str) -> None:
    if "://" in text:
        raise _invalid_reference(
            text, "a reference has no scheme; leave out what stands before and with ://"
        )
    if not _HOSTS.fullmatch(host):
        raise _invalid_reference(text, f"{host!r} is no host")
    if path != path.lower():
        raise _invalid_reference(text, "a repository's name is in lower case")
    if not _PATH.fullmatch(path) or len(f"{host}/{path}") > MAX_NAME_CHARS:
        raise _invalid_reference(
            text, "the repository's name has signs, or a length, that no name has"
        )
    if re.fullmatch(r"library/[0-9a-f]{64}", path):
        raise _invalid_reference(text, "64 hex digits are an image's id; write sha256: before them")


def _invalid_reference(text: str, why: str) -> PullError:
    return PullError(PullErrorKind.REFERENCE, f"{text!r}: {why}")
