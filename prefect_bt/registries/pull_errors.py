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
from prefect_bt.ledger.records import Cause


class PullErrorKind(StrEnum):
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
    UNKNOWN = "untold"
    """The Engine says something that is not in TEXTS."""


class PullError(Exception):
    """Inside this room: what went wrong, before it is known whose login and which host it was.

    `message` is shown, with the secrets' values masked; `next_step` replaces the table's, if given.
    """

    def __init__(self, kind: PullErrorKind, message: str = "", *, next_step: str = "") -> None:
        self.kind, self.message, self.next_step = kind, message, next_step
        super().__init__(kind.value)


MESSAGE_PATTERNS: Final[tuple[tuple[str, PullErrorKind], ...]] = (
    ("no space left on device", PullErrorKind.DISK_FULL),
    ("disk quota exceeded", PullErrorKind.DISK_FULL),
    ("no matching manifest for", PullErrorKind.PLATFORM),
    ("does not match the specified platform", PullErrorKind.PLATFORM),
    ("server gave http response to https client", PullErrorKind.PLAIN_HTTP),
    ("x509: ", PullErrorKind.CERTIFICATE),
    ("tls: ", PullErrorKind.CERTIFICATE),
    ("toomanyrequests", PullErrorKind.RATE_LIMITED),
    ("no basic auth credentials", PullErrorKind.LOGIN_REFUSED),
    ("incorrect username or password", PullErrorKind.LOGIN_REFUSED),
    ("access to the resource is denied", PullErrorKind.NOT_ALLOWED),
    ("pull access denied", PullErrorKind.NOT_ALLOWED),
    ("unauthorized", PullErrorKind.LOGIN_REFUSED),
    ("authentication required", PullErrorKind.LOGIN_REFUSED),
    (": denied: ", PullErrorKind.NOT_ALLOWED),
    ("parsing http 403 response", PullErrorKind.NOT_ALLOWED),
    ("manifest unknown", PullErrorKind.NOT_FOUND),
    ("name unknown", PullErrorKind.NOT_FOUND),
    ("invalid reference format", PullErrorKind.REFERENCE),
    ("no such host", PullErrorKind.UNREACHABLE),
    ("server misbehaving", PullErrorKind.UNREACHABLE),
    ("connection refused", PullErrorKind.UNREACHABLE),
    ("connection reset", PullErrorKind.UNREACHABLE),
    ("connection timed out", PullErrorKind.UNREACHABLE),
    ("no route to host", PullErrorKind.UNREACHABLE),
    ("network is unreachable", PullErrorKind.UNREACHABLE),
    ("i/o timeout", PullErrorKind.UNREACHABLE),
    ("tls handshake timeout", PullErrorKind.UNREACHABLE),
    ("request canceled", PullErrorKind.UNREACHABLE),
    ("context deadline exceeded", PullErrorKind.UNREACHABLE),
    ("proxyconnect", PullErrorKind.UNREACHABLE),
    ("unexpected http status", PullErrorKind.REGISTRY_BROKEN),
    ("error parsing http", PullErrorKind.REGISTRY_BROKEN),
    ("error unmarshalling content", PullErrorKind.REGISTRY_BROKEN),
    (": eof", PullErrorKind.UNREACHABLE),
    ("unexpected eof", PullErrorKind.UNREACHABLE),
)
"""What the Engine's sentence holds, in lower case; the first that fits. Not measured, but read in
its sources: quota, server misbehaving, timed out, no route, network, timeouts, proxyconnect."""

EXACT_MESSAGES: Final = {"denied": PullErrorKind.NOT_ALLOWED}
"""What is a sentence's only word: "permission denied" is a disk's, not a registry's."""

STATUS_KINDS: Final = {
    400: PullErrorKind.REFERENCE,
    401: PullErrorKind.LOGIN_REFUSED,
    403: PullErrorKind.NOT_ALLOWED,
    404: PullErrorKind.NOT_FOUND,
    429: PullErrorKind.RATE_LIMITED,
}
"""The Engine's status. Text goes before: pulls answer 404 for what is denied, too, and an Engine
that has no such verb says 404 `page not found`."""

UNKNOWN_ENDPOINT: Final = "page not found"


def classify_error(message: str, status: int = 200) -> PullError:
    """What the Engine's answer or event means; UNTOLD when nothing fits."""
    text = message.strip().lower()
    if text in EXACT_MESSAGES:
        return PullError(EXACT_MESSAGES[text], message)
    for piece, fault in MESSAGE_PATTERNS:
        if piece in text:
            return PullError(fault, message)
    if text == UNKNOWN_ENDPOINT:
        return PullError(PullErrorKind.UNKNOWN, message)
    return PullError(STATUS_KINDS.get(status, PullErrorKind.UNKNOWN), message)


class _ErrorTemplate(NamedTuple):
    """`{image}`, `{host}` and `{whose}` stand for what they say."""

    cause: Cause
    message: str
    remedy: str


_REFUSED, _CONFIGURATION = Cause.REGISTRY_REFUSED, Cause.CONFIGURATION
_UNREACHABLE, _FAILED = Cause.REGISTRY_UNREACHABLE, Cause.IMAGE_PULL_FAILED

