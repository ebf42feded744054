"""Kill and stop processes of a pool while it works: of jobs, of machines, and of pushes.

The number of commands that have started says when, so a slow machine is hit at the same moments as
a fast one.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
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

KINDS = ("push", "flow", "worker", "pause", "supervisor", "push", "job", "pause of a push")
"""What is killed in turn, or stopped for a time. Chance chooses which job or machine."""
WORKER_PAUSE = 2.0
"""Seconds until a worker that was killed is started again."""
PAUSES = (5.0, 40.0)
"""Least and most seconds for which a process is stopped: less and more than a starter has."""
LOOK = 0.1
PATIENCE = 3.0
"""Seconds to wait for a process of the kind whose turn it is; after that a worker is killed."""


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
            while len(self._list_started()) < number:
                if self._over.wait(LOOK):
                    return
            patient_until = time.monotonic() + PATIENCE
            while not self._kill(kind if time.monotonic() < patient_until else "worker"):
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
        pushing = [one for one in self._pool.pushing.values() if one.poll() is None]
        if kind in {"push", "pause of a push"} and not pushing:
            kind = kind.replace("push", "worker")  # all jobs were pushed
        if kind.startswith("pause"):
            return self._pause(self._chance.choice(pushing) if "push" in kind else None)
        if kind == "push":
            self._chance.choice(pushing).kill()
            return self._note("a push")
        if kind == "worker":
            return self._kill_worker()
        running = self._list_running()
        if kind == "job":
            running = [job for job in running if self._jobs[job].may_die]
        if not running:
            return False
        job_id = self._chance.choice(running)
        if kind in {"flow", "supervisor"}:
            return self._kill_process(kind, job_id)
        self.killed[job_id].append(kill_job(job_id))
        return self._note(f"all of {self._jobs[job_id].name}")

    def _kill_process(self, kind: str, job_id: str) -> bool:
        module = "run_flow" if kind == "flow" else "process"
        for pid in list_processes():
            words = read_command_line(pid)
            if job_id in words and f"prefect_bt.supervisor.{module}" in words:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                    return self._note(f"the {kind} of {self._jobs[job_id].name}")
        return False

    def _pause(self, process: subprocess.Popen[str] | None) -> bool:
        """Stop a process for a time; None: a worker."""
        machine, seconds = self._chance.choice(self._pool.machines), self._chance.uniform(*PAUSES)
        stopped = process or machine.worker
        if stopped is None:
            return False
        what = "a push" if process else f"the worker of {machine.name}"
        stopped.send_signal(signal.SIGSTOP)
        self._over.wait(seconds)
        if process is None:
            machine.disturbed_at = time.monotonic()
        stopped.send_signal(signal.SIGCONT)
        return self._note(f"{what} stopped for {seconds:.0f} s")

    def _kill_worker(self) -> bool:
        machine = self._chance.choice(self._pool.machines)
        machine.kill_worker()
        time.sleep(WORKER_PAUSE)
        machine.start_worker()
        return self._note(f"the worker of {machine.name}")

    def _note(self, what: str) -> bool:
        self.done.append(what)
        return True
