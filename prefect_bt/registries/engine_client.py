"""Calls to a Docker Engine that can be interrupted, and pulls that can be aborted.

An Engine continues a stalled transfer as long as a client is connected, so a pull has to be
disconnected before it is retried. The SDK's `pull` gives no access to its connection.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import suppress
from importlib import import_module
from queue import Empty, SimpleQueue
from typing import Any, Final, TypeVar

from prefect_bt.errors import PrefectBtError
from prefect_bt.registries.pull_errors import PullError, PullErrorKind, classify_response
from prefect_bt.text.progress import Progress, RateWindow

T = TypeVar("T")

_ABANDONED_SECONDS: Final = 3600.0
"""Seconds without a byte from the Engine that end a pull that nobody waits for any more."""
_POLL_INTERVAL: Final = 0.1
"""Seconds between two checks for a stop."""
_DOWNLOADED: Final = {"Verifying Checksum", "Download complete", "Extracting", "Pull complete"}
_DONE: Final = {"Already exists", "Pull complete"}
_STATES: Final = {"Pulling fs layer", "Waiting", "Downloading", *_DOWNLOADED, *_DONE}
"""The Engine's states of a layer, beside `Retrying in 5 seconds` (Engine 20.10 to 28)."""


class EngineClient:
    """Blocking calls to `api`, a docker.APIClient. All raise PullError; STOPPED on a stop."""

    def __init__(self, api: Any, cancelled: threading.Event | None) -> None:
        self.api, self._cancelled = api, cancelled or threading.Event()
        self._errors: Any = import_module("docker.errors")
        self._requests: Any = import_module("requests.exceptions")

    def call(self, function: Callable[[], T]) -> T:
        """Return the result of `function`. On a stop its daemon thread is abandoned."""
        return next(found[0] for found in self._iterate(lambda: iter([(function(),)])) if found)

    def find_image(self, name: str) -> dict[str, Any] | None:
        """Return the description of an image on the Engine; None if it is not there."""
        try:
            return self.call(lambda: self.api.inspect_image(name))
        except PullError as error:
            if error.kind is PullErrorKind.NOT_FOUND:
                return None
            raise

    def inspect_distribution(self, name: str, header: str, *, seconds: float) -> dict[str, Any]:
        """Return `Descriptor` and `Platforms` of an image in a registry; STALLED after `seconds`.

        UNREACHABLE if the Engine gets no answer. The SDK's method has no time limit.
        """
        options, path = {"timeout": seconds}, f"/distribution/{name}/json"
        try:
            return self.call(lambda: self._send("GET", path, header, **options).json())
        except PullError as error:
            if error.kind is PullErrorKind.FAILED:
                error.kind = PullErrorKind.UNREACHABLE
            raise

    def pull(self, name: str, header: str) -> Generator[dict[str, Any] | None]:
        """Pull an image. Yield its events, and None after a _POLL_INTERVAL without one.

        Closing the generator makes the Engine abort the pull.
        """
        responses, closed = list[Any](), threading.Event()

        def read_events() -> Iterator[dict[str, Any]]:
            options = {"params": {"fromImage": name}, "stream": True, "timeout": _ABANDONED_SECONDS}
            with self._send("POST", "/images/create", header, **options) as response:
                responses.append(response)
                for line in () if closed.is_set() else response.iter_lines():
                    if line:
                        yield _parse_event(line)

        try:
            yield from self._iterate(read_events)
        finally:
            closed.set()
            for response in responses:
                with suppress(OSError, ValueError, RuntimeError):  # it has ended already
                    response.raw.shutdown()

    def _send(self, method: str, path: str, header: str, **options: Any) -> Any:
        headers = {"X-Registry-Auth": header or None}  # requests sends no header for None
        url = f"{self.api.base_url}/v{self.api.api_version}{path}"
        try:
            answer = self.api.request(method, url, headers=headers, **options)
            answer.raise_for_status()
        except self._requests.ReadTimeout:
            raise PullError(PullErrorKind.STALLED) from None
        except self._requests.HTTPError as error:
            self._errors.create_api_error_from_http_exception(error)
        else:
            return answer

    def _iterate(self, produce: Callable[[], Iterator[T]]) -> Generator[T | None]:
        """Yield what `produce` yields in a daemon thread; None after a _POLL_INTERVAL without."""
        items: SimpleQueue[T | Exception | None] = SimpleQueue()

        def run() -> None:
            last: Exception | None = PullError(PullErrorKind.FAILED)
            try:
                for item in produce():
                    items.put(item)
                last = None
            except (PullError, PrefectBtError) as error:
                last = error
            except self._errors.APIError as error:
                last = classify_response(error.status_code, str(error.explanation))
            except (self._requests.RequestException, self._errors.DockerException) as error:
                last = PullError(PullErrorKind.ENGINE_UNREACHABLE, _find_reason(error))
            finally:
                items.put(last)

        threading.Thread(target=run, name="registries-call", daemon=True).start()
        while not self._cancelled.is_set():
            try:
                item = items.get(timeout=_POLL_INTERVAL)
            except Empty:
                yield None
                continue
            if item is None:
                return
            if isinstance(item, Exception):
                raise item
            yield item
        raise PullError(PullErrorKind.STOPPED)


class LayerProgress:
    """Layers of one pull. Bytes are compressed; the total grows while layers become known."""

    def __init__(self, reference: str) -> None:
        self.reference, self.note = reference, ""
        self._layers, self._rates = dict[str, tuple[str, int, int]](), RateWindow()
        """Layers: id -> state, downloaded bytes, size."""

    def update(self, event: Mapping[str, Any]) -> None:
        """Apply one event. Events that are not about a layer are ignored."""
        layer, state = str(event.get("id", "")), str(event.get("status", ""))
        is_retry = state.startswith("Retrying in")
        if not layer or not (state in _STATES or is_retry):
            return
        _, done, size = self._layers.get(layer, ("", 0, 0))
        if state == "Downloading":
            detail: Mapping[str, Any] = event.get("progressDetail") or {}
            done, size = int(detail.get("current") or 0), max(size, int(detail.get("total") or 0))
        elif is_retry:
            done = 0
        elif state in _DOWNLOADED:
            done = size
        self._layers[layer] = state, done, size

    def snapshot(self, now: float) -> Progress:
        """Return the progress at `now`, in seconds of a monotonic clock."""
        layers = self._layers.values()
        bytes_done = sum(done for _, done, _ in layers)
        return Progress(
            self.reference,
            items_done=sum(state in _DONE for state, _, _ in layers),
            items_total=len(layers),
            bytes_done=bytes_done,
            bytes_total=sum(size for _, _, size in layers),
            rate=self._rates.add(now, bytes_done),
            note=self.note,
            unit="layer",
        )

    @property
    def is_local_work(self) -> bool:
        """Whether only local work is left: verifying and extracting."""
        states = {state for state, _, _ in self._layers.values()} - _DONE
        return bool(states) and states <= _DOWNLOADED


def _find_reason(error: BaseException) -> str:
    """Return the text of the innermost error, such as `[Errno 13] Permission denied`."""
    reasons = (*error.args, getattr(error, "reason", None))
    inner = next((one for one in reversed(reasons) if isinstance(one, BaseException)), None)
    return _find_reason(inner) if inner else str(error)


def _parse_event(line: bytes) -> dict[str, Any]:
    """Return an event of a pull; PullError for an error event."""
    event: Any = json.loads(line)
    detail: Any = event.get("errorDetail") or {}
    if message := detail.get("message") or event.get("error"):
        raise classify_response(int(detail.get("code") or 0), str(message))
    return event
