"""Decide by the records in the stores whether a job is over, and list its remains as orphans."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from prefect_bt.errors import NotFoundError, StoreError
from prefect_bt.filesystem.directories import find_paths
from prefect_bt.gc.findings import DECODE_ERRORS, Orphan, OrphanKind
from prefect_bt.host.job_lock import is_owned, read_store_url
from prefect_bt.host.nodes.files import read_record
from prefect_bt.host.state_folder import JobFolder
from prefect_bt.ledger.ledger import Ledger
from prefect_bt.planning.plan import NodePlan


@dataclass(frozen=True)
class Liveness:
    """Whether a job has ended, why this is known, and since when (epoch seconds; None if unknown).

    A job that cannot be judged has not ended.
    """

    ended: bool
    reason: str = ""
    since: float | None = None


ALIVE = Liveness(False)


class EmptyStore(StoreError):
    """A store without any job, which cannot know whether one is over."""


class JobStores:
    """The stores that record the jobs of this machine, each opened once.

    `notes` collects why jobs could not be judged.
    """

    def __init__(self, open_ledger: Callable[[str], Ledger], default_url: str) -> None:
        self._open, self.default_url = open_ledger, default_url
        self._ledgers: dict[str, Ledger] = {}
        self.notes: list[str] = []

    @property
    def default_ledger(self) -> Ledger:
        return self.get_ledger(self.default_url)

    def get_ledger(self, url: str) -> Ledger:
        if url not in self._ledgers:
            self._ledgers[url] = self._open(url)
        return self._ledgers[url]

    def check_liveness(self, job_id: str, urls: Sequence[str] = ()) -> Liveness:
        """Return whether the job is over in every store, or unknown to it.

        The default store is read besides those of `urls`: a note in the job's folder that names
        another store cannot hide a job of the default one.
        """
        urls = urls or [self.default_url]
        verdicts: list[Liveness] = []
        for url in dict.fromkeys([*urls, self.default_url]):
            try:
                verdicts.append(_check_store(self.get_ledger(url), job_id))
            except (StoreError, *DECODE_ERRORS) as error:
                if not isinstance(error, EmptyStore) or url in urls:
                    self.notes.append(f"Job {job_id} was skipped: {error}")
                    return ALIVE
        if not all(one.ended for one in verdicts):
            return ALIVE
        return next((one for one in verdicts if one.since is not None), verdicts[0])

    def check_unowned(self, folder: JobFolder, urls: Sequence[str] = ()) -> Liveness:
        """Return the verdict for a job of this machine; a job with an owner here is alive.

        `urls`: stores besides those that the folder names.
        """
        verdict = ALIVE
        if not is_owned(folder.state_dir, folder.job_id):
            verdict = self.check_liveness(folder.job_id, [*urls, *list_stores(folder)])
        # Checked again: the job may have been recovered meanwhile.
        return ALIVE if is_owned(folder.state_dir, folder.job_id) else verdict


def find_orphan(  # noqa: PLR0913 (the thing, its verdict, its removal, its job)
    kind: OrphanKind,
    location: str,
    check: Callable[[], Liveness],
    remove: Callable[[], object],
    *,
    job: str,
    size: int = 0,
) -> list[Orphan]:
    """Return the thing as an orphan if `check` finds that its job has ended, else an empty list.

    The orphan's removal raises OSError if `check` finds otherwise then.
    """
    verdict = check()

    def remove_checked() -> None:
        if not check().ended:
            raise OSError(f"job {job} runs again" if job else f"{location} is in use again")
        remove()

    orphan = Orphan(kind, location, verdict.reason, remove_checked, job, size, verdict.since)
    return [orphan] if verdict.ended else []


def list_stores(folder: JobFolder) -> list[str]:
    """Return the URLs of the stores that the job's owner or its nodes noted on this machine."""
    found: dict[str, None] = {}
    with suppress(OSError):
        found[read_store_url(folder.state_dir, folder.job_id)] = None
    for path in find_paths(folder.path, "attempt-*/rank-0/plan.json"):
        plan = read_record(NodePlan, path)
        if plan is not None:
            found[plan.store] = None
    return [url for url in found if url]


def _check_store(ledger: Ledger, job_id: str) -> Liveness:
    """Return the verdict of one store.

    Raises StoreError; EmptyStore for a store without any job: it may be a disk that is not mounted.
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
