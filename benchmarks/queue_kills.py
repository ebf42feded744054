"""Kill processes of a pool while it works: all of a job, a job's flow, a machine's worker.

The number of commands that have started says when, so a slow machine is hit at the same moments as
a fast one.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections import defaultdict
from collections.abc import Mapping
from contextlib import suppress
from itertools import cycle

from queue_jobs import PoolJob
from queue_machines import Pool, kill_job
from queue_records import read_lines

from prefect_bt.host.processes import list_processes, read_command_line

KINDS = ("job", "flow", "worker")
"""What is killed in turn. Chance chooses which job or machine."""
WORKER_PAUSE = 2.0
"""Seconds until a worker that was killed is started again."""
LOOK = 0.1


class Killer(threading.Thread):
    """Kills so many processes, spread over the starts of the jobs' commands."""

    def __init__(self, pool: Pool, jobs: Mapping[str, PoolJob], total: int, **chosen: int) -> None:
        """Take the jobs by ID, which may still grow. `total`: all jobs that will be pushed."""
        super().__init__(daemon=True)
        self._pool, self._jobs = pool, jobs
        count, self._chance = chosen["kills"], random.Random(f"kills {chosen['seed']}")
        self._starts = [(number + 1) * total // (count + 2) for number in range(count)]
        self.killed: dict[str, list[float]] = defaultdict(list)
        """When all processes of a job were gone, by the job's ID."""
        self.done: list[str] = []
        """What was killed."""
        self._over = threading.Event()

    def run(self) -> None:
        for number, kind in zip(self._starts, cycle(KINDS), strict=False):
            while len(self._list_started()) < number or not self._kill(kind):
                if self._over.wait(LOOK):
                    return

    def finish(self) -> None:
        """End the thread; no job is left."""
        self._over.set()
        self.join()

    def _list_started(self) -> list[str]:
        return [line.job_id for line in read_lines(self._pool.records) if line.what == "start"]

    def _list_running(self) -> list[str]:
        """Return the jobs whose command runs now, as it wrote itself."""
        running: dict[str, bool] = {}
        for line in read_lines(self._pool.records):
            running[line.job_id] = line.what == "start"
        return sorted(job for job, runs in running.items() if runs and job in self._jobs)

    def _kill(self, kind: str) -> bool:
        """Kill something of this kind; return False if there is none at this moment."""
        if kind == "worker":
            return self._kill_worker()
        running = self._list_running()
        if kind == "job":
            running = [job for job in running if self._jobs[job].may_die]
        if not running:
            return False
        job_id = self._chance.choice(running)
        if kind == "flow":
            return self._kill_flow(job_id)
        self.killed[job_id].append(kill_job(job_id))
        return self._note(f"all of {self._jobs[job_id].name}")

    def _kill_flow(self, job_id: str) -> bool:
        for pid in list_processes():
            words = read_command_line(pid)
            if job_id in words and "prefect_bt.supervisor.run_flow" in words:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                    return self._note(f"the flow of {self._jobs[job_id].name}")
        return False

    def _kill_worker(self) -> bool:
        machine = self._chance.choice(self._pool.machines)
        machine.kill_worker()
        time.sleep(WORKER_PAUSE)
        machine.start_worker()
        return self._note(f"the worker of {machine.name}")

    def _note(self, what: str) -> bool:
        self.done.append(what)
        return True
