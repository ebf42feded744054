"""Progress of an image pull, counted from the Docker Engine's events."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from prefect_bt.text.progress import Progress, RateWindow

_DOWNLOADED: Final = {"Verifying Checksum", "Download complete", "Extracting", "Pull complete"}
_DONE: Final = {"Already exists", "Pull complete"}
_STATES: Final = {"Pulling fs layer", "Waiting", "Downloading", *_DOWNLOADED, *_DONE}
"""The Engine's states of a layer, beside `Retrying in 5 seconds` (Engine 20.10 to 28)."""


@dataclass
class LayerProgress:
    """Layers of one pull. Bytes are compressed; the total grows while layers become known."""

    reference: str
    note: str = ""
    _layers: dict[str, tuple[str, int, int]] = field(
        default_factory=dict[str, tuple[str, int, int]]
    )
    """Id -> state, downloaded bytes, size."""
    _rates: RateWindow = field(default_factory=RateWindow)

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