ERROR_TEMPLATES: Final[dict[PullErrorKind, _ErrorTemplate]] = {
    PullErrorKind.REFERENCE: _ErrorTemplate(
        _CONFIGURATION,
        "image.base_image is no reference of an image",
        "Write it as docker pull takes it: [host[:port]/]repository[:tag], in lower case.",
    ),
    PullErrorKind.CREDENTIALS: _ErrorTemplate(
        _CONFIGURATION,
        "image.docker_auth of {image} cannot be used",
        "docs/registries.md says what each method needs.",
    ),
    PullErrorKind.NO_TOKEN: _ErrorTemplate(
        _UNREACHABLE,
        "Nobody gave a token for {host}",
        "See that the machine of the flow reaches who gives it; then retry the job.",
    ),
    PullErrorKind.NOT_FOUND: _ErrorTemplate(
        Cause.IMAGE_NOT_FOUND,
        "{host} has no image {image}",
        "Correct image.base_image, or push that tag.",
    ),
    PullErrorKind.LOGIN_MISSING: _ErrorTemplate(
        _REFUSED,
        "{host} does not give {image} to everybody, and no credentials were given",
        "Give image.docker_auth, or run `docker login {host}` as the user of the flow. Check the "
        "name, too: many registries say the same of what does not exist.",
    ),
    PullErrorKind.LOGIN_REFUSED: _ErrorTemplate(
        _REFUSED, "{host} refused {whose}", "Check {whose}."
    ),
    PullErrorKind.NOT_ALLOWED: _ErrorTemplate(
        _REFUSED,
        "{host} does not let {whose} read {image}",
        "Allow it to pull from that repository. Check the name, too: many registries say the same "
        "of what does not exist.",
    ),
    PullErrorKind.RATE_LIMITED: _ErrorTemplate(
        _FAILED,
        "{host} hands out no more for now: too many pulls",
        "Wait, or give image.docker_auth: who is known may pull more.",
    ),
    PullErrorKind.UNREACHABLE: _ErrorTemplate(
        _UNREACHABLE,
        "The Docker Engine does not reach the registry {host}",
        "Check the host's name and port, and the network and proxy of the Engine (its own, not "
        "the shell's).",
    ),
    PullErrorKind.PLAIN_HTTP: _ErrorTemplate(
        _REFUSED,
        "The registry {host} speaks plain HTTP, and the Docker Engine expects TLS",
        'Give it TLS, or add "{host}" to insecure-registries in the Engine\'s daemon.json and '
        "restart the Engine.",
    ),
    PullErrorKind.CERTIFICATE: _ErrorTemplate(
        _REFUSED,
        "The Docker Engine does not trust the certificate of the registry {host}",
        "Put the certificate of its authority into /etc/docker/certs.d/{host}/ca.crt on the "
        "Engine's machine; one for another name or of the past has to be renewed.",
    ),
    PullErrorKind.REGISTRY_BROKEN: _ErrorTemplate(
        _UNREACHABLE,
        "{host} does not answer as a registry does",
        "See that it is one, and well; then retry the job.",
    ),
    PullErrorKind.DISK_FULL: _ErrorTemplate(
        _FAILED,
        "The disk of the Docker Engine is full: {image} does not fit",
        "`docker system df` tells what takes it, `docker image prune -a` removes images that no "
        "container uses.",
    ),
    PullErrorKind.PLATFORM: _ErrorTemplate(
        Cause.IMAGE_UNUSABLE,
        "{image} is not made for this Docker Engine's processor",
        "Build it for that one too (docker buildx build --platform), or use another image.",
    ),
    PullErrorKind.ENGINE_UNREACHABLE: _ErrorTemplate(
        Cause.LAUNCH_FAILED,
        "The Docker Engine does not answer",
        "See that it runs (systemctl status docker), that DOCKER_HOST names it if it is set, and "
        "that this user may use its socket (group docker).",
    ),
    PullErrorKind.STALLED: _ErrorTemplate(
        _FAILED,
        "The pull of {image} came to a halt",
        "See what is between the Engine and {host}. Layers that are here stay; "
        "PREFECT_BT_STALL_SECONDS allows for longer silences.",
    ),
    PullErrorKind.STOPPED: _ErrorTemplate(_FAILED, "The pull of {image} was stopped", ""),
    PullErrorKind.UNKNOWN: _ErrorTemplate(
        _FAILED,
        "The Docker Engine could not pull {image}",
        "Run `docker pull {image}` on its machine to see more.",
    ),
}


@dataclass(frozen=True)
class PullErrorContext:
    """Of what an error is told: the reference as written, the registry, and whose login it was."""

    image: str
    host: str = ""
    identity: str = ""
    """Empty when nobody's."""

    def to_image_error(self, error: PullError, *, message: str) -> ImageError:
        """`message` is the trouble's, without what must not be shown."""
        fault = error.kind
        if not self.identity and fault in (PullErrorKind.LOGIN_REFUSED, PullErrorKind.NOT_ALLOWED):
            fault = PullErrorKind.LOGIN_MISSING
        row = ERROR_TEMPLATES[fault]
        facts = {"image": self.image, "host": self.host or "the registry", "whose": self.identity}
        what = row.message.format(**facts)
        return ImageError(
            f"{what}: {message.rstrip('.')}." if message else f"{what}.",
            reference=self.image,
            fault=fault.value,
            cause=row.cause.value,
            next_step=error.next_step or row.remedy.format(**facts),
        )
