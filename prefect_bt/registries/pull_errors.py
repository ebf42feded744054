"""Kinds of pull errors, with the cause, message and remedy of each. Pure."""

from __future__ import annotations

import re
from enum import Enum
from typing import Final

from prefect_bt.errors import ImageError
from prefect_bt.ledger.records import Cause


class PullErrorKind(Enum):
    """Cause, message and remedy of a kind of errors; {login} is a login, or says that none is."""

    REFERENCE = (
        Cause.CONFIGURATION,
        "image.base_image is not an image reference",
        "Write it as for docker pull, in lower case and without https://.",
    )
    CREDENTIALS = (
        Cause.CONFIGURATION,
        "image.docker_auth of {image} cannot be used",
        "docs/registries.md lists what each method needs.",
    )
    NOT_FOUND = (
        Cause.IMAGE_NOT_FOUND,
        "{host} has no image {image}",
        "Correct image.base_image, or push that tag. An id is valid only where it was built.",
    )
    REFUSED = (
        Cause.REGISTRY_REFUSED,
        "{host} refused {login} for {image}",
        "Give a login that may pull it: image.docker_auth, or `docker login {host}` as the user of "
        "the flow. Check the name too: many registries refuse images that do not exist.",
    )
    UNREACHABLE = (
        Cause.REGISTRY_UNREACHABLE,
        "The registry {host} gave no valid answer",
        "If it limits the rate of pulls, wait or give image.docker_auth. Else check its name, and "
        "the Docker Engine's network, proxy and trusted certificates "
        "(/etc/docker/certs.d/{host}/ca.crt). List a registry without TLS under "
        "insecure-registries in the Engine's daemon.json.",
    )
    PLATFORM = (
        Cause.IMAGE_UNUSABLE,
        "{image} is not built for the platform of this Docker Engine",
        "Build it for that platform too (docker buildx build --platform), or use another image.",
    )
    STALLED = (
        Cause.IMAGE_PULL_FAILED,
        "The pull of {image} stalled",
        "Check the network between the Engine and {host}. Complete layers are kept; "
        "PREFECT_BT_STALL_SECONDS allows longer pauses.",
    )
    STOPPED = (Cause.IMAGE_PULL_FAILED, "The pull of {image} was stopped", "")
    FAILED = (
        Cause.IMAGE_PULL_FAILED,
        "The Docker Engine could not pull {image}",
        "`docker system df` shows what fills its disk; `docker pull {image}` on its machine may "
        "show more.",
    )
    ENGINE_UNREACHABLE = (
        Cause.LAUNCH_FAILED,
        "The Docker Engine does not answer",
        "Check that it runs (systemctl status docker), that DOCKER_HOST names it if set, and that "
        "this user may use its socket (group docker).",
    )

    @property
    def fault(self) -> str:
        return self.name.lower()


class PullError(Exception):
    """An error before the image and the login are known. `next_step` replaces the usual remedy."""

    def __init__(self, kind: PullErrorKind, message: str = "", *, next_step: str = "") -> None:
        self.kind, self.message, self.next_step = kind, message, next_step
        super().__init__(kind.fault)


_ANSWERS: Final = {
    PullErrorKind.REFUSED: ({401, 403}, "unauthorized|no basic auth credentials|denied"),
    PullErrorKind.NOT_FOUND: ({404}, "manifest unknown|name unknown"),
    PullErrorKind.UNREACHABLE: ({429}, "toomanyrequests"),
}
"""Statuses of the Engine, and codes of the OCI distribution specification, as the Engine quotes
them. Its status is often 500, and 404 for a pull that was denied (Engine 20.10)."""


def classify_response(status: int, message: str) -> PullError:
    """Return the error of an Engine's response, by the registry's code or the Engine's status."""
    for kind, (_, codes) in _ANSWERS.items():
        if re.search(rf"(?:^|: )(?:{codes})(?=:|\s*$)", message.lower(), re.MULTILINE):
            return PullError(kind, message)
    kinds = (kind for kind, (statuses, _) in _ANSWERS.items() if status in statuses)
    return PullError(next(kinds, PullErrorKind.FAILED), message)


def to_image_error(error: PullError, image: str, host: str, login: str) -> ImageError:
    """Return the error for users. `host` is empty for an image's id, `login` if there is none."""
    cause, summary, remedy = error.kind.value
    login = login or "a pull without credentials"
    facts = {"image": image, "host": host or "This Docker Engine", "login": login}
    details = f": {error.message.rstrip('.')}." if error.message else "."
    return ImageError(
        summary.format(**facts) + details,
        reference=image,
        fault=error.kind.fault,
        cause=cause.value,
        next_step=error.next_step or remedy.format(**facts),
    )
