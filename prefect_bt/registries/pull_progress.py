"""Progress of an image pull, counted from the Docker Engine's events."""

from __future__ import annotations

from collections import Counter
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
    _states: dict[str, str] = field(default_factory=dict[str, str])
    _done: Counter[str] = field(default_factory=Counter[str])
    _totals: Counter[str] = field(default_factory=Counter[str])
    _rates: RateWindow = field(default_factory=RateWindow)

    def update(self, event: Mapping[str, Any]) -> None:
        """Apply one event. Events that are not about a layer are ignored."""
        layer, status = str(event.get("id", "")), str(event.get("status", ""))
        is_retry = status.startswith("Retrying in")
        if not layer or not (status in _STATES or is_retry):
            return
        self._states[layer] = status
        if status == "Downloading":
            detail: Mapping[str, Any] = event.get("progressDetail") or {}
            done, total = int(detail.get("current") or 0), int(detail.get("total") or 0)
            self._totals[layer] = total = max(self._totals[layer], total)
            self._done[layer] = min(done, total) if total else done
        elif is_retry:
            self._done[layer] = 0
        elif status in _DOWNLOADED:
            self._done[layer] = self._totals[layer]

    def snapshot(self, now: float) -> Progress:
        """Return the progress at `now`, in seconds of a monotonic clock."""
        done = self._done.total()
        return Progress(
            self.reference,
            items_done=sum(state in _DONE for state in self._states.values()),
            items_total=len(self._states),
            bytes_done=done,
            bytes_total=self._totals.total(),
            rate=self._rates.add(now, done),
            note=self.note,
            unit="layer",
        )

    @property
    def is_local_work(self) -> bool:
        """Whether only local work is left: verifying and extracting."""
        states = set(self._states.values()) - _DONE
        return bool(states) and states <= _DOWNLOADED
