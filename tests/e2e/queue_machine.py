"""A machine with a queue of its own: room for one job, or as many GPUs as a test pretends."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from prefect_bt.queue.leases import Leases

from .conftest import Machine, end_processes, machine_environment, until
from .test_worker import flow_run

CONFIG = """
import json
from pathlib import Path
from truss_train import definitions as d

given = json.loads((Path(__file__).parent / "given.json").read_text())
project = d.TrainingProject(
    name="queue",
    job=d.TrainingJob(
        name=given["name"],
        image=d.Image(base_image="none"),
        compute=d.Compute(memory=given["memory"], accelerator=given["gpus"]),
        runtime=d.Runtime(
            start_commands=["sh ./run.sh"],
            environment_variables={"NAME": given["name"], "SHARED": given["shared"]},
            checkpointing_config=d.CheckpointingConfig(enabled=True),
        ),
    ),
)
"""

# The lock tells of two jobs at once, which is wrong where one has all the memory.
LOCKS = """
exec 9>"$SHARED/memory"
flock -n 9 || touch "$SHARED/exceeded"
"""
WAITS = """
say() { echo "$NAME $1 $(date +%s.%N) $BT_RETRY_COUNT" >> "$SHARED/times"; }
say start
until test -e "$SHARED/go-$NAME"; do sleep 0.1; done
say end
"""
HOLDS = LOCKS + WAITS

SMI = """#!/bin/sh
for index in $(seq 0 {last}); do echo "$index, NVIDIA H100 80GB HBM3"; done
"""


class Time(NamedTuple):
    """What a job wrote: its name, `start` or `end`, when, and in which attempt."""

    name: str
    word: str
    at: float
    attempt: int


class QueueMachine(Machine):
    @property
    def shared(self) -> Path:
        return self.root / "shared"

    def config(self, name: str, script: str = HOLDS, *, gpus: int = 0) -> Path:
        """A job that asks for all the memory, or for GPUs."""
        memory, spec = ("64Mi", f"H100:{gpus}") if gpus else ("4Gi", None)
        given = {"name": name, "memory": memory, "gpus": spec, "shared": str(self.shared)}
        config = self.folder(script, **given)
        config.write_text(CONFIG)
        return config

    def start(self, name: str, *words: str, script: str = HOLDS, gpus: int = 0) -> str:
        """Push a job and return its id."""
        return str(self.push(self.config(name, script, gpus=gpus), *words)["id"])

    def release(self, *names: str) -> None:
        """Let these jobs end."""
        for name in names:
            (self.shared / f"go-{name}").touch()

    def rows(self) -> list[dict[str, Any]]:
        return json.loads(self.run("queue", "-o", "json").stdout)

    def queued(self) -> list[str]:
        return [row["id"] for row in self.rows()]

    def times(self) -> list[Time]:
        file = self.shared / "times"
        lines = [line.split() for line in file.read_text().splitlines()] if file.exists() else []
        return [Time(name, word, float(at), int(attempt)) for name, word, at, attempt in lines]

    def starts(self) -> list[str]:
        return [time.name for time in self.times() if time.word == "start"]

    def wait_for_start(self, name: str) -> None:
        until(lambda: name in self.starts(), seconds=30, what=f"the commands of {name}")

    def run_in_prefect(self, job_id: str) -> Any:
        """The job's only Prefect run, once there is one."""
        runs = until(lambda: self.ledger.runs.list(job_id), seconds=30, what=f"a run of {job_id}")
        assert len({run.flow_run_id for run in runs}) == 1
        return flow_run(self, runs[-1].flow_run_id)

    def wait_in_prefect(self, job_id: str, state: str) -> Any:
        """The job's Prefect run, once its state has this name."""

        def seen() -> Any:
            run = self.run_in_prefect(job_id)
            return run if run["state"]["name"] == state else None

        what = lambda: f"{state}, but {self.run_in_prefect(job_id)['state']}"  # noqa: E731
        return until(seen, seconds=30, what=what)

    def check_idle(self) -> None:
        """Nobody waits, nothing is held, no supervisor is left, and no two jobs met."""
        leases = Leases(self.ledger.store)
        until(lambda: not leases.read(), seconds=15, what=lambda: f"no leases: {leases.active}")
        assert self.rows() == []
        left = lambda: self.processes("prefect_bt.supervisor")  # noqa: E731
        until(lambda: not left(), seconds=15, what=lambda: f"no supervisors: {left()}")
        assert not (self.shared / "exceeded").exists()

    def check_intervals(self, *names: str) -> None:
        """The commands of these jobs ran one after the other."""
        found = [(one.name, one.word) for one in self.times()]
        assert found == [(name, word) for name in names for word in ("start", "end")]
        times = [one.at for one in self.times()]
        assert times == sorted(times)
        gaps = [f"{later - end:.2f}" for end, later in zip(times[1::2], times[2::2], strict=False)]
        print("seconds from an end to the next start:", *gaps)


def take_part(machine: QueueMachine) -> subprocess.Popen[bytes]:
    """Start `prefect-bt worker`, and wait until it takes jobs."""
    log = machine.root / f"worker-{time.monotonic_ns()}.log"
    with log.open("wb") as output:
        worker = subprocess.Popen(
            machine.command("worker"),
            env={**machine.environment, "PYTHONUNBUFFERED": "1"},
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    until(lambda: b"takes jobs" in log.read_bytes(), seconds=30, what="a worker")
    return worker


@contextmanager
def working(machine: QueueMachine) -> Generator[subprocess.Popen[bytes]]:
    """Run `prefect-bt worker` until the block ends."""
    worker = take_part(machine)
    try:
        yield worker
    finally:
        with suppress(ProcessLookupError):
            os.kill(worker.pid, signal.SIGKILL)
        worker.wait()


Make = Callable[..., QueueMachine]


@pytest.fixture
def make_machine(served_machine: Machine, tmp_path: Path) -> Iterator[Make]:
    """Make machines of one store; each has the GPUs given, or memory for one job."""
    made: list[QueueMachine] = []
    (tmp_path / "shared").mkdir()
    common = {**machine_environment(tmp_path), **served_machine.api}

    def make(*, gpus: int = 0, state: str = "state") -> QueueMachine:
        own = {"PREFECT_BT_STATE_DIR": str(tmp_path / state)}
        if gpus:
            tools = tmp_path / f"bin-{gpus}"
            tools.mkdir(exist_ok=True)
            (tools / "nvidia-smi").write_text(SMI.format(last=gpus - 1))
            (tools / "nvidia-smi").chmod(0o755)
            own["PATH"] = f"{tools}:{common['PATH']}"
        else:
            own["PREFECT_BT_CAPACITY_MEMORY"] = "4GiB"
        made.append(QueueMachine(tmp_path, {**common, **own}))
        return made[-1]

    yield make
    for machine in made:
        end_processes(machine)


@pytest.fixture
def queue_machine(make_machine: Make) -> QueueMachine:
    """A machine with memory for one job."""
    return make_machine()
