"""The Docker Engine's verbs that bring images, over the session of the SDK's client.

The client's own `pull` waits without limit for an answer's first byte and gives no hold on the
connection, and its `inspect_distribution` has one time limit. Here every call is made in a thread
of its own, so that who waits can be interrupted, and a stream can be broken off.
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Mapping
from importlib import import_module
from queue import Empty, SimpleQueue
from typing import Any, Final, Protocol, TypeVar, cast

from prefect_bt.errors import PrefectBtError
from prefect_bt.registries.pull_errors import PullError, PullErrorKind, classify_error

T = TypeVar("T")

POLL_INTERVAL: Final = 0.1
"""Seconds between two looks at whether somebody wants to end it."""
LOCAL_TIMEOUT: Final = 60.0
"""What the Engine may take for what needs no registry; its disk may be busy."""
AUTH_HEADER: Final = "X-Registry-Auth"


class DockerApi(Protocol):
    """What is used of `docker.APIClient` (a `DockerClient` has one as `api`)."""

    base_url: Any

    @property
    def api_version(self) -> str: ...

    def get(self, url: str, **given: Any) -> Any: ...

    def post(self, url: str, **given: Any) -> Any: ...


class EngineClient:
    """Blocking calls that end with Trouble STOPPED soon after `cancelled` is set."""

    def __init__(self, engine: DockerApi, cancelled: threading.Event | None) -> None:
        self.engine, self._cancelled = engine, cancelled

    def raise_if_cancelled(self) -> None:
        if self._cancelled is not None and self._cancelled.is_set():
            raise PullError(PullErrorKind.STOPPED)

    def run_interruptibly(self, call: Callable[[], T]) -> T:
        """What `call` answers or raises, in a thread of its own that is left alone when stopped."""
        outcome: SimpleQueue[tuple[T | None, Exception | None]] = SimpleQueue()

        def run() -> None:
            told: tuple[T | None, Exception | None] = (None, PullError(PullErrorKind.UNKNOWN))
            try:
                told = call(), None
            except (PullError, PrefectBtError) as error:
                told = None, error
            finally:
                outcome.put(told)

        threading.Thread(target=run, name="registries-call", daemon=True).start()
        while True:
            self.raise_if_cancelled()
            try:
                answer, error = outcome.get(timeout=POLL_INTERVAL)
            except Empty:
                continue
            if error is not None:
                raise error
            return cast("T", answer)

    def find_image(self, name: str) -> dict[str, Any] | None:
        """What the Engine knows of an image that is there; None when it has none of that name."""
        answer = self.run_interruptibly(
            lambda: self._get(f"/images/{name}/json", {}, LOCAL_TIMEOUT)
        )
        return None if answer.status_code == 404 else _parse_response(answer)

    def platform(self) -> tuple[str, str]:
        """(`linux`, `amd64`)"""
        told = _parse_response(
            self.run_interruptibly(lambda: self._get("/version", {}, LOCAL_TIMEOUT))
        )
        return str(told.get("Os", "")), str(told.get("Arch", ""))

    def inspect_distribution(self, name: str, header: str, *, seconds: float) -> dict[str, Any]:
        """What the registry says of an image: `Descriptor` and `Platforms`.

        Trouble STALLED when there is no answer in so many seconds.
        """
        headers = {AUTH_HEADER: header} if header else {}
        path = f"/distribution/{name}/json"
        return _parse_response(
            self.run_interruptibly(lambda: self._get(path, headers, seconds, stalls=True))
        )

    def tag(self, image: str, repository: str, tag: str) -> None:
        """Let `repository:tag` mean `image`, as `docker pull` does."""
        path, params = f"/images/{image}/tag", {"repo": repository, "tag": tag}
        answer = self.run_interruptibly(lambda: self._post(path, params, {}, LOCAL_TIMEOUT))
        if answer.status_code >= 300:
            _parse_response(answer)

    def start_pull(self, name: str, header: str, *, seconds: float) -> Any:
        """The Engine's answer, unread. Blocks until it has one; `seconds` a silence at most."""
        headers = {AUTH_HEADER: header} if header else {}
        return self._post("/images/create", {"fromImage": name}, headers, seconds, stream=True)

    def _get(
        self, path: str, headers: Mapping[str, str], seconds: float, *, stalls: bool = False
    ) -> Any:
        return _send(
            lambda: self.engine.get(self._url(path), headers=headers, timeout=seconds),
            stalls=stalls,
        )

    def _post(
        self,
        path: str,
        params: Mapping[str, str],
        headers: Mapping[str, str],
        seconds: float,
        **more: Any,
    ) -> Any:
        url = self._url(path)
        return _send(
            lambda: self.engine.post(url, params=params, headers=headers, timeout=seconds, **more)
        )

    def _url(self, path: str) -> str:
        return f"{self.engine.base_url}/v{self.engine.api_version}{path}"


def _send(send: Callable[[], Any], *, stalls: bool = False) -> Any:
    faults: Any = import_module("requests.exceptions")
    try:
        return send()
    except faults.ReadTimeout:
        raise PullError(
            PullErrorKind.STALLED if stalls else PullErrorKind.ENGINE_UNREACHABLE
        ) from None
    except faults.RequestException as error:
        raise PullError(PullErrorKind.ENGINE_UNREACHABLE, _reason(error)) from None


def _reason(error: Exception) -> str:
    """The innermost words, such as `[Errno 13] Permission denied`."""
    seen: BaseException = error
    while inner := _inner(seen):
        seen = inner
    return str(seen)


def _inner(error: BaseException) -> BaseException | None:
    reasons = (*error.args, getattr(error, "reason", None))
    return next((one for one in reversed(reasons) if isinstance(one, BaseException)), None)


def _parse_response(answer: Any) -> dict[str, Any]:
    """The answer's JSON object; Trouble for what is none, or for a refusal."""
    if answer.status_code != 200:
        raise response_error(answer)
    try:
        found = answer.json()
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise PullError(PullErrorKind.UNKNOWN, "an answer that is no JSON object")
    return cast("dict[str, Any]", found)


def response_error(answer: Any) -> PullError:
    """What an answer with another status than 200 says."""
    text = str(answer.text)
    with contextlib.suppress(ValueError, KeyError, TypeError):
        text = str(json.loads(text)["message"])
    return classify_error(text, answer.status_code)
