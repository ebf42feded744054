"""One pull, as the Docker Engine tells of it: watched for silence, and broken off from outside.

The Engine tells of a layer every 512 KiB or hundredth of it, whichever is less: a layer that comes
with less than some 17 kB/s can look silent for 30 seconds. Checking and extracting a large one is
silent for longer, and no registry's fault: there the patience is LOCAL_FACTOR times as long.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from queue import Empty, SimpleQueue
from typing import Any, Final, cast

from prefect_bt.registries.docker_api import POLL_INTERVAL, EngineClient, response_error
from prefect_bt.registries.pull_errors import PullError, PullErrorKind, classify_error
from prefect_bt.registries.pull_progress import LayerProgress
from prefect_bt.text.progress import ProgressCallback

LOCAL_STALL_FACTOR: Final = 10
REPORT_INTERVAL: Final = 1.0
"""Seconds between two words."""
_END: Final[dict[str, Any]] = {}


@dataclass
class PullStream:
    """`name` is what is pulled; `stall_timeout` in seconds. Used once."""

    client: EngineClient
    name: str
    header: str = field(repr=False)
    layers: LayerProgress
    stall_timeout: float
    on_progress: ProgressCallback | None = None
    _events: SimpleQueue[dict[str, Any] | PullError] = field(
        default_factory=SimpleQueue[dict[str, Any] | PullError], init=False
    )
    _answer: Any = field(default=None, init=False)
    _closed: threading.Event = field(default_factory=threading.Event, init=False)
    _reported_at: float = field(default=0.0, init=False)

    def run(self) -> None:
        """Until the image is there. Trouble: STALLED, STOPPED, or what the Engine says."""
        threading.Thread(target=self._read_response, name="registries-pull", daemon=True).start()
        try:
            self._process_events()
        finally:
            self._abort()

    def _process_events(self) -> None:
        changed = time.monotonic()
        while True:
            self.client.raise_if_cancelled()
            try:
                event = self._events.get(timeout=POLL_INTERVAL)
            except Empty:
                patience = self.stall_timeout * (
                    LOCAL_STALL_FACTOR if self.layers.is_local_work else 1
                )
                if time.monotonic() - changed > patience:
                    raise PullError(PullErrorKind.STALLED) from None
            else:
                changed = time.monotonic()
                if isinstance(event, PullError):
                    raise event
                if event is _END:
                    break
                self.layers.update(event)
            self._report(time.monotonic() - self._reported_at >= REPORT_INTERVAL)
        self._report(True)

    def _report(self, due: bool) -> None:
        if due and self.on_progress is not None:
            self._reported_at = time.monotonic()
            self.on_progress(self.layers.snapshot(self._reported_at))

    def _read_response(self) -> None:
        """In its own thread: from the Engine's answer to events, the last of them _END or why."""
        last: dict[str, Any] | PullError = PullError(
            PullErrorKind.ENGINE_UNREACHABLE, "it broke off in the middle of a pull"
        )
        faults: Any = import_module("requests.exceptions")
        try:
            seconds = 2 * LOCAL_STALL_FACTOR * self.stall_timeout  # who waits gives up before
            self._answer = self.client.start_pull(self.name, self.header, seconds=seconds)
            if self._answer.status_code != 200:
                last = response_error(self._answer)
            elif not self._closed.is_set():
                last = self._read_events()
        except PullError as trouble:
            last = trouble
        except faults.RequestException:
            pass
        finally:
            self._events.put(last)
            if self._answer is not None:
                self._answer.close()

    def _read_events(self) -> dict[str, Any] | PullError:
        for line in self._answer.iter_lines():
            event = _parse(line)
            if event.get("error") or event.get("errorDetail"):
                return _parse_error_event(event)
            self._events.put(event)
        return _END

    def _abort(self) -> None:
        """Wakes the thread that listens; the Engine gives up what nobody waits for.

        Before there is an answer nothing can be woken: that thread ends with its own patience.
        """
        self._closed.set()
        answer = self._answer
        if answer is not None:
            with contextlib.suppress(OSError, ValueError, RuntimeError):  # ended by itself
                answer.raw.shutdown()


def _parse(line: bytes) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except ValueError:
        found = None
    return cast("dict[str, Any]", found) if isinstance(found, dict) else {"status": ""}


def _parse_error_event(event: Mapping[str, Any]) -> PullError:
    detail: object = event.get("errorDetail")
    known = cast("dict[str, Any]", detail) if isinstance(detail, dict) else {}
    said = str(known.get("message") or event.get("error") or "")
    code = known.get("code")
    return classify_error(said, code if isinstance(code, int) else 200)
