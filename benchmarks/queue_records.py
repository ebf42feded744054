"""Read what the jobs of a pool wrote down themselves: which attempt ran when, where and on what."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from queue_jobs import PoolJob

from prefect_bt.ledger.ledger import Ledger


@dataclass(frozen=True)
class Line:
    """A line of the shared file."""

    what: str
    job_id: str
    attempt: int
    devices: str
    at: float


@dataclass(frozen=True)
class Run:
    """The command of an attempt; `whole`: it ended by itself."""

    job: PoolJob
    job_id: str
    attempt: int
    host: str
    devices: frozenset[str]
    start: float
    end: float
    whole: bool

    @property
    def area(self) -> float:
        """Return the GPU seconds."""
        return self.job.gpus * (self.end - self.start)


def read_lines(records: Path) -> list[Line]:
    """Return the lines of the shared file."""
    text = records.read_text() if records.exists() else ""
    split = [line.split() for line in text.splitlines()]
    return [Line(w, job, int(n), devices, float(at)) for w, job, n, _, devices, at in split]


def read_runs(
    ledger: Ledger,
    records: Path,
    jobs: Mapping[str, PoolJob],
    killed: Mapping[str, Sequence[float]],
    skews: Mapping[str, float],
) -> list[Run]:
    """Return every run of a command.

    `jobs`: by ID; `killed`: when all of a job was killed; `skews`: host -> seconds it is ahead.
    """
    lines: dict[str, list[Line]] = defaultdict(list)
    for line in read_lines(records):
        lines[line.job_id].append(line)
    return [
        run
        for job_id, mine in sorted(lines.items())
        for run in _iter_runs(ledger, jobs[job_id], mine, killed.get(job_id, ()), skews)
    ]


def _iter_runs(
    ledger: Ledger,
    job: PoolJob,
    lines: Sequence[Line],
    deaths: Sequence[float],
    skews: Mapping[str, float],
) -> Iterator[Run]:
    """Yield the runs of one job. `deaths`: when all of it was killed."""
    job_id = lines[0].job_id
    hosts = {one.attempt: one.host for one in ledger.list_attempts(job_id)}
    ends = {
        one.attempt: one.ended_at - skews.get(hosts[one.attempt].rpartition(":")[2], 0.0)
        for one in ledger.list_outcomes(job_id)
        if one.ended_at is not None
    }
    for line in (one for one in lines if one.what == "start"):
        number, devices = line.attempt, frozenset(line.devices.split(","))
        found = [one for one in lines if one.attempt == number and one.what != "start"]
        # A killed command writes nothing; the end in the records is that of its discovery.
        known = [at for at in (*deaths, ends.get(number)) if at and at >= line.at]
        end = found[0].at if found else min(known, default=line.at)
        whole = bool(found) and found[0].what == "end"
        yield Run(job, job_id, number, hosts[number], devices, line.at, end, whole)


def find_peak(runs: Sequence[Run]) -> int:
    """Return the most GPUs in use at once."""
    steps = [(run.start, run.job.gpus) for run in runs] + [(r.end, -r.job.gpus) for r in runs]
    used = most = 0
    for _, change in sorted(steps):
        used += change
        most = max(most, used)
    return most
