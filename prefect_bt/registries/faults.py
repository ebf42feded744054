"""Why an image did not come: each fault with its sentence, its cause and its cure.

The Docker Engine answers with a status where it has one. What registries and disks say it passes
on as text alone, so that TEXTS, in this one place, is the exception to never deciding by text:
measured with Engine 20.10.24 and docker-registry 2.8.2, in November 2026.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple

from prefect_bt.errors import ImageError
from prefect_bt.records import Cause


class Fault(StrEnum):
    REFERENCE = "reference"
    """No name of an image."""
    CREDENTIALS = "credentials"
    """A secret that holds something else, or an identity that nobody has."""
    NO_TOKEN = "no_token"
    """Who gives out tokens for the registry did not answer."""
    NOT_FOUND = "not_found"
    LOGIN_MISSING = "login_missing"
    LOGIN_REFUSED = "login_refused"
    NOT_ALLOWED = "not_allowed"
    RATE_LIMITED = "rate_limited"
    UNREACHABLE = "unreachable"
    PLAIN_HTTP = "plain_http"
    CERTIFICATE = "certificate"
    REGISTRY_BROKEN = "registry_broken"
    """It answers, and not as a registry does."""
    DISK_FULL = "disk_full"
    PLATFORM = "platform"
    ENGINE_UNREACHABLE = "engine_unreachable"
    STALLED = "stalled"
    STOPPED = "stopped"
    """By who waited for it."""
    UNTOLD = "untold"
    """The Engine says something that is not in TEXTS."""


class Trouble(Exception):
    """Inside this room: what went wrong, before it is known whose login and which host it was.

    `said` is shown, with the secrets' values masked; `next_step` replaces the table's, if given.
    """

    def __init__(self, fault: Fault, said: str = "", *, next_step: str = "") -> None:
        self.fault, self.said, self.next_step = fault, said, next_step
        super().__init__(fault.value)


TEXTS: Final[tuple[tuple[str, Fault], ...]] = (
    ("no space left on device", Fault.DISK_FULL),
    ("disk quota exceeded", Fault.DISK_FULL),
    ("no matching manifest for", Fault.PLATFORM),
    ("does not match the specified platform", Fault.PLATFORM),
    ("server gave http response to https client", Fault.PLAIN_HTTP),
    ("x509: ", Fault.CERTIFICATE),
    ("tls: ", Fault.CERTIFICATE),
    ("toomanyrequests", Fault.RATE_LIMITED),
    ("no basic auth credentials", Fault.LOGIN_REFUSED),
    ("incorrect username or password", Fault.LOGIN_REFUSED),
    ("access to the resource is denied", Fault.NOT_ALLOWED),
    ("pull access denied", Fault.NOT_ALLOWED),
    ("unauthorized", Fault.LOGIN_REFUSED),
    ("authentication required", Fault.LOGIN_REFUSED),
    (": denied: ", Fault.NOT_ALLOWED),
    ("parsing http 403 response", Fault.NOT_ALLOWED),
    ("manifest unknown", Fault.NOT_FOUND),
    ("name unknown", Fault.NOT_FOUND),
    ("invalid reference format", Fault.REFERENCE),
    ("no such host", Fault.UNREACHABLE),
    ("server misbehaving", Fault.UNREACHABLE),
    ("connection refused", Fault.UNREACHABLE),
    ("connection reset", Fault.UNREACHABLE),
    ("connection timed out", Fault.UNREACHABLE),
    ("no route to host", Fault.UNREACHABLE),
    ("network is unreachable", Fault.UNREACHABLE),
    ("i/o timeout", Fault.UNREACHABLE),
    ("tls handshake timeout", Fault.UNREACHABLE),
    ("request canceled", Fault.UNREACHABLE),
    ("context deadline exceeded", Fault.UNREACHABLE),
    ("proxyconnect", Fault.UNREACHABLE),
    ("unexpected http status", Fault.REGISTRY_BROKEN),
    ("error parsing http", Fault.REGISTRY_BROKEN),
    ("error unmarshalling content", Fault.REGISTRY_BROKEN),
    (": eof", Fault.UNREACHABLE),
    ("unexpected eof", Fault.UNREACHABLE),
)
"""What the Engine's sentence holds, in lower case; the first that fits. Not measured, but read in
its sources: quota, server misbehaving, timed out, no route, network, timeouts, proxyconnect."""

WHOLE_TEXTS: Final = {"denied": Fault.NOT_ALLOWED}
"""What is a sentence's only word: "permission denied" is a disk's, not a registry's."""

STATUSES: Final = {
    400: Fault.REFERENCE,
    401: Fault.LOGIN_REFUSED,
    403: Fault.NOT_ALLOWED,
    404: Fault.NOT_FOUND,
    429: Fault.RATE_LIMITED,
}
"""The Engine's status. Text goes before: pulls answer 404 for what is denied, too, and an Engine
that has no such verb says 404 `page not found`."""

NO_SUCH_VERB: Final = "page not found"


def trouble_of(said: str, status: int = 200) -> Trouble:
    """What the Engine's answer or event means; UNTOLD when nothing fits."""
    text = said.strip().lower()
    if text in WHOLE_TEXTS:
        return Trouble(WHOLE_TEXTS[text], said)
    for piece, fault in TEXTS:
        if piece in text:
            return Trouble(fault, said)
    if text == NO_SUCH_VERB:
        return Trouble(Fault.UNTOLD, said)
    return Trouble(STATUSES.get(status, Fault.UNTOLD), said)


