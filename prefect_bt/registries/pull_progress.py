"""How far a pull is, counted from the Docker Engine's events. Pure: the clock is an argument."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, cast

_WINDOW: Final = 10.0
"""Seconds over which a rate is taken."""

_FETCHING: Final = {"Pulling fs layer", "Downloading"}
_RETRY_PREFIX: Final = "Retrying in"
_FETCHED: Final = {"Verifying Checksum", "Download complete", "Extracting", "Pull complete"}
_DONE: Final = {"Already exists", "Pull complete"}
_STATES: Final = {*_FETCHING, *_FETCHED, *_DONE, "Waiting"}
"""The Engine's words of one layer (Engine 20.10 to 28)."""


@dataclass(frozen=True)
class PullProgress:
    """Layers that are here as files count as done. Bytes are compressed, as they travel.

    `bytes_total` grows while the Engine learns of layers; layers that were here add nothing to it.
    """

    reference: str
    layers_done: int = 0
    layers_total: int = 0
    bytes_done: int = 0
    bytes_total: int = 0
    rate: float = 0.0
    """Bytes a second, over the last seconds; 0 when nothing moves."""
    note: str = ""
    """What slows it down: one sentence, the newest."""

    @property
    def seconds_left(self) -> float | None:
        """Until the known bytes are here; None when it cannot be told."""
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
    """The layers of one pull; `update` each event, `snapshot` at any time."""

    reference: str
    note: str = ""
    _layers: dict[str, _Layer] = field(default_factory=dict[str, _Layer])
    _samples: deque[tuple[float, int]] = field(default_factory=deque[tuple[float, int]])

    def update(self, event: Mapping[str, Any]) -> None:
        """One event; what is not about a layer is passed over."""
        name, status = str(event.get("id", "")), str(event.get("status", ""))
        if not name or not (status in _STATES or status.startswith(_RETRY_PREFIX)):
            return
        layer = self._layers.setdefault(name, _Layer())
        layer.state = status
        if status == "Downloading":
            self._update_bytes(layer, event.get("progressDetail"))
        elif status.startswith(_RETRY_PREFIX):
            layer.done = 0
        elif status in _FETCHED:
            layer.done = layer.total

    def snapshot(self, now: float) -> PullProgress:
        """`now` in seconds, of a clock that never goes back."""
        layers = self._layers.values()
        done = sum(layer.done for layer in layers)
        self._samples.append((now, done))
        while len(self._samples) > 2 and now - self._samples[0][0] > _WINDOW:
            self._samples.popleft()
        since, before = self._samples[0]
        passed = now - since
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
        """Whether all that is left is this disk's work: checking and extracting."""
        states = [layer.state for layer in self._layers.values() if layer.state not in _DONE]
        return bool(states) and all(state in _FETCHED for state in states)

    @staticmethod
    def _update_bytes(layer: _Layer, detail: object) -> None:
        known = cast("dict[str, Any]", detail) if isinstance(detail, dict) else {}
        layer.total = max(layer.total, int(known.get("total") or 0))
        layer.done = min(int(known.get("current") or 0), layer.total or int(1e18))
