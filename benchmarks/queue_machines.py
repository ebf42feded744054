"""Pretend several machines with GPUs on this one: a state folder and a worker process for each.

A fake `nvidia-smi` first on the PATH lists the GPUs. CPUs and memory are plenty, so that GPUs alone
decide. All machines share one store and one Prefect server.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from prefect_bt.host.job_lock import host_id
from prefect_bt.ledger.ledger import Ledger
from prefect_bt.ledger.open_ledger import open_ledger
from prefect_bt.local_server.password import CLIENT_VARIABLE, read_auth

CLI = [sys.executable, "-m", "prefect_bt.cli.entry"]
MODEL = "NVIDIA H100 80GB HBM3"
PORT = 18497
ROOT = Path(__file__).parents[1]


@dataclass
class PretendedMachine:
    """A machine with a worker, which can be killed and started again."""

    name: str
    state_dir: Path
    environment: dict[str, str]
    log: Path
    skew: float = 0.0
    """Seconds by which its clock is ahead."""
    worker: subprocess.Popen[bytes] | None = field(default=None, repr=False)
    disturbed_at: float = 0.0
    """When its worker was started or continued last, by the monotonic clock."""

    @property
    def host(self) -> str:
        """Return the ID of its state folder."""
        return host_id(self.state_dir).partition(":")[2]

    def start_worker(self) -> None:
        """Start the process that takes jobs of the queue."""
        self.disturbed_at = time.monotonic()
        with self.log.open("ab") as log:
            self.worker = subprocess.Popen(
                [*CLI, "worker"], env=self.environment, stdout=log, stderr=log
            )

    def kill_worker(self) -> None:
        """Kill the worker. Its jobs go on."""
        if self.worker:
            self.worker.kill()
            self.worker.wait()
            self.worker = None

    @property
    def takes_jobs(self) -> bool:
        """Return whether the worker runs: it was neither killed nor stopped."""
        worker = self.worker  # another thread kills it
        with suppress(psutil.NoSuchProcess):
            return worker is not None and psutil.Process(worker.pid).status() != "stopped"
        return False

    def run(self, *words: str) -> str:
        """Run a command of the product, and return what it prints."""
        command = [*CLI, *words]
        done = subprocess.run(
            command, env=self.environment, capture_output=True, text=True, check=False, timeout=600
        )
        if done.returncode:
            raise SystemExit(f"{words} ended with {done.returncode}:\n{done.stderr}")
        return done.stdout


@dataclass
class Pool:
    """The machines, and the folder with everything that they share."""

    root: Path
    store: str
    machines: list[PretendedMachine]
    gpus: int
    """GPUs of each machine."""
    pushing: dict[int, subprocess.Popen[str]] = field(default_factory=dict)
    """Number of a machine -> the process that pushes from it now."""

    @property
    def ledger(self) -> Ledger:
        return open_ledger(self.store)

    @property
    def records(self) -> Path:
        """Return the file into which the jobs' commands write."""
        return self.root / "records"

    def start(self) -> None:
        for machine in self.machines:
            machine.start_worker()

    def end(self) -> None:
        """Kill the workers, and every other process of the machines."""
        for machine in self.machines:
            machine.kill_worker()
        for process in list_pool_processes(self.root):
            with suppress(psutil.Error):
                process.kill()


def make_pool(
    root: Path,
    api: Mapping[str, str],
    *,
    count: int = 2,
    gpus: int = 8,
    store: str = "",
    skew: float = 0.0,
) -> Pool:
    """Return machines that are not started yet. `api`: variables of the Prefect server.

    `skew`: seconds by which the clock of the last machine is ahead.
    """
    root.mkdir(parents=True, exist_ok=True)
    write_fake_smi(root / "bin", gpus)
    store = store or str(root / "store")
    shared = {**make_environment(root / "prefect", store), **api}
    shared["PATH"] = f"{root / 'bin'}:{shared['PATH']}"
    machines = [
        PretendedMachine(
            name, folder, {**shared, "PREFECT_BT_STATE_DIR": str(folder)}, root / f"{name}.log"
        )
        for name in (f"machine-{number}" for number in range(count))
        for folder in [root / name]
    ]
    if skew:
        machines[-1].skew = skew
        machines[-1].environment.update(make_clock(root, skew))
    return Pool(root, store, machines, gpus)


def make_clock(root: Path, skew: float) -> dict[str, str]:
    """Return the variables of processes whose clock is ahead; the dates of files stay true."""
    library, source = root / "clock.so", Path(__file__).with_name("queue_clock.c")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True)
    return {"LD_PRELOAD": str(library), "CLOCK_SKEW": f"{skew:.0f}"}


def make_environment(home: Path, store: str) -> dict[str, str]:
    """Return the variables of a machine with plenty of CPUs and memory, without the user's."""
    own = ("PREFECT", "BT_")
    return {
        **{name: value for name, value in os.environ.items() if not name.startswith(own)},
        "PYTHONPATH": str(ROOT),
        "PREFECT_HOME": str(home),
        "PREFECT_BT_STORE": store,
        "PREFECT_BT_CAPACITY_CPUS": "64",
        "PREFECT_BT_CAPACITY_MEMORY": "64GiB",
        "PREFECT_BT_GRACE": "5",
    }


def write_fake_smi(folder: Path, gpus: int) -> None:
    """Write a program that lists the GPUs as nvidia-smi does."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = "".join(f"{number}, {MODEL}\n" for number in range(gpus))
    program = folder / "nvidia-smi"
    program.write_text(f"#!/bin/sh\ncat <<'END'\n{lines}END\n")
    program.chmod(0o755)


@contextmanager
def serve_prefect(root: Path) -> Generator[dict[str, str]]:
    """Yield the variables of a Prefect server, which has a store and a state folder of its own."""
    environment = {
        **make_environment(root / "prefect", str(root / "server-store")),
        "PREFECT_BT_STATE_DIR": str(root / "server"),
        "PREFECT_BT_SERVER_PORT": str(PORT),
    }
    up = [*CLI, "up", "--no-worker"]
    subprocess.run(up, env=environment, check=True, capture_output=True, timeout=300)
    try:
        yield {
            "PREFECT_API_URL": f"http://127.0.0.1:{PORT}/api",
            CLIENT_VARIABLE: read_auth(root / "server"),
        }
    finally:
        subprocess.run([*CLI, "down", "--force"], env=environment, check=False, capture_output=True)


def list_pool_processes(root: Path) -> list[psutil.Process]:
    """Return the processes whose state folder is below this folder."""
    found: list[psutil.Process] = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.environ().get("PREFECT_BT_STATE_DIR", "").startswith(f"{root}/machine-"):
                found.append(process)
    return found


def list_job_processes(job_id: str) -> list[int]:
    """Return the processes that have the job in their environment or their command line."""
    found: list[int] = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with suppress(OSError):
                text = (entry / "environ").read_bytes() + (entry / "cmdline").read_bytes()
                if job_id.encode() in text:
                    found.append(int(entry.name))
    return found


def kill_job(job_id: str) -> float:
    """Kill all processes of a job, as if its machine had stopped; return when they are gone."""
    while pids := list_job_processes(job_id):
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)
    return time.time()
