"""Decide which waiting jobs start now, and what each other job waits for. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf

from prefect_bt.queue.free_resources import Room, Timeline, lease_end, run_time
from prefect_bt.queue.records import Lease, Limit, Machine, QueuedJob
from prefect_bt.queue.wait_reasons import BEHIND, Shortage, find_lack, find_shortage, format_type
from prefect_bt.substrates.protocol import CPUS


@dataclass(frozen=True)
class Start:
    """A job that starts now on a machine."""

    job: QueuedJob
    host: str
    machine: str = ""
    """Name of the machine or the cluster."""


@dataclass(frozen=True)
class Wait:
    """A job that waits. `place` counts from 1 over all jobs of the queue."""

    job: QueuedJob
    place: int
    reason: str
    """What it waits for, as a phrase: `8 H100: gpu2 has 4 of 16 free`."""
    starts_at: float | None = None
    """Estimated start in epoch seconds; None: unknown."""
    stops: tuple[Lease, ...] = ()
    """Leases of spot jobs that must end first."""
    held_by: tuple[Lease, ...] = ()
    """Leases that hold what it waits for."""


@dataclass(frozen=True)
class Schedule:
    starts: tuple[Start, ...] = ()
    waits: tuple[Wait, ...] = ()

    @property
    def preempted(self) -> tuple[Lease, ...]:
        """Leases of spot jobs whose places jobs of the queue need."""
        return tuple(lease for wait in self.waits for lease in wait.stops)


def make_schedule(
    machines: Sequence[Machine],
    leases: Sequence[Lease],
    waiting: Sequence[QueuedJob],
    limits: Sequence[Limit],
    *,
    now: float,
) -> Schedule:
    """Return the decisions for all machines. `waiting` is in the order of the queue.

    Spot jobs get what dedicated jobs leave: a spot job that was stopped for a younger job would
    otherwise start again in its place.
    """
    walk = _Walk(machines, leases, limits, now)
    decisions: dict[int, Start | Wait] = {}
    for index, job in sorted(enumerate(waiting), key=lambda item: item[1].spot):
        decisions[index] = walk.decide(job)
    ordered = [decisions[index] for index in range(len(waiting))]
    waits = [decision for decision in ordered if isinstance(decision, Wait)]
    return Schedule(
        tuple(decision for decision in ordered if isinstance(decision, Start)),
        tuple(replace(wait, place=place) for place, wait in enumerate(waits, 1)),
    )


class _Quotas:
    """What dedicated jobs hold of the limits, and what the jobs of the queue reserved in them."""

    def __init__(self, leases: Sequence[Lease], limits: Sequence[Limit], now: float) -> None:
        self.now = now
        self.used: Counter[tuple[str, str | None]] = Counter()
        self.reserved: Counter[str] = Counter()
        self.baselines: dict[str, dict[str, int]] = {}
        self.timelines: dict[str, list[tuple[Limit, Timeline]]] = {}
        for limit in sorted(limits, key=lambda limit: (limit.team is not None, limit.team or "")):
            if limit.maximum is not None:
                timeline = Timeline({limit.gpu_type: limit.maximum}, now)
                self.timelines.setdefault(limit.gpu_type, []).append((limit, timeline))
            if limit.team is not None:
                self.baselines.setdefault(limit.gpu_type, {})[limit.team] = limit.baseline
        for lease in leases:
            self.hold(lease.job, lease_end(lease, now))

    def limits_of(self, job: QueuedJob) -> list[tuple[Limit, Timeline]]:
        """Return the maxima that the job counts in."""
        if job.spot or not job.demand.gpus:
            return []
        limits = self.timelines.get(job.demand.gpu_type, [])
        return [item for item in limits if item[0].team in {None, job.team}]

    def hold(self, job: QueuedJob, end: float) -> None:
        """Count the GPUs of a job that runs."""
        if not job.spot:
            for team in (None, job.team):
                self.used[job.demand.gpu_type, team] += job.demand.gpus
        for _, timeline in self.limits_of(job):
            timeline.take(_gpus(job), self.now, end)

    def reserve(self, job: QueuedJob, start: float | None) -> None:
        """Keep the limits and the free GPUs for a job that waits for a machine."""
        begin, length = (self.now, inf) if start is None else (start, run_time(job))
        for _, timeline in self.limits_of(job):
            timeline.take(_gpus(job), begin, begin + length)
        if self.kept_from(job):
            self.reserved[job.demand.gpu_type] += job.demand.gpus

    def kept_from(self, job: QueuedJob) -> dict[str, int]:
        """Return the GPUs that the job must leave free, by team."""
        gpu_type, gpus = job.demand.gpu_type, job.demand.gpus
        baselines = self.baselines.get(gpu_type, {})
        own = self.used[gpu_type, job.team] + gpus <= baselines.get(job.team, 0)
        if job.spot or not gpus or own:
            return {}
        kept = {team: baselines[team] - self.used[gpu_type, team] for team in sorted(baselines)}
        return {team: count for team, count in kept.items() if count > 0 and team != job.team}

    def others_baseline(self, job: QueuedJob) -> int:
        """Return the baselines of the other teams, which the job can never use; 0 if it may."""
        baselines = self.baselines.get(job.demand.gpu_type, {})
        if job.spot or job.demand.gpus <= baselines.get(job.team, 0):
            return 0
        return sum(count for team, count in baselines.items() if team != job.team)


class _Walk:
    """The walk along the queue: `decide` is called for each job in its order."""

    def __init__(
        self,
        machines: Sequence[Machine],
        leases: Sequence[Lease],
        limits: Sequence[Limit],
        now: float,
    ) -> None:
        by_place: dict[str, list[Lease]] = {}
        for lease in leases:
            by_place.setdefault(lease.place, []).append(lease)
        machines = sorted(machines, key=lambda machine: machine.host)
        self.rooms = [Room(machine, by_place.get(machine.host, []), now) for machine in machines]
        self.quotas = _Quotas(leases, limits, now)
        self.hosts = {"", *(machine.host for machine in machines)}
        self.shortages: dict[tuple[object, ...], Shortage] = {}
        self.now = now

    def decide(self, job: QueuedJob) -> Start | Wait:
        """Return whether the job starts; take or reserve its amounts."""
        rooms = [room for room in self.rooms if room.could_run(job) and job.host in self.hosts]
        if reason := self._find_obstacle(job, rooms) or self._find_quota(job):
            return Wait(job, 0, reason)
        if fitting := [room for room in rooms if room.admits(job)]:
            room = min(fitting, key=lambda room: _left_over(room, job))
            self.shortages.clear()
            room.hold(job, self.now + run_time(job))
            self.quotas.hold(job, self.now + run_time(job))
            return Start(job, room.host, room.name)
        if stopped := self._preempt(job, rooms):
            return Wait(job, 0, _format_stops(stopped), stops=tuple(stopped))
        needs = (job.demand, job.nodes, job.node_cpus, job.node_memory)
        key = (*needs, job.host, job.cluster, job.substrate)
        if key not in self.shortages:
            self.shortages[key] = find_shortage(job, rooms, self.now)
        reason, held_by = self.shortages[key]
        return Wait(job, 0, reason, self._reserve(job, rooms), held_by=held_by)

    def _find_obstacle(self, job: QueuedJob, rooms: Sequence[Room]) -> str:
        """Return why the job can never start; "" if it can. Such a job reserves nothing."""
        gpus, gpu_type = job.demand.gpus, format_type(job)
        for limit, _ in self.quotas.limits_of(job):
            if limit.maximum is not None and gpus > limit.maximum:
                name = "the limit" if limit.team is None else f"the limit of {_team(limit.team)}"
                return f"a higher limit: it asks for {gpus} {gpu_type}, {name} is {limit.maximum}"
        if rooms:
            return ""
        return find_lack(job, self.rooms, is_host_there=job.host in self.hosts)

    def _find_quota(self, job: QueuedJob) -> str:
        """Return the limit or the baseline that the job waits for, and reserve in it."""
        end = self.now + run_time(job)
        limits = self.quotas.limits_of(job)
        if blocking := [item for item in limits if not item[1].fits(_gpus(job), end)]:
            # The team's limit comes last. A job that it blocks must not hold back other teams.
            limit, timeline = blocking[-1]
            timeline.take(_gpus(job), self.now, inf)
            return _format_limit(job, limit, self.quotas.used[limit.gpu_type, limit.team])
        kept = self.quotas.kept_from(job)
        return self._find_baseline(job, kept) if kept else ""

    def _find_baseline(self, job: QueuedJob, kept: dict[str, int]) -> str:
        """Return the teams for which these GPUs are kept, if the job would take some of them."""
        gpus, gpu_type = job.demand.gpus, job.demand.gpu_type
        # What spot jobs hold is as good as free: they are stopped for the team's jobs.
        spare = sum(_reclaimable(room, gpu_type) for room in self.rooms) - gpus
        count, reserved = sum(kept.values()), self.quotas.reserved[gpu_type]
        if spare - reserved >= count:
            return ""
        total = sum(room.total.get(gpu_type, 0) for room in self.rooms)
        # A job for which the baselines leave too few GPUs at any time must not block others.
        if gpus + self.quotas.others_baseline(job) <= total:
            self.quotas.reserved[gpu_type] += gpus
        if spare >= count:
            return BEHIND
        teams = " and ".join(_team(team) for team in kept)
        return f"{count} {format_type(job)} that are kept for {teams}"

    def _preempt(self, job: QueuedJob, rooms: Sequence[Room]) -> list[Lease]:
        """Return the spot leases to end so that the job starts, and give it their place."""
        if job.spot or any(room.fits(job) for room in rooms):
            return []
        options = [(room.find_spot_leases(job), room) for room in rooms]
        ways = [(stopped, room) for stopped, room in options if stopped]
        if not ways:
            return []
        stopped, room = min(
            ways, key=lambda way: (sum(x.job.demand.gpus for x in way[0]), len(way[0]), way[1].host)
        )
        self.shortages.clear()
        room.replace(stopped, job)
        self.quotas.hold(job, self.now + run_time(job))
        return stopped

    def _reserve(self, job: QueuedJob, rooms: Sequence[Room]) -> float | None:
        """Return when the job starts at the latest, and reserve; None: unknown, on all machines."""
        open_rooms = [room for room in rooms if not room.full]
        options = [(room.find_start(job), room) for room in open_rooms]
        known = [(start, room) for start, room in options if start is not None]
        start, chosen = min(
            known, key=lambda option: (option[0], option[1].host), default=(None, None)
        )
        self.quotas.reserve(job, start)
        for room in open_rooms if chosen is None else [chosen]:
            room.reserve(job, start)
        return start


def _gpus(job: QueuedJob) -> dict[str, int]:
    return {job.demand.gpu_type: job.demand.gpus}


def _left_over(room: Room, job: QueuedJob) -> tuple[int, int, str]:
    """Return a key that is least on the machine with the least left beside the job."""
    cpus = room.free[CPUS] - room.need(job.demand).get(CPUS, 0)
    return room.free.get(job.demand.gpu_type, 0), cpus, room.host


def _reclaimable(room: Room, gpu_type: str) -> int:
    """Return the GPUs that are free or held by spot jobs."""
    spot = (x.job.demand.gpus for x in room.spot if x.job.demand.gpu_type == gpu_type)
    return max(0, room.free.get(gpu_type, 0) + sum(spot))


def _format_limit(job: QueuedJob, limit: Limit, used: int) -> str:
    maximum = limit.maximum or 0
    if used + job.demand.gpus <= maximum:
        return BEHIND
    if limit.team is None:
        return f"the limit of {maximum} {format_type(job)}: {used} are used"
    return f"the limit of {_team(limit.team)}: {used} of {maximum} {format_type(job)} are used"


def _format_stops(leases: Sequence[Lease]) -> str:
    names = ", ".join(lease.job.id[:7] for lease in leases)
    return f"{len(leases)} spot job{'s' if len(leases) != 1 else ''} to stop ({names})"


def _team(name: str) -> str:
    return f"team {name}" if name else "the default team"
