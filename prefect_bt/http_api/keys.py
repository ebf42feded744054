"""Keys of the API, in the store: any server of the store accepts them.

A key looks like `prefect-bt-abc1234-<40 hex digits>`: whoever sees it in a file or a log of another
service knows what it is. The store has its id and a salted hash.
"""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from prefect_bt.credentials.key_hashes import KeyHash, hash_key, verify_key
from prefect_bt.errors import NotFoundError, UsageError
from prefect_bt.ledger.creation import create_object
from prefect_bt.ledger.job_objects import find_object
from prefect_bt.ledger.projects import DEFAULT_TEAM, normalize_team
from prefect_bt.object_keys import API_KEYS, api_key_key, make_id
from prefect_bt.object_store.protocols import Store
from prefect_bt.text.quantities import format_iso

_SECRET_BYTES: Final = 20
_FORMAT: Final = re.compile(r"prefect-bt-([0-9a-z]{7})-[0-9a-f]{40}")
_REUSE_SECONDS: Final = 5.0
"""Seconds in which a record that was read is used again: a revoked key is refused after them."""
_MAX_REUSED: Final = 1000
_MAX_LIFETIME: Final = 100 * 365 * 86400.0


@dataclass(frozen=True)
class KeyRecord:
    """A key as it is stored. `team`: None for all teams, "" for the default team."""

    id: str
    name: str
    hash: KeyHash
    created_at: float
    team: str | None = None
    expires_at: float | None = None

    def has_expired(self, now: float) -> bool:
        return self.expires_at is not None and now >= self.expires_at


class ApiKeys:
    """Creates, lists, revokes and verifies the keys of one store."""

    def __init__(self, store: Store, *, clock: Callable[[], float] = time.time) -> None:
        self._store, self._clock = store, clock
        self._recent: dict[str, tuple[float, KeyRecord | None]] = {}

    def create(
        self, name: str, *, team: str | None = None, lifetime: float | None = None
    ) -> tuple[str, KeyRecord]:
        """Create a key; return it with its record. Nothing can show it again.

        `lifetime` in seconds. Raise UsageError if another key has the name.
        """
        step = "Choose another name, such as that of its user or machine."
        if not name.strip() or not name.isprintable():
            raise UsageError(f"{name!r} is not the name of a key.", next_step=step)
        if any(record.name == name for record in self.list()):
            raise UsageError(f"A key named {name!r} exists already.", next_step=step)
        if lifetime is not None and lifetime > _MAX_LIFETIME:
            step = "Write for example --expires 30d, or leave it out."
            raise UsageError("A key expires within 100 years or never.", next_step=step)
        team, now = None if team is None else normalize_team(team), self._clock()
        while True:
            key_id = make_id()
            key = f"prefect-bt-{key_id}-{secrets.token_hex(_SECRET_BYTES)}"
            expires_at = None if lifetime is None else now + lifetime
            record = KeyRecord(key_id, name, hash_key(key), now, team, expires_at)
            if create_object(self._store, api_key_key(key_id), record):
                return key, record

    def list(self) -> list[KeyRecord]:
        """Return the records of all keys, the oldest first."""
        infos = self._store.list(API_KEYS)
        found = (find_object(self._store, info.key, KeyRecord) for info in infos)
        return sorted(filter(None, found), key=lambda record: (record.created_at, record.id))

    def revoke(self, name_or_id: str) -> KeyRecord:
        """Delete the key. NotFoundError if there is none."""
        for record in self.list():
            if name_or_id in (record.id, record.name):
                self._store.delete(api_key_key(record.id))
                return record
        raise NotFoundError("key", name_or_id, next_step="List the keys: prefect-bt api-key list.")

    def verify(self, key: str) -> KeyRecord | None:
        """Return the record of a valid key; None for any other text. StoreError."""
        match = _FORMAT.fullmatch(key)
        record = self.find_active(match[1]) if match else None
        return record if record and verify_key(record.hash, key) else None

    def is_active(self, key_id: str) -> bool:
        """Return whether the key exists and has not expired. StoreError."""
        return self.find_active(key_id) is not None

    def find_active(self, key_id: str) -> KeyRecord | None:
        """Return the record of a key that exists and has not expired. StoreError."""
        record = self._read(key_id)
        return None if record is None or record.has_expired(self._clock()) else record

    def _read(self, key_id: str) -> KeyRecord | None:
        read_at, record = self._recent.get(key_id, (-_REUSE_SECONDS, None))
        if record is not None and self._clock() - read_at < _REUSE_SECONDS:
            return record
        record = find_object(self._store, api_key_key(key_id), KeyRecord)
        if len(self._recent) >= _MAX_REUSED:
            self._recent.clear()
        self._recent[key_id] = (self._clock(), record)
        return record


def key_document(record: KeyRecord) -> dict[str, object]:
    """Return the record JSON-ready, without the hash."""
    return {
        "id": record.id,
        "name": record.name,
        "team": record.team if record.team is None else record.team or DEFAULT_TEAM,
        "created_at": format_iso(record.created_at),
        "expires_at": None if record.expires_at is None else format_iso(record.expires_at),
    }
