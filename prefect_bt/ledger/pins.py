"""Revisions of weights and the image that a job uses in all its attempts.

<job>/weights/<key of the source>.json      create-only
<job>/image.json                            create-only
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from prefect_bt import codec
from prefect_bt.errors import ObjectExists, ObjectNotFound, StoreError
from prefect_bt.object_store.protocols import Store

_REVISION: Final = re.compile(r"[0-9A-Za-z][0-9A-Za-z._-]{0,199}")
_DAMAGED: Final = (ValueError, TypeError, KeyError, AttributeError, RecursionError)


@dataclass(frozen=True)
class PinnedWeights:
    """Revision of a weights source that a job mounts in all attempts. `bytes` is its size."""

    revision: str
    files: int
    bytes: int
    at: float


class Pins:
    """`job_prefix` returns the folder of a job in the store, given its ID."""

    def __init__(
        self, store: Store, job_prefix: Callable[[str], str], *, clock: Callable[[], float]
    ) -> None:
        self._store, self._job_prefix, self._clock = store, job_prefix, clock

    def pin_weights(
        self, job_id: str, key: str, revision: str, *, files: int = 0, size: int = 0
    ) -> PinnedWeights:
        """Pin the job to a revision of the source `key`; return the pin that was first."""
        pin = PinnedWeights(revision, files, size, self._clock())
        try:
            self._store.create(self._weights_key(job_id, key), codec.dumps(pin).encode())
        except ObjectExists:
            return load_pin(self._store.get(self._weights_key(job_id, key)), key=key)
        return pin

    def read_weights(self, job_id: str) -> dict[str, PinnedWeights]:
        """Return the pins by the key of the source."""
        prefix = self._weights_key(job_id, "").rpartition("/")[0]
        return {
            info.key.rsplit("/", 1)[-1].removesuffix(".json"): load_pin(
                self._store.get(info.key), key=info.key
            )
            for info in self._store.list(prefix)
        }

    def pin_image(self, job_id: str, reference: str) -> str:
        """Pin the job to an image; return the image that was pinned first."""
        try:
            self._store.create(self._image_key(job_id), json.dumps(reference).encode())
        except ObjectExists:
            return self.read_image(job_id)
        return reference

    def read_image(self, job_id: str) -> str:
        """Return the image with its digest, or the id of a local one; "" before the pin."""
        try:
            return str(json.loads(self._store.get(self._image_key(job_id))))
        except ObjectNotFound:
            return ""

    def _weights_key(self, job_id: str, key: str) -> str:
        return f"{self._job_prefix(job_id)}/weights/{key}.json"

    def _image_key(self, job_id: str) -> str:
        return f"{self._job_prefix(job_id)}/image.json"


def load_pin(data: bytes, *, key: str) -> PinnedWeights:
    """Read the record at `key`; its revision becomes a part of a mounted folder's name.

    Raises StoreError for a damaged one, and for a revision that could lead out of the weights.
    """
    try:
        pin = codec.loads(PinnedWeights, data)
        if _REVISION.fullmatch(pin.revision):
            return pin
        why = f"pins weights to {pin.revision[:80]!r}, which is not a revision"
    except _DAMAGED:
        why = "is not a record of pinned weights"
    raise StoreError(
        f"{key} {why}.",
        key=key,
        next_step="It is corrupt or forged: delete it, and the job mirrors the weights again.",
    )
