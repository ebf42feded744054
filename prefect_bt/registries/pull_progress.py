"""Count layers and bytes of a pull from the Docker Engine's events. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

_RETRY_PREFIX: Final = "Retrying in"
_FETCHING: Final = {"Pulling fs layer", "Waiting", "Downloading"}
_FETCHED: Final = {"Verifying Checksum", "Download complete", "Extracting", "Pull complete"}
_DONE: Final = {"Already exists", "Pull complete"}


@dataclass(frozen=True)
class PullProgress:
    """Progress of one pull. Bytes are compressed; layers that were present add none.

    `bytes_total` grows while the Engine learns of layers. `rate` is in bytes per second, `note` is
    the newest sentence about a delay.
    """

    reference: str
    layers_done: int = 0
    layers_total: int = 0
    bytes_done: int = 0
    bytes_total: int = 0
    rate: float = 0.0
    note: str = ""

    @property
    def seconds_left(self) -> float | None:
        """Return the estimated remaining seconds; None when unknown."""
        left = self.bytes_total - self.bytes_done
        return left / self.rate if self.rate > 0 and left > 0 else None


ProgressCallback = Callable[[PullProgress], None]


@dataclass
class _Layer:
    state: str = ""
    done: int = 0
    total: int = 0


@dataclass
class LayerProgress:
    """The layers of one pull: `update` takes an event, `snapshot` returns the progress."""

    reference: str
    note: str = ""
    _layers: dict[str, _Layer] = field(default_factory=dict[str, _Layer])
    _start: tuple[float, int] | None = None

    def update(self, event: Mapping[str, Any]) -> None:
        """Record an event. Events without a layer are ignored."""
        name, status = str(event.get("id", "")), str(event.get("status", ""))
        is_retry = status.startswith(_RETRY_PREFIX)
        if not name or not (is_retry or status in _FETCHING | _FETCHED | _DONE):
            return
        layer = self._layers.setdefault(name, _Layer())
        layer.state = status
        if status == "Downloading":
            detail: Any = event.get("progressDetail") or {}
            layer.total = max(layer.total, int(detail.get("total") or 0))
            layer.done = int(detail.get("current") or 0)
        elif is_retry:
            layer.done = 0
        elif status in _FETCHED:
            layer.done = layer.total

    def snapshot(self, now: float) -> PullProgress:
        """Return the progress at `now`, a monotonic time in seconds."""
        layers = self._layers.values()
        done = sum(layer.done for layer in layers)
        start, before = self._start = self._start or (now, done)
        passed = now - start
        return PullProgress(
            reference=self.reference,
            layers_done=sum(layer.state in _DONE for layer in layers),
            layers_total=len(layers),
            bytes_done=done,
            bytes_total=sum(layer.total for layer in layers),
            rate=max(0, done - before) / passed if passed > 0.1 else 0.0,
            note=self.note,
        )

    @property
    def is_local_work(self) -> bool:
        """Return whether the Engine only has to verify and extract layers."""
        states = {layer.state for layer in self._layers.values()} - _DONE
        return bool(states) and states <= _FETCHED
