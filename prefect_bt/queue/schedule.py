"""Decide which waiting jobs start now, and what each other job waits for. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Final

from prefect_bt.queue.free_resources import Room, Timeline, lease_end, run_time
from prefect_bt.queue.records import Demand, Lease, Limit, Machine, QueuedJob
from prefect_bt.substrates.protocol import CPUS, MEMORY

_BEHIND: Final = "the jobs ahead of it"


@dataclass(frozen=True)
class Start:
    """A job that starts now on a machine."""

    job: QueuedJob
    host: str


@dataclass(frozen=True)
class Wait:
    """A job that waits. `place` counts from 1 over all jobs of the queue."""

    job: QueuedJob
    place: int
    reason: str
    """What it waits for, as a phrase: `8 H100: 4 of 16 are free`."""
    starts_at: float | None = None
    """Estimated start in epoch seconds; None: unknown."""
    stops: tuple[Lease, ...] = ()
    """Leases of spot jobs that must end first."""


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
        self.shortages: dict[tuple[Demand, str, str, int], str] = {}
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
            return Start(job, room.host)
        if stopped := self._preempt(job, rooms):
            return Wait(job, 0, _format_stops(stopped), stops=tuple(stopped))
        key = (job.demand, job.host, job.cluster, job.nodes)
        if key not in self.shortages:
            self.shortages[key] = _find_shortage(job, rooms)
        return Wait(job, 0, self.shortages[key], self._reserve(job, rooms))

    def _find_obstacle(self, job: QueuedJob, rooms: Sequence[Room]) -> str:
        """Return why the job can never start; "" if it can. Such a job reserves nothing."""
        gpus, gpu_type = job.demand.gpus, _format_type(job)
        for limit, _ in self.quotas.limits_of(job):
            if limit.maximum is not None and gpus > limit.maximum:
                name = "the limit" if limit.team is None else f"the limit of {_team(limit.team)}"
                return f"a higher limit: it asks for {gpus} {gpu_type}, {name} is {limit.maximum}"
        return "" if rooms else self._find_lack(job)

    def _find_lack(self, job: QueuedJob) -> str:
        """Return why no machine can run the job."""
        if job.cluster and job.host in self.hosts:
            return self._find_lack_of_cluster(job)
        gpus, gpu_type = job.demand.gpus, _format_type(job)
        allowed = [room for room in self.rooms if job.host in {"", room.host}]
        if not allowed:
            return "its machine is away" if job.host else "a machine: none is there"
        allowed = [room for room in allowed if job.substrate in room.substrates]
        if not allowed:
            return f"a machine with the substrate {job.substrate}"
        most = max(room.total.get(job.demand.gpu_type, 0) for room in allowed)
        if job.host:
            return f"{gpus} {gpu_type}: its machine has {most}"
        if not most:
            return f"no machine has {gpu_type}"
        return f"no machine has {gpus} {gpu_type}; the largest has {most}"

    def _find_lack_of_cluster(self, job: QueuedJob) -> str:
        pods = [room.pods for room in self.rooms if room.pods and room.host == job.cluster]
        if not pods:
            return "its cluster: no machine of the queue reaches it"
        most = pods[0].count(job, empty=True)
        return f"{_format_pods(job)}: the whole cluster has room for {most}"

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
            return _BEHIND
        teams = " and ".join(_team(team) for team in kept)
        return f"{count} {_format_type(job)} that are kept for {teams}"

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


def _find_shortage(job: QueuedJob, rooms: Sequence[Room]) -> str:
    """Return the resource that is short on the machine that lacks the fewest."""
    short = {
        room.host: [name for name, n in room.need(job.demand).items() if room.free.get(name, 0) < n]
        for room in rooms
    }
    gpus, gpu_type = job.demand.gpus, job.demand.gpu_type
    room = min(rooms, key=lambda room: (len(short[room.host]), -room.free.get(gpu_type, 0)))
    if not short[room.host]:
        return _find_pod_shortage(job, room) or _BEHIND
    if len(rooms) > 1 and all(gpu_type in names for names in short.values()):
        most = max(0, *(room.free.get(gpu_type, 0) for room in rooms))
        return f"{gpus} {_format_type(job)}: at most {most} are free on one machine"
    name = short[room.host][0]
    need, free = room.need(job.demand)[name], max(0, room.free.get(name, 0))
    total = room.total[name]
    if name == MEMORY:
        from prefect_bt.planning.resource_amounts import format_memory  # slow to import

        need, free, total = format_memory(need), format_memory(free), format_memory(total)
        return f"{need} of memory: {free} of {total} are free"
    if name == CPUS:
        return f"{_format_cpus(need)}: {free / 1000:g} of {total / 1000:g} are free"
    return f"{need} {_format_type(job)}: {free} of {total} are free"


def _find_pod_shortage(job: QueuedJob, room: Room) -> str:
    if room.pods is None or room.has_room_for_pods(job):
        return ""
    return f"{_format_pods(job)}: there is room for {room.pods.count(job)} now"


def _format_cpus(thousandths: int) -> str:
    return f"{thousandths / 1000:g} CPU{'s' if thousandths != 1000 else ''}"


def _format_pods(job: QueuedJob) -> str:
    """Return `2 nodes with 8 H100, 32.1 CPUs and 200 GiB each`."""
    from prefect_bt.planning.resource_amounts import format_memory  # slow to import

    pod = job.pod
    gpus = f"{pod[job.demand.gpu_type]} {_format_type(job)}, " if job.demand.gpus else ""
    what = f"{gpus}{_format_cpus(pod.get(CPUS, 0))} and {format_memory(pod.get(MEMORY, 0))}"
    return f"a node with {what}" if job.nodes == 1 else f"{job.nodes} nodes with {what} each"


def _format_limit(job: QueuedJob, limit: Limit, used: int) -> str:
    maximum = limit.maximum or 0
    if used + job.demand.gpus <= maximum:
        return _BEHIND
    if limit.team is None:
        return f"the limit of {maximum} {_format_type(job)}: {used} are used"
    return f"the limit of {_team(limit.team)}: {used} of {maximum} {_format_type(job)} are used"


def _format_stops(leases: Sequence[Lease]) -> str:
    names = ", ".join(lease.job.id[:7] for lease in leases)
    return f"{len(leases)} spot job{'s' if len(leases) != 1 else ''} to stop ({names})"


def _format_type(job: QueuedJob) -> str:
    return job.demand.gpu_type or "GPUs"


def _team(name: str) -> str:
    return f"team {name}" if name else "the default team"
