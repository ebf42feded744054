"""Decide which machine may act for a job: numbered, create-only claims in the store.

    <job>/epochs/000001.json        {"number": 1, "host": "box:ab12", "purpose": "run", ...}
    <job>/epochs/000001.released    the holder is done, though no event says that the job is over

To act is to launch nodes, to move the job's state, to commit checkpoints, to prune, to delete. The
actor names its epoch; once a higher epoch exists it must stop (`check`). A claim ends

- with an event of its epoch in which the job is over,
- by its release,
- or by a person, for a machine that is gone for good (`abandoned`).

Losing sight of a machine ends no claim. Within one machine the job's lock decides
(host/job_lock.py): the caller holds it, so a claim of the same machine belongs to a process that is
dead, and goes on. `tests/ledger/fencing_epochs/` explores every interleaving of two machines, a
person and a crash.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final

from prefect_bt import codec
from prefect_bt.errors import NotFoundError, ObjectNotFound, StateError, StoreError
from prefect_bt.ledger.numbered_objects import NumberedObjects
from prefect_bt.ledger.records import JobEvent
from prefect_bt.object_store.protocols import Store

RUN: Final = "run"
PRUNE: Final = "prune"
DELETE: Final = "delete"
COMMIT: Final = "commit"
ANY_HOST: Final = ""
"""Host of a claim that any machine may follow: the job waits for a worker."""
NO_HOST: Final = ":"
"""Holder that is no machine, so that no machine takes the job for its own."""
_UNREADABLE_HOST: Final = "a machine whose claim cannot be read:?"
_ACTIVITIES: Final = {
    PRUNE: "is being pruned",
    DELETE: "is being deleted",
    COMMIT: "has its kept checkpoints committed",
}


class Superseded(StateError):
    """Error: a newer epoch exists, so this process must not act for the job any more."""

    def __init__(self, job_id: str, holder: Epoch | None) -> None:
        """Describe the takeover. `holder`: the newer epoch; None for a job that was deleted."""
        what, next_step = "was deleted", ""
        if holder is not None:
            where = holder.machine or "another process"
            what = f"was taken over by {where} (epoch {holder.number})"
            next_step = f"Follow it there: prefect-bt logs --tail --job-id {job_id}"
        super().__init__(
            f"Job {job_id} {what}; this process will not launch, commit or record anything "
            "more for it.",
            state="superseded",
            next_step=next_step,
        )


@dataclass(frozen=True)
class Epoch:
    """One claim. `host` is in the form of job_lock.host_id; `at` is in epoch seconds."""

    number: int
    host: str
    nonce: str
    at: float
    purpose: str = RUN
    by: str = ""
    """Reason for following a claim that had not ended; "" for all others."""

    @property
    def machine(self) -> str:
        """Return the name of the holder's machine."""
        return self.host.partition(":")[0]


