"""Whether a job is over, as its store tells; a store that cannot tell leaves it alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from prefect_bt.errors import NotFoundError, StoreError
from prefect_bt.gc.findings import DECODE_ERRORS
from prefect_bt.ledger.ledger import Ledger


@dataclass(frozen=True)
class Liveness:
    """`ended` with the reason, since when (epoch seconds). Not over: it lives, or may."""

    ended: bool
    reason: str = ""
    since: float | None = None


ALIVE = Liveness(False)


class EmptyStore(StoreError):
    """A store without any job, which cannot know whether one is over."""


class JobStores:
    """The stores that this machine's jobs are recorded in, each opened once.

    `notes` collects why a job could not be judged.
    """

    def __init__(self, open_ledger: Callable[[str], Ledger], default_url: str) -> None:
        self._open, self.default_url = open_ledger, default_url
        self._ledgers: dict[str, Ledger] = {}
        self.notes: list[str] = []

    def get_ledger(self, url: str) -> Ledger:
        if url not in self._ledgers:
            self._ledgers[url] = self._open(url)
        return self._ledgers[url]

    def check_liveness(self, job_id: str, urls: Sequence[str]) -> Liveness:
        """Over only if every store that may have the job says so, or has never heard of it.

        Our own store is always asked too: a note that names another one cannot hide a job of ours.
        """
        verdicts: list[Liveness] = []
        for url in dict.fromkeys([*urls, self.default_url]):
            try:
                verdicts.append(check_liveness(self.get_ledger(url), job_id))
            except EmptyStore as error:
                if url in urls:
                    self.notes.append(f"Job {job_id} was skipped: {error}")
                    return ALIVE
            except (StoreError, *DECODE_ERRORS) as error:
                self.notes.append(f"Job {job_id} was skipped: {error}")
                return ALIVE
        known = [one for one in verdicts if one.since is not None or not one.ended]
        if any(not one.ended for one in verdicts) or not verdicts:
            return ALIVE
        return known[0] if known else verdicts[0]


def check_liveness(ledger: Ledger, job_id: str) -> Liveness:
    """Return the verdict of one store.

    Raises StoreError; EmptyStore of a store without any job: it may be a disk that is not mounted.
    """
    try:
        ledger.get_job(job_id)
        events = ledger.list_events(job_id)
    except NotFoundError:
        if next(iter(ledger.store.list("index/jobs")), None) is None:
            raise EmptyStore(
                f"the store {ledger.store.url} has no jobs at all and may be the wrong one",
                url=ledger.store.url,
                next_step="Check that it is the right store, and mounted.",
            ) from None
        return Liveness(True, "the job is not in its store")
    if not events or not events[-1].state.terminal:
        return ALIVE
    last = events[-1]
    return Liveness(True, f"the job is {last.state.short_name}", last.at)
