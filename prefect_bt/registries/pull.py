"""From a reference to an image that is on the Docker Engine, pinned to its digest.

    given                     here                    then
    repository@digest         yes                     it is used; no registry is asked
    sha256:<id>               yes                     the same
    name:tag, no host, auth   built here              the same
    name:tag                  whatever                the registry says which digest the tag is
        answered              with that digest        it is used
        answered              without it              pulled by that digest, then tagged
        no answer             yes                     it is used, and a note says so
        no such, or refused   yes, and no auth        the same, as docker run does
        no such, or refused   otherwise               an error

Built here is what has no digest of any registry: it was neither pulled nor pushed.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from prefect_bt.credentials.redaction import Redactor
from prefect_bt.errors import ImageError
from prefect_bt.registries.credentials import (
    Login,
    find_docker_login,
    list_login_secrets,
    resolve_login,
)
from prefect_bt.registries.docker_api import DockerApi, EngineClient
from prefect_bt.registries.pull_errors import PullError, PullErrorContext, PullErrorKind
from prefect_bt.registries.pull_progress import LayerProgress
from prefect_bt.registries.pull_stream import PullStream
from prefect_bt.registries.reference import ImageReference, parse_reference
from prefect_bt.settings import Settings
from prefect_bt.text.progress import ProgressCallback

MAX_ATTEMPTS: Final = 3
"""How often what came to a halt is begun."""
DIGEST_TIMEOUT: Final = 10.0
"""How long a registry may take to say a digest when the tag is here already."""
MAX_MESSAGE_CHARS: Final = 300
"""Characters of the Engine's words in an error."""

_UNREACHABLE_KINDS: Final = {
    PullErrorKind.UNREACHABLE,
    PullErrorKind.STALLED,
    PullErrorKind.NO_TOKEN,
    PullErrorKind.RATE_LIMITED,
    PullErrorKind.REGISTRY_BROKEN,
    PullErrorKind.PLAIN_HTTP,
    PullErrorKind.CERTIFICATE,
}
_REFUSAL_REASONS: Final = {
    PullErrorKind.NOT_FOUND: "does not have it",
    PullErrorKind.LOGIN_REFUSED: "does not hand it out",
    PullErrorKind.NOT_ALLOWED: "does not hand it out",
}
_REFUSED_KINDS: Final = frozenset(_REFUSAL_REASONS)
_EMULATED_PLATFORMS: Final = {(("linux", "arm64"), ("linux", "amd64"))}
"""(Engine's, image's): such Engines mostly run the other, on Apple's machines."""


@dataclass(frozen=True)
class PulledImage:
    """`reference` is what a record pins: `repository@sha256:…`, or `id` of an image built here."""

    reference: str
    digest: str
    """Empty for an image that no registry knows."""
    id: str
    notes: tuple[str, ...] = ()
    """What to tell whoever runs the job, a sentence each."""


def pull_image(  # noqa: PLR0913 (what is pulled, with what, and who listens)
    engine: DockerApi,
    reference: str,
    auth: Mapping[str, object] | None = None,
    *,
    secrets: Mapping[str, str] = MappingProxyType({}),
    on_progress: ProgressCallback | None = None,
    cancelled: threading.Event | None = None,
) -> PulledImage:
    """Bring the image onto the Engine, unless it is there; blocks. ImageError, SecretError.

    `engine` is a docker.APIClient; `auth` is ImagePlan.auth; `secrets` holds the values that it
    refers to. `on_progress` is called in this thread, once a second while bytes come. Once
    `cancelled` is set, by any thread, ends within a second with ImageError, fault `stopped`.
    """
    used = {name: secrets[name] for name in list_login_secrets(auth) if name in secrets}
    pulling = _ImagePull(EngineClient(engine, cancelled), reference, auth, used, on_progress)
    try:
        return pulling.run()
    except PullError as trouble:
        raise pulling.to_image_error(trouble) from None


