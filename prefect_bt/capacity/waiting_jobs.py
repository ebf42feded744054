"""The jobs that wait, in the store: the facts of a job are in the key of its empty object.

    queue/waiting/<job id>/<facts>/team-<quoted team>

One request lists a thousand jobs. A change of the priority writes a second key with a higher
revision before it deletes the first.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final
from urllib.parse import quote, unquote

from prefect_bt.capacity.records import Demand, QueuedJob
from prefect_bt.errors import NotFoundError
from prefect_bt.object_keys import QUEUE_WAITING, quote_name, waiting_job_prefix
from prefect_bt.object_store.protocols import Store

_TEAM: Final = "team-"


def add_waiting_job(store: Store, job: QueuedJob) -> None:
    """Write the job to the queue. Idempotent."""
    store.put(_key(job, 0), b"")


def remove_waiting_job(store: Store, job_id: str) -> None:
    """Remove the job from the queue. Idempotent."""
    for info in list(store.list(waiting_job_prefix(job_id))):
        store.delete(info.key)


def is_waiting_job(store: Store, job_id: str) -> bool:
    """Return whether the job is in the queue."""
    return any(True for _ in store.list(waiting_job_prefix(job_id)))


def set_priority(store: Store, job_id: str, priority: int) -> QueuedJob:
    """Change the priority of a waiting job and return the job; NotFoundError if none waits."""
    found = list(_iter_entries(store, waiting_job_prefix(job_id)))
    if not found:
        raise NotFoundError("queued job", job_id, next_step="Show the queue: prefect-bt queue")
    revision, job, _ = max(found, key=lambda entry: entry[0])
    changed = replace(job, priority=priority)
    store.put(_key(changed, revision + 1), b"")
    for _, _, key in found:
        store.delete(key)
    return changed


def list_waiting_jobs(store: Store) -> list[QueuedJob]:
    """Return the jobs that wait, the first of the queue first."""
    newest = dict[str, tuple[int, QueuedJob]]()
    for revision, job, _ in _iter_entries(store, QUEUE_WAITING):
        if job.id not in newest or newest[job.id][0] < revision:
            newest[job.id] = revision, job
    return sorted((job for _, job in newest.values()), key=lambda job: job.rank)


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
    )
    return int(facts["v"]), job