class _Row(NamedTuple):
    """`{image}`, `{host}` and `{whose}` stand for what they say."""

    cause: Cause
    what: str
    cure: str


_REFUSED, _CONFIGURATION = Cause.REGISTRY_REFUSED, Cause.CONFIGURATION
_UNREACHABLE, _FAILED = Cause.REGISTRY_UNREACHABLE, Cause.IMAGE_PULL_FAILED

ROWS: Final[dict[Fault, _Row]] = {
    Fault.REFERENCE: _Row(
        _CONFIGURATION,
        "image.base_image is no reference of an image",
        "Write it as docker pull takes it: [host[:port]/]repository[:tag], in lower case.",
    ),
    Fault.CREDENTIALS: _Row(
        _CONFIGURATION,
        "image.docker_auth of {image} cannot be used",
        "docs/registries.md says what each method needs.",
    ),
    Fault.NO_TOKEN: _Row(
        _UNREACHABLE,
        "Nobody gave a token for {host}",
        "See that the machine of the flow reaches who gives it; then retry the job.",
    ),
    Fault.NOT_FOUND: _Row(
        Cause.IMAGE_NOT_FOUND,
        "{host} has no image {image}",
        "Correct image.base_image, or push that tag.",
    ),
    Fault.LOGIN_MISSING: _Row(
        _REFUSED,
        "{host} does not give {image} to everybody, and no credentials were given",
        "Give image.docker_auth, or run `docker login {host}` as the user of the flow. Check the "
        "name, too: many registries say the same of what does not exist.",
    ),
    Fault.LOGIN_REFUSED: _Row(_REFUSED, "{host} refused {whose}", "Check {whose}."),
    Fault.NOT_ALLOWED: _Row(
        _REFUSED,
        "{host} does not let {whose} read {image}",
        "Allow it to pull from that repository. Check the name, too: many registries say the same "
        "of what does not exist.",
    ),
    Fault.RATE_LIMITED: _Row(
        _FAILED,
        "{host} hands out no more for now: too many pulls",
        "Wait, or give image.docker_auth: who is known may pull more.",
    ),
    Fault.UNREACHABLE: _Row(
        _UNREACHABLE,
        "The Docker Engine does not reach the registry {host}",
        "Check the host's name and port, and the network and proxy of the Engine (its own, not "
        "the shell's).",
    ),
    Fault.PLAIN_HTTP: _Row(
        _REFUSED,
        "The registry {host} speaks plain HTTP, and the Docker Engine expects TLS",
        'Give it TLS, or add "{host}" to insecure-registries in the Engine\'s daemon.json and '
        "restart the Engine.",
    ),
    Fault.CERTIFICATE: _Row(
        _REFUSED,
        "The Docker Engine does not trust the certificate of the registry {host}",
        "Put the certificate of its authority into /etc/docker/certs.d/{host}/ca.crt on the "
        "Engine's machine; one for another name or of the past has to be renewed.",
    ),
    Fault.REGISTRY_BROKEN: _Row(
        _UNREACHABLE,
        "{host} does not answer as a registry does",
        "See that it is one, and well; then retry the job.",
    ),
    Fault.DISK_FULL: _Row(
        _FAILED,
        "The disk of the Docker Engine is full: {image} does not fit",
        "`docker system df` tells what takes it, `docker image prune -a` removes images that no "
        "container uses.",
    ),
    Fault.PLATFORM: _Row(
        Cause.IMAGE_UNUSABLE,
        "{image} is not made for this Docker Engine's processor",
        "Build it for that one too (docker buildx build --platform), or use another image.",
    ),
    Fault.ENGINE_UNREACHABLE: _Row(
        Cause.LAUNCH_FAILED,
        "The Docker Engine does not answer",
        "See that it runs (systemctl status docker), that DOCKER_HOST names it if it is set, and "
        "that this user may use its socket (group docker).",
    ),
    Fault.STALLED: _Row(
        _FAILED,
        "The pull of {image} came to a halt",
        "See what is between the Engine and {host}. Layers that are here stay; "
        "PREFECT_BT_STALL_SECONDS allows for longer silences.",
    ),
    Fault.STOPPED: _Row(_FAILED, "The pull of {image} was stopped", ""),
    Fault.UNTOLD: _Row(
        _FAILED,
        "The Docker Engine could not pull {image}",
        "Run `docker pull {image}` on its machine to see more.",
    ),
}


@dataclass(frozen=True)
class Scene:
    """Of what an error is told: the reference as written, the registry, and whose login it was."""

    image: str
    host: str = ""
    whose: str = ""
    """Empty when nobody's."""

    def error(self, trouble: Trouble, *, said: str) -> ImageError:
        """`said` is the trouble's, without what must not be shown."""
        fault = trouble.fault
        if not self.whose and fault in (Fault.LOGIN_REFUSED, Fault.NOT_ALLOWED):
            fault = Fault.LOGIN_MISSING
        row = ROWS[fault]
        facts = {"image": self.image, "host": self.host or "the registry", "whose": self.whose}
        what = row.what.format(**facts)
        return ImageError(
            f"{what}: {said.rstrip('.')}." if said else f"{what}.",
            reference=self.image,
            fault=fault.value,
            cause=row.cause.value,
            next_step=trouble.next_step or row.cure.format(**facts),
        )