class _ImagePull:
    def __init__(
        self,
        client: EngineClient,
        text: str,
        auth: Mapping[str, object] | None,
        secrets: Mapping[str, str],
        on_progress: ProgressCallback | None,
    ) -> None:
        self._calls, self._text, self._auth = client, text, auth
        self._secrets, self._tell = secrets, on_progress
        self._stall = Settings().stall_seconds
        self._reference: ImageReference | None = None
        self._login: Login | None = None
        self._notes: list[str] = []

    def run(self) -> PulledImage:
        self._calls.raise_if_cancelled()
        asked = self._reference = parse_reference(self._text)
        here = self._calls.find_image(asked.pull_name)
        if here is not None and (asked.digest or self._is_built_locally(asked, here)):
            return self._result(asked, here)
        if asked.is_id:
            raise PullError(
                PullErrorKind.NOT_FOUND,
                next_step="An id is known to the Engine that built the image: name its tag.",
            )
        try:
            told = self._inspect_distribution(asked, here)
        except PullError as trouble:
            if (
                trouble.kind is PullErrorKind.UNKNOWN
            ):  # an Engine that cannot ask: as docker pull does it
                return self._result(asked, self._pull_with_retries(asked.pull_name))
            return self._use_local_image(asked, here, trouble)
        return self._ensure_pulled(asked, told)

    def to_image_error(self, error: PullError) -> ImageError:
        asked = self._reference
        host = "" if asked is None else "This Docker Engine" if asked.is_id else asked.host
        scene = PullErrorContext(self._text, host, self._login.identity if self._login else "")
        return scene.to_image_error(error, message=self._redact(error.message))

    def _redact(self, message: str) -> str:
        """On one line, without a secret's value."""
        hidden = (*self._secrets.values(), *(self._login.secrets if self._login else ()))
        line = " ".join(Redactor(hidden)(message).split())
        return line if len(line) <= MAX_MESSAGE_CHARS else f"{line[:MAX_MESSAGE_CHARS]}…"

    def _is_built_locally(self, reference: ImageReference, local: Mapping[str, Any]) -> bool:
        """A registry that nobody named is not asked: strangers may hold that name there."""
        alone = (
            not local.get("RepoDigests") and not reference.has_explicit_host and self._auth is None
        )
        if alone:
            self._notes.append(
                f"{self._text} was built on this Docker Engine; no registry is asked for it."
            )
        return alone

    def _inspect_distribution(
        self, reference: ImageReference, local: Mapping[str, Any] | None
    ) -> Mapping[str, Any]:
        """What the registry says of the tag or digest."""
        self._log_in(reference)
        header = self._login.header if self._login else ""
        seconds = self._stall if local is None else min(self._stall, DIGEST_TIMEOUT)
        for left in reversed(range(MAX_ATTEMPTS if local is None else 1)):
            try:
                return self._calls.inspect_distribution(
                    reference.pull_name, header, seconds=seconds
                )
            except PullError as trouble:
                if trouble.kind is not PullErrorKind.STALLED or not left:
                    raise self._stalled_error(trouble, f"{reference.host} did not answer") from None
        raise AssertionError("unreachable")

    def _log_in(self, reference: ImageReference) -> None:
        auth, secrets = self._auth, self._secrets
        if auth is not None:
            self._login = self._calls.run_interruptibly(
                lambda: resolve_login(reference, auth, secrets)
            )
        else:
            self._login = self._calls.run_interruptibly(
                lambda: find_docker_login(self._calls.engine, reference.host)
            )

    def _use_local_image(
        self, reference: ImageReference, local: Mapping[str, Any] | None, error: PullError
    ) -> PulledImage:
        """With what is here, if the registry's answer allows for it."""
        unknown = error.kind in _REFUSED_KINDS
        if local is not None and (
            error.kind in _UNREACHABLE_KINDS or (unknown and self._auth is None)
        ):
            why = _REFUSAL_REASONS.get(error.kind, f"could not be asked ({error.kind.value})")
            self._notes.append(
                f"The registry {reference.host} {why}: "
                f"the {self._text} that is on this Docker Engine is used."
            )
            return self._result(reference, local)
        if local is not None and error.kind is PullErrorKind.NOT_FOUND:
            digest = _get_digest(reference, local)
            step = f"Push it, or name the image that is here: {reference.pinned(digest)}."
            raise PullError(
                PullErrorKind.NOT_FOUND, error.message, next_step=step if digest else ""
            )
        raise error

    def _ensure_pulled(self, reference: ImageReference, told: Mapping[str, Any]) -> PulledImage:
        digest = str(told.get("Descriptor", {}).get("digest") or "")
        if not digest:
            raise PullError(PullErrorKind.REGISTRY_BROKEN, "it told no digest")
        name = reference.pinned(digest)
        found = self._calls.find_image(name)
        if found is None:
            platforms = told.get("Platforms") or ()
            self._check_platform({_get_platform(p) for p in platforms})
            found = self._pull_with_retries(name)
        known_as = found.get("RepoTags") or ()
        if not reference.digest and f"{reference.name}:{reference.tag}" not in known_as:
            self._calls.tag(str(found["Id"]), reference.name, reference.tag)
        return self._result(reference, found, digest)

    def _pull_with_retries(self, name: str) -> Mapping[str, Any]:
        header = self._login.header if self._login else ""
        note = ""
        for left in reversed(range(MAX_ATTEMPTS)):
            layers = LayerProgress(self._text, note)
            try:
                PullStream(self._calls, name, header, layers, self._stall, self._tell).run()
                break
            except PullError as trouble:
                if trouble.kind is not PullErrorKind.STALLED or not left:
                    raise self._stalled_error(trouble, "no byte came and nothing changed") from None
                note = f"It came to a halt for {self._stall:g} s, and was begun again."
        if note:
            self._notes.append(f"The pull of {self._text} came to a halt and was begun again.")
        found = self._calls.find_image(name)
        if found is None:
            raise PullError(PullErrorKind.UNKNOWN, "it is not there after the pull")
        return found

    def _stalled_error(self, error: PullError, image: str) -> PullError:
        if error.kind is not PullErrorKind.STALLED:
            return error
        return PullError(
            PullErrorKind.STALLED, f"{image} for {self._stall:g} s, {MAX_ATTEMPTS} times"
        )

    def _check_platform(self, image_platform: set[tuple[str, str]]) -> None:
        image_platform = {one for one in image_platform if all(one) and "unknown" not in one}
        if not image_platform:
            return
        own = self._calls.platform()
        if own in image_platform or not all(own):
            return
        theirs = ", ".join(sorted("/".join(one) for one in image_platform))
        if any((own, one) in _EMULATED_PLATFORMS for one in image_platform):
            self._notes.append(
                f"{self._text} is for {theirs}; this Docker Engine ({'/'.join(own)}) emulates it, "
                "slowly, if it can."
            )
            return
        raise PullError(
            PullErrorKind.PLATFORM, f"it is for {theirs}, and the Engine runs {'/'.join(own)}"
        )

    def _result(
        self, reference: ImageReference, found: Mapping[str, Any], digest: str = ""
    ) -> PulledImage:
        self._check_platform({(str(found.get("Os") or ""), str(found.get("Architecture") or ""))})
        digest = digest or _get_digest(reference, found)
        image = str(found["Id"])
        name = reference.pinned(digest) if digest else image
        return PulledImage(name, digest, image, tuple(dict.fromkeys(self._notes)))


def _get_platform(inspected: Mapping[str, Any]) -> tuple[str, str]:
    return str(inspected.get("os") or ""), str(inspected.get("architecture") or "")


def _get_digest(reference: ImageReference, found: Mapping[str, Any]) -> str:
    """By which its repository knows an image that is here; empty when it does not."""
    if reference.is_id:
        return ""
    if reference.digest:
        return reference.digest
    known = [str(one).rpartition("@") for one in found.get("RepoDigests") or ()]
    return next((digest for name, _, digest in known if name == reference.name), "")
