"""Bring an image onto the Docker Engine and pin it to its digest.

docs/registries.md says which image is used when the Engine, the registry or both have one.
"""

from __future__ import annotations

import textwrap
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Any, Final, TypeVar

from prefect_bt.credentials.redaction import Redactor
from prefect_bt.registries.credentials import ANONYMOUS, Login, resolve_login
from prefect_bt.registries.engine_client import EngineClient, LayerProgress
from prefect_bt.registries.pull_errors import PullError, PullErrorKind, to_image_error
from prefect_bt.registries.reference import ImageReference, parse_reference
from prefect_bt.settings import Settings
from prefect_bt.text.progress import ProgressCallback

T = TypeVar("T")

MAX_ATTEMPTS: Final = 3
"""Attempts of a call that stalls."""
DIGEST_TIMEOUT: Final = 10.0
"""Seconds for a registry to answer when the Engine has an image of that tag."""
MAX_MESSAGE_CHARS: Final = 300
_REPORT_INTERVAL: Final = 1.0
_LOCAL_STALL_FACTOR: Final = 10
"""More patience while the Engine verifies and extracts layers, which it does without events."""
_REFUSALS: Final = {PullErrorKind.NOT_FOUND, PullErrorKind.REFUSED}
_NO_ANSWERS: Final = {PullErrorKind.UNREACHABLE, PullErrorKind.STALLED}
_EMULATED: Final = {("linux", "arm64"): ("linux", "amd64")}
"""Engine's platform to another that most Engines of that kind run, as on Apple's machines."""


@dataclass(frozen=True)
class PulledImage:
    """An image on the Engine. A record pins `reference`: `repository@sha256:…`, or the id.

    `digest` is empty if no registry has the image. `notes` are sentences for the job's log.
    """

    reference: str
    digest: str
    id: str
    notes: tuple[str, ...] = ()


def pull_image(  # noqa: PLR0913 (the image, its login, and callbacks)
    engine: Any,
    reference: str,
    auth: Mapping[str, object] | None = None,
    *,
    secrets: Mapping[str, str] = MappingProxyType({}),
    on_progress: ProgressCallback | None = None,
    cancelled: threading.Event | None = None,
) -> PulledImage:
    """Pull an image with `engine`, a docker.APIClient, unless it has it. ImageError, SecretError.

    `auth` is ImagePlan.auth, `secrets` has the values of its references. `on_progress` is called in
    this thread once a second. A set `cancelled` ends the call within a second, fault `stopped`.
    """
    client, wanted = EngineClient(engine, cancelled), ImageReference(reference)
    pull = _ImagePull(client, wanted, auth, secrets, on_progress or (lambda _: None))
    try:
        return pull.run()
    except PullError as error:
        message = Redactor([*secrets.values(), *pull.login.secrets])(error.message)
        error.message = textwrap.shorten(message, MAX_MESSAGE_CHARS, placeholder="…")
        raise to_image_error(error, reference, pull.wanted.host, pull.login.identity) from None