class Epochs:
    """The claims of one job. `prefix` is the job's folder in the store."""

    def __init__(
        self,
        store: Store,
        job_id: str,
        prefix: str,
        *,
        clock: Callable[[], float],
        nonce: Callable[[], str] = lambda: os.urandom(8).hex(),
    ) -> None:
        self.store, self.job_id, self.prefix = store, job_id, prefix
        self._clock, self.new_nonce = clock, nonce
        self._claims = NumberedObjects(store, f"{prefix}/epochs")

    def find_newest(self) -> Epoch | None:
        """Return the newest claim, whether it has ended or not; None before the first."""
        return self._read(self._claims.list().newest)

    def newest_run(self) -> int:
        """Return the number of the newest claim to run the job; 0 if there is none."""
        for number in reversed(self._claims.list().modified):
            claim = self._read(number)
            if claim and claim.purpose == RUN:
                return number
        return 0

    def find_holder(self) -> str:
        """Return the host of the newest claim, NO_HOST if any may follow; "" before the first."""
        numbers = self._claims.list()
        newest = self._read(numbers.newest)
        if newest is None:
            return ""
        free = newest.host == ANY_HOST or newest.number in numbers.released
        return NO_HOST if free else newest.host

    def check(self, number: int) -> None:
        """Raise Superseded when an epoch newer than `number` exists, or when none is left.

        0 is the number of an actor that needs no claim.
        """
        if not number:
            return
        newest = self._claims.list().newest
        if newest != number:
            raise Superseded(self.job_id, self._read(newest))

    def claim(
        self,
        host: str,
        *,
        purpose: str = RUN,
        abandoned: bool = False,
        unstarted: bool = False,
        departed: int = 0,
    ) -> int:
        """Return the number of the epoch in which `host` may act.

        The caller holds the job's lock on `host`. Raises StateError while another machine holds
        the job, unless a person says that it is `abandoned`, or the job is `unstarted`: it waits,
        and the time of the starter that claimed it has passed. `departed`: number of a claim whose
        machine has been silent for long; StateError if that claim has ended or was followed.
        NotFoundError when the job is deleted meanwhile.
        """
        while True:
            held, ended = self._newest_and_ended()
            if departed and (ended or held.number != departed):
                raise self._held_error(held, host)
            followed = abandoned or departed or (unstarted and held.purpose == RUN)
            if held.host != ANY_HOST and not ended:
                if not is_same_host(held.host, host):
                    if not followed:
                        raise self._held_error(held, host)
                elif held.number and held.purpose == purpose == RUN:
                    return held.number
            why = "abandoned" if abandoned else "departed" if departed else "unstarted"
            by = why if followed and not ended else ""
            mine = Epoch(held.number + 1, host, self.new_nonce(), self._clock(), purpose, by)
            if self._create(mine):
                return mine.number

    def release(self, number: int) -> None:
        """End a claim of this host under which the job did not end. Idempotent."""
        if number:
            self._claims.release(number)

    def release_unused(self, number: int) -> None:
        """End a claim of this host in which nothing was recorded; any other may have a gang."""
        last = self._last_event()
        if last is None or last.epoch < number:
            self.release(number)

    def find_active(self) -> Epoch | None:
        """Return the claim that keeps other machines from acting; None when there is none."""
        held, ended = self._newest_and_ended()
        return None if ended or not held.number or held.host == ANY_HOST else held

    def has_ended(self) -> bool:
        """Return whether the newest claim has ended, also for a job that ended without claims."""
        return self._newest_and_ended()[1]

    def find_last_change(self) -> float:
        """Return when a claim or an event was written last, by the store's clock; 0.0 for none."""
        events = (info.modified for info in self.store.list(f"{self.prefix}/events"))
        return max([*self._claims.list().modified.values(), *events], default=0.0)

    def fence(self, number: int) -> Callable[[], None]:
        """Return a function that an actor of `number` calls before each act (`check`)."""
        return lambda: self.check(number)

    def _newest_and_ended(self) -> tuple[Epoch, bool]:
        """Return the newest claim, number 0 if there is none, and whether it has ended."""
        numbers = self._claims.list()
        newest = self._read(numbers.newest) or Epoch(0, ANY_HOST, "", 0.0)
        if newest.number in numbers.released:
            return newest, True
        last = self._last_event()
        return newest, last is not None and last.state.terminal and last.epoch >= newest.number

    def _read(self, number: int) -> Epoch | None:
        """Return the claim of this number; None for 0, the number before the first."""
        if not number:
            return None
        try:
            found = codec.loads(Epoch, self._claims.get(number))
        except ObjectNotFound:
            raise self._deleted_error() from None
        except (ValueError, TypeError, KeyError):  # it counts as held, until a person gives it up
            return Epoch(number, _UNREADABLE_HOST, "", 0.0)
        return replace(found, number=number)

    def _create(self, mine: Epoch) -> bool:
        """Create the claim; return whether its number belongs to this claim."""
        if not self._claims.create(mine.number, codec.dumps(mine).encode()):
            return False
        try:
            self.store.get_range(f"{self.prefix}/job.json", start=0, length=1)
        except ObjectNotFound:
            self._claims.delete(mine.number)
            raise self._deleted_error() from None
        except BaseException:  # the caller does not learn the number, so it cannot release it
            with suppress(StoreError):
                self.release(mine.number)
            raise
        return True

    def _deleted_error(self) -> NotFoundError:
        return NotFoundError("job", self.job_id, next_step="It was deleted.")

    def _last_event(self) -> JobEvent | None:
        keys = [info.key for info in self.store.list(f"{self.prefix}/events")]
        return codec.loads(JobEvent, self.store.get(keys[-1])) if keys else None

    def _held_error(self, held: Epoch, host: str) -> StateError:
        where, gone = describe_holder(held.host, host), abandon_hint(self.job_id, held.host, host)
        if held.purpose == RUN:
            what = f"is run by {where}"
        else:
            what = f"{_ACTIVITIES[held.purpose]} by {where}"
            gone = (
                "Try again when that is done. If it was interrupted, that machine repeats "
                f"it. {gone}"
            )
        return StateError(
            f"Job {self.job_id} {what} (epoch {held.number}).", state="held", next_step=gone
        )


def describe_holder(held: str, host: str) -> str:
    """Return how messages to a person at `host` name the holder of a job."""
    machine = held.partition(":")[0]
    folder = f"another state folder of this machine ({machine})"
    return folder if _is_same_machine(held, host) else machine


def abandon_hint(job_id: str, held: str, host: str) -> str:
    """Return what a person at `host` can do if the holder of a job is gone."""
    what = "state folder" if _is_same_machine(held, host) else "machine"
    return f"If that {what} is gone for good: prefect-bt stop --job-id {job_id} --abandoned"


def _is_same_machine(one: str, other: str) -> bool:
    return one.partition(":")[0] == other.partition(":")[0]


def is_same_host(one: str, other: str) -> bool:
    """Return whether two hosts are one: the state folder's id counts, not the machine's name."""
    folder = one.partition(":")[2]
    return bool(folder) and folder == other.partition(":")[2]
