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

from prefect_bt.registries.engine import LOOK, Calls, refusal
from prefect_bt.registries.faults import Fault, Trouble, trouble_of
from prefect_bt.registries.progress import Layers, Tell

LOCAL_FACTOR: Final = 10
TOLD_EVERY: Final = 1.0
"""Seconds between two words."""
_END: Final[dict[str, Any]] = {}


@dataclass
class Stream:
    """`name` is what is pulled; `stall` in seconds. Used once."""

    calls: Calls
    name: str
    header: str = field(repr=False)
    layers: Layers
    stall: float
    tell: Tell | None = None
    _events: SimpleQueue[dict[str, Any] | Trouble] = field(
        default_factory=SimpleQueue[dict[str, Any] | Trouble], init=False
    )
    _answer: Any = field(default=None, init=False)
    _over: threading.Event = field(default_factory=threading.Event, init=False)
    _told: float = field(default=0.0, init=False)

    def run(self) -> None:
        """Until the image is there. Trouble: STALLED, STOPPED, or what the Engine says."""
        threading.Thread(target=self._listen, name="registries-pull", daemon=True).start()
        try:
            self._follow()
        finally:
            self._break_off()

    def _follow(self) -> None:
        changed = time.monotonic()
        while True:
            self.calls.check()
            try:
                event = self._events.get(timeout=LOOK)
            except Empty:
                patience = self.stall * (LOCAL_FACTOR if self.layers.local else 1)
                if time.monotonic() - changed > patience:
                    raise Trouble(Fault.STALLED) from None
            else:
                changed = time.monotonic()
                if isinstance(event, Trouble):
                    raise event
                if event is _END:
                    break
                self.layers.take(event)
            self._say(time.monotonic() - self._told >= TOLD_EVERY)
        self._say(True)

    def _say(self, due: bool) -> None:
        if due and self.tell is not None:
            self._told = time.monotonic()
            self.tell(self.layers.look(self._told))

    def _listen(self) -> None:
        """In its own thread: from the Engine's answer to events, the last of them _END or why."""
        last: dict[str, Any] | Trouble = Trouble(
            Fault.ENGINE_UNREACHABLE, "it broke off in the middle of a pull"
        )
        faults: Any = import_module("requests.exceptions")
        try:
            seconds = 2 * LOCAL_FACTOR * self.stall  # who waits gives up before
            self._answer = self.calls.begin_pull(self.name, self.header, seconds=seconds)
            if self._answer.status_code != 200:
                last = refusal(self._answer)
            elif not self._over.is_set():
                last = self._read_events()
        except Trouble as trouble:
            last = trouble
        except faults.RequestException:
            pass
        finally:
            self._events.put(last)
            if self._answer is not None:
                self._answer.close()

    def _read_events(self) -> dict[str, Any] | Trouble:
        for line in self._answer.iter_lines():
            event = _parse(line)
            if event.get("error") or event.get("errorDetail"):
                return _told_trouble(event)
            self._events.put(event)
        return _END

    def _break_off(self) -> None:
        """Wakes the thread that listens; the Engine gives up what nobody waits for.

        Before there is an answer nothing can be woken: that thread ends with its own patience.
        """
        self._over.set()
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


def _told_trouble(event: Mapping[str, Any]) -> Trouble:
    detail: object = event.get("errorDetail")
    known = cast("dict[str, Any]", detail) if isinstance(detail, dict) else {}
    said = str(known.get("message") or event.get("error") or "")
    code = known.get("code")
    return trouble_of(said, code if isinstance(code, int) else 200)