@dataclass
class _ImagePull:
    client: EngineClient
    wanted: ImageReference
    auth: Mapping[str, object] | None
    secrets: Mapping[str, str] = field(repr=False)
    on_progress: ProgressCallback
    stall_timeout: float = field(default_factory=lambda: Settings().stall_seconds)
    login: Login = ANONYMOUS
    notes: list[str] = field(default_factory=list[str])

    def run(self) -> PulledImage:
        self.wanted = parse_reference(self.wanted.text)
        local = self.client.find_image(self.wanted.pull_name)
        if local is not None and (self.wanted.digest or self._is_built_locally(local)):
            return self._result(local, "" if self.wanted.is_id else self.wanted.digest)
        if self.wanted.is_id:
            raise PullError(PullErrorKind.NOT_FOUND)
        try:
            description = self._inspect_distribution(is_local=local is not None)
        except PullError as error:
            accepted = _NO_ANSWERS if self.auth else _NO_ANSWERS | _REFUSALS
            if local is None or error.kind not in accepted:
                raise
            what = f"{self.wanted.host} did not provide {self.wanted.text} ({error.kind.fault})"
            self.notes.append(f"{what}: the image on this Docker Engine is used.")
            return self._result(local)
        return self._ensure_pulled(description)

    def _is_built_locally(self, local: Mapping[str, Any]) -> bool:
        """Return whether the image was neither pulled nor pushed, and no registry is named.

        Docker Hub is not asked for it, because a stranger may own that name there.
        """
        if local.get("RepoDigests") or self.wanted.has_explicit_host or self.auth is not None:
            return False
        self.notes.append(f"{self.wanted.text} was built on this Engine: no registry is asked.")
        return True

    def _inspect_distribution(self, *, is_local: bool) -> Mapping[str, Any]:
        """Log in, and return the registry's description of the image."""
        self.login = self.client.call(lambda: resolve_login(self.wanted, self.auth, self.secrets))
        name, header = self.wanted.pull_name, self.login.header
        seconds = min(self.stall_timeout, DIGEST_TIMEOUT) if is_local else self.stall_timeout
        return self._retry_stalled(
            lambda _: self.client.inspect_distribution(name, header, seconds=seconds),
            attempts=1 if is_local else MAX_ATTEMPTS,
            problem=f"{self.wanted.host} did not answer",
        )

    def _retry_stalled(self, call: Callable[[bool], T], *, attempts: int, problem: str) -> T:
        """Call until the call does not stall. Its argument: whether this is a retry."""
        for attempt in range(attempts):
            try:
                return call(attempt > 0)
            except PullError as error:
                if error.kind is not PullErrorKind.STALLED:
                    raise
        message = f"{problem} for {self.stall_timeout:g} s, {attempts} times"
        raise PullError(PullErrorKind.STALLED, message)

    def _ensure_pulled(self, description: Mapping[str, Any]) -> PulledImage:
        wanted = self.wanted
        descriptor: Mapping[str, Any] = description.get("Descriptor") or {}
        digest = str(descriptor.get("digest") or "")
        if not digest:
            raise PullError(PullErrorKind.FAILED, f"{wanted.host} did not provide a digest")
        name = wanted.pinned(digest)
        found = self.client.find_image(name)
        if found is None:
            platforms = description.get("Platforms") or ()
            self._check_platform({(p.get("os"), p.get("architecture")) for p in platforms})
            problem = "nothing arrived and nothing changed"
            self._retry_stalled(partial(self._pull, name), attempts=MAX_ATTEMPTS, problem=problem)
            found = self.client.call(lambda: self.client.api.inspect_image(name))
        if not wanted.digest:
            self.client.call(lambda: self.client.api.tag(found["Id"], wanted.name, wanted.tag))
        return self._result(found, digest)

    def _pull(self, name: str, is_retry: bool) -> None:
        layers, reported = LayerProgress(self.wanted.text), 0.0
        if is_retry:
            layers.note = f"The pull of {self.wanted.text} stalled and was started again."
            self.notes.append(layers.note)
        changed = time.monotonic()
        with closing(self.client.pull(name, self.login.header)) as events:
            for event in events:
                now = time.monotonic()
                if event:
                    changed = now
                    layers.update(event)
                patience = self.stall_timeout * (_LOCAL_STALL_FACTOR if layers.is_local_work else 1)
                if now - changed > patience:
                    raise PullError(PullErrorKind.STALLED)
                if now - reported >= _REPORT_INTERVAL:
                    reported = now
                    self.on_progress(layers.snapshot(now))
        self.on_progress(layers.snapshot(time.monotonic()))

    def _check_platform(self, platforms: set[tuple[Any, Any]]) -> None:
        """Raise PullError PLATFORM if the Engine runs none of `platforms`, pairs of (OS, CPU)."""
        known = {one for one in platforms if all(one) and "unknown" not in one}
        if not known:
            return
        engine = self.client.call(self.client.api.version)
        own = (engine.get("Os"), engine.get("Arch"))
        if all(own) and not known & {own, _EMULATED.get(own)}:
            names = ", ".join(sorted(map("/".join, known)))
            message = f"it is for {names}, and the Engine runs {'/'.join(own)}"
            raise PullError(PullErrorKind.PLATFORM, message)

    def _result(self, found: Mapping[str, Any], digest: str = "") -> PulledImage:
        """Return the image by `digest`, or by the digest of its repository that the Engine has."""
        self._check_platform({(found.get("Os"), found.get("Architecture"))})
        prefix, image = self.wanted.pinned(""), str(found["Id"])
        known = [one for one in found.get("RepoDigests") or () if one.startswith(prefix)]
        digest = digest or (known[0].removeprefix(prefix) if known else "")
        reference = self.wanted.pinned(digest) if digest else image
        return PulledImage(reference, digest, image, tuple(dict.fromkeys(self.notes)))
