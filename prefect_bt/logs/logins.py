"""Records of the shells that users opened in the nodes of a job, which are lines of its log.

<job>/logins/<nanoseconds>-<nonce>.json     create-only
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from prefect_bt import codec
from prefect_bt.ledger.job_objects import DAMAGED
from prefect_bt.ledger.ledger import Ledger
from prefect_bt.ledger.records import JobRecord
from prefect_bt.object_keys import logins_prefix


@dataclass(frozen=True)
class Login:
    """A shell, or a command, in one node. `machine`: where the user ran `prefect-bt shell`."""

    at: float
    user: str
    machine: str
    rank: int
    attempt: int
    command: str = ""
    """Name of the program, without its arguments; "" for a shell."""
    with_secrets: bool = False

    @property
    def message(self) -> str:
        what = f"ran {self.command}" if self.command else "opened a shell"
        secrets = ", with secrets" if self.with_secrets else ""
        return f"{self.user or 'A user'} {what} in rank {self.rank} on {self.machine}{secrets}."


def write_login(ledger: Ledger, record: JobRecord, login: Login) -> None:
    """Write the record. StoreError: then nobody may log in."""
    name = f"{int(login.at * 1e9):020d}-{os.urandom(4).hex()}.json"
    key = f"{logins_prefix(record.project_id, record.id)}/{name}"
    ledger.store.create(key, codec.dumps(login).encode())


class LoginReader:
    """The logins of a job. A record never changes, so each is read once."""

    def __init__(self, ledger: Ledger, record: JobRecord) -> None:
        self._store = ledger.store
        self._prefix = logins_prefix(record.project_id, record.id)
        self._known: dict[str, Login | None] = {}

    def read(self) -> list[Login]:
        """Return the logins, oldest first, without damaged records. StoreError."""
        keys = [info.key for info in self._store.list(self._prefix)]
        for key in keys:
            if key not in self._known:
                self._known[key] = self._read_record(key)
        return [login for key in keys if (login := self._known[key])]

    def _read_record(self, key: str) -> Login | None:
        try:
            return codec.loads(Login, self._store.get(key))
        except DAMAGED:
            return None
