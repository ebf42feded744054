"""Progress of an image pull, counted from the Docker Engine's events."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, cast

from prefect_bt.text.progress import Progress, RateWindow

_DOWNLOADING: Final = {"Pulling fs layer", "Downloading"}
_RETRY_PREFIX: Final = "Retrying in"
_DOWNLOADED: Final = {"Verifying Checksum", "Download complete", "Extracting", "Pull complete"}
_DONE: Final = {"Already exists", "Pull complete"}
_STATES: Final = {*_DOWNLOADING, *_DOWNLOADED, *_DONE, "Waiting"}
"""The Engine's states of a layer (Engine 20.10 to 28)."""


@dataclass
class _Layer:
    state: str = ""
    done: int = 0
    total: int = 0


@dataclass
class LayerProgress:
    """Layers of one pull. Bytes are compressed; the total grows while layers become known."""

    reference: str
    note: str = ""
    _layers: dict[str, _Layer] = field(default_factory=dict[str, _Layer])
    _rates: RateWindow = field(default_factory=RateWindow)

    def update(self, event: Mapping[str, Any]) -> None:
        """Apply one event. Events that are not about a layer are ignored."""
        name, status = str(event.get("id", "")), str(event.get("status", ""))
        if not name or not (status in _STATES or status.startswith(_RETRY_PREFIX)):
            return
        layer = self._layers.setdefault(name, _Layer())
        layer.state = status
        if status == "Downloading":
            self._update_bytes(layer, event.get("progressDetail"))
        elif status.startswith(_RETRY_PREFIX):
            layer.done = 0
        elif status in _DOWNLOADED:
            layer.done = layer.total

    def snapshot(self, now: float) -> Progress:
        """Return the progress at `now`, in seconds of a monotonic clock."""
        layers = self._layers.values()
        done = sum(layer.done for layer in layers)
        return Progress(
            self.reference,
            items_done=sum(layer.state in _DONE for layer in layers),
            items_total=len(layers),
            bytes_done=done,
            bytes_total=sum(layer.total for layer in layers),
            rate=self._rates.add(now, done),
            note=self.note,
            unit="layer",
        )

    @property
    def is_local_work(self) -> bool:
        """Whether only local work is left: verifying and extracting."""
        states = [layer.state for layer in self._layers.values() if layer.state not in _DONE]
        return bool(states) and all(state in _DOWNLOADED for state in states)

    @staticmethod
    def _update_bytes(layer: _Layer, detail: object) -> None:
        known = cast("dict[str, Any]", detail) if isinstance(detail, dict) else {}
        layer.total = max(layer.total, int(known.get("total") or 0))
        layer.done = min(int(known.get("current") or 0), layer.total or int(1e18))
