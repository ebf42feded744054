"""The jobs that wait, in the store: the facts of a job are in the key of its empty object.

    queue/waiting/<job id>/<facts>/team-<quoted team>

One request lists a thousand jobs. An entry names the event of the job since which the job waits.
Events are never deleted, so an entry of which the job has a later event is void, whatever happens
afterwards: any process may delete it, and only such entries are deleted. A change of the priority
or the availability model writes a second key with a higher revision before it deletes the first.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Final
from urllib.parse import quote, unquote

from prefect_bt.errors import NotFoundError
from prefect_bt.ledger.ledger import Ledger
from prefect_bt.ledger.states import JobState
from prefect_bt.object_keys import QUEUE_WAITING, quote_name, waiting_job_prefix
from prefect_bt.object_store.protocols import Store
from prefect_bt.queue.records import Demand, Lease, QueuedJob

START_SECONDS: Final = 30.0
"""Seconds by the store's clock from one write of a starter to the next, before any other process
may start the job. A starter that is only slow is refused at its next write."""
_TEAM: Final = "team-"
_MAX_USER: Final = 32
"""Most characters of a user in a key: a folder's store has 255 for all facts."""


def add_waiting_job(ledger: Ledger, job: QueuedJob, *, revision: int = 0) -> bool:
    """Write the job to the queue; return False if it waits no more since that event. Idempotent.

    This process may have been stopped before: another one may have started the job meanwhile.
    """
    put_entry(ledger.store, job, revision=revision)
    if is_still_waiting(ledger, job):
        return True
    remove_waiting_job(ledger.store, job.id, through=job.event)
    return False


def put_entry(store: Store, job: QueuedJob, *, revision: int = 0) -> None:
    """Write the entry alone."""
    store.put(_key(job, revision), b"")


def is_still_waiting(ledger: Ledger, job: QueuedJob) -> bool:
    """Return whether the job waits since the event that the entry names."""
    number, last = ledger.find_last_event(job.id)
    return number == job.event and last is not None and last.state is JobState.PENDING


def remove_waiting_job(store: Store, job_id: str, *, through: int) -> None:
    """Remove the entries of events up to this number, after which the job has another."""
    for _, job, key in list(_iter_entries(store, waiting_job_prefix(job_id))):
        if job.event <= through:
            store.delete(key)


def remove_void_entries(ledger: Ledger, job_id: str) -> None:
    """Remove the entries of events after which the job has another. Idempotent."""
    remove_waiting_job(ledger.store, job_id, through=ledger.find_last_event(job_id)[0] - 1)


def change_waiting_job(ledger: Ledger, job_id: str, **changes: Any) -> QueuedJob:
    """Change fields of a waiting job and return the job; NotFoundError if none waits."""
    entries = list(_iter_entries(ledger.store, waiting_job_prefix(job_id)))
    missing = NotFoundError("queued job", job_id, next_step="Show the queue: prefect-bt queue")
    if not entries:
        raise missing
    revision, job, _ = max(entries, key=_entry_order)
    changed = replace(job, **changes)
    if not add_waiting_job(ledger, changed, revision=revision + 1):
        raise missing
    for _, _, key in entries:
        ledger.store.delete(key)
    return changed


def list_waiting_jobs(store: Store, job_id: str = "") -> list[QueuedJob]:
    """Return the jobs with an entry, or one of them, each once, the first of the queue first."""
    newest = dict[str, tuple[int, QueuedJob, str]]()
    for entry in _iter_entries(store, waiting_job_prefix(job_id) if job_id else QUEUE_WAITING):
        known = newest.get(entry[1].id)
        if known is None or _entry_order(known) < _entry_order(entry):
            newest[entry[1].id] = entry
    return sorted((job for _, job, _ in newest.values()), key=lambda job: job.rank)


def select_unclaimed(
    ledger: Ledger, waiting: Sequence[QueuedJob], leases: Iterable[Lease], now: float
) -> list[QueuedJob]:
    """Return the jobs that no starter has; remove entries that a starter left behind.

    A starter has a lease. Once its time has passed, it is dead, or is refused when it goes on.
    `now`: by the store's clock.
    """
    claimed = {(lease.job.id, lease.job.event): lease.at for lease in leases}
    unclaimed = list[QueuedJob]()
    for job in waiting:
        at = claimed.get((job.id, job.event))
        if at is not None and now - at <= START_SECONDS:
            continue
        if at is not None and not is_still_waiting(ledger, job):
            remove_waiting_job(ledger.store, job.id, through=job.event)
            continue
        unclaimed.append(job)
    return unclaimed


def _entry_order(entry: tuple[int, QueuedJob, str]) -> tuple[int, int, str]:
    revision, job, key = entry
    return job.event, revision, key


def _iter_entries(store: Store, prefix: str) -> Iterator[tuple[int, QueuedJob, str]]:
    """Yield revision, job and key of each readable entry."""
    for info in store.list(prefix):
        parts = info.key.removeprefix(f"{QUEUE_WAITING}/").split("/")
        if len(parts) == 3:
            try:
                revision, job = _parse(*parts)
            except (KeyError, ValueError):  # a newer release's, or no entry at all
                continue
            yield revision, job, info.key


def _key(job: QueuedJob, revision: int) -> str:
    facts = {
        "v": revision,
        "e": job.event,
        "p": job.priority,
        "t": f"{job.submitted_at:.3f}",
        "s": f"{job.since or job.submitted_at:.3f}",
        "g": job.demand.gpus,
        "y": quote(job.demand.gpu_type, safe=""),
        "c": job.demand.cpus,
        "m": job.demand.memory,
        "x": int(job.spot),
        "r": "" if job.run_time is None else f"{job.run_time:.3f}",
        "h": job.host,
        "k": job.substrate,
        "j": job.project_id,
        "l": job.cluster,
        "n": job.nodes,
        "a": job.node_cpus,
        "b": job.node_memory,
        "u": quote(job.user, safe="")[:_MAX_USER],
    }
    text = ",".join(f"{name}={value}" for name, value in facts.items())
    return f"{waiting_job_prefix(job.id)}/{text}/{_TEAM}{quote_name(job.team) if job.team else ''}"


def _parse(job_id: str, text: str, team: str) -> tuple[int, QueuedJob]:
    facts = dict(part.split("=", 1) for part in text.split(","))
    cpus = float(facts["c"]) if "." in facts["c"] else int(facts["c"])
    job = QueuedJob(
        id=job_id,
        demand=Demand(int(facts["g"]), unquote(facts["y"]), cpus, int(facts["m"])),
        submitted_at=float(facts["t"]),
        since=float(facts["s"]),
        priority=int(facts["p"]),
        team=unquote(team.removeprefix(_TEAM)),
        spot=facts["x"] == "1",
        run_time=float(facts["r"]) if facts["r"] else None,
        host=facts["h"],
        substrate=facts["k"],
        project_id=facts["j"],
        cluster=facts["l"],
        nodes=int(facts["n"]),
        event=int(facts.get("e", -1)),  # an older release's, which is void
        node_cpus=int(facts.get("a", 0)),
        node_memory=int(facts.get("b", 0)),
        user=unquote(facts.get("u", "")),
    )
    return int(facts["v"]), job
