"""One job and one store on two machines: two state folders, each with its own processes."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from prefect_bt.attempts.job_context import open_job_context
from prefect_bt.checkpoints.committed.verify_committed import verify
from prefect_bt.flows.train import train
from prefect_bt.ledger.states import JobState
from prefect_bt.settings import Settings
from tests.conftest import Soak
from tests.in_process import environment_of

from .conftest import Done, Machine, read_all, until

pytestmark = [pytest.mark.integration, pytest.mark.slow]

# A gang that finds another one beside it leaves a file behind; it ends when it is told to, and
# saves a last checkpoint when it is stopped.
TRAIN = """
set -e
trap 'mkdir -p $BT_CHECKPOINT_DIR/last; echo "{}" > $BT_CHECKPOINT_DIR/last/state.json; exit 1' TERM
exec 9>"$SHARED/gang"
flock -n 9 || touch "$SHARED/two-gangs"
mkdir -p $BT_CHECKPOINT_DIR/checkpoint-$BT_RETRY_COUNT
echo "{\\"attempt\\": $BT_RETRY_COUNT}" > $BT_CHECKPOINT_DIR/checkpoint-$BT_RETRY_COUNT/state.json
touch "$SHARED/runs-$BT_RETRY_COUNT"
while [ ! -e "$SHARED/end-$BT_RETRY_COUNT" ]; do sleep 0.2; done
exit $(cat "$SHARED/end-$BT_RETRY_COUNT")
"""


@pytest.fixture
def other(machine: Machine, tmp_path: Path) -> Iterator[Machine]:
    """Start another machine of the same store and Prefect server."""
    environment = {**machine.environment, "PREFECT_BT_STATE_DIR": str(tmp_path / "state")}
    yield Machine(machine.root, environment)


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    folder = tmp_path / "shared"
    folder.mkdir()
    return folder


def push(machine: Machine, shared: Path) -> str:
    """Start a job that runs until `end`, and wait until its checkpoint 0 is committed."""
    job_id = str(machine.push(machine.folder(TRAIN, env={"SHARED": str(shared)}))["id"])
    until(lambda: machine.checkpoints(job_id), seconds=90, what="a committed checkpoint")
    machine.wait(job_id, "RUNNING")
    return job_id


def end(shared: Path, attempt: int, code: int) -> None:
    fresh = shared / "fresh"
    fresh.write_text(str(code))
    fresh.replace(shared / f"end-{attempt}")


@pytest.mark.extended
def test_one_of_two_retries_is_refused(machine: Machine, other: Machine, shared: Path) -> None:
    job_id = push(machine, shared)
    end(shared, 0, 1)
    machine.wait(job_id, "FAILED")
    done: list[Done] = []

    def retry(one: Machine) -> None:
        done.append(one.process("retry", "--job-id", job_id, check=False))

    threads = [threading.Thread(target=retry, args=(one,)) for one in (machine, other)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(one.returncode for one in done) == [0, 1], [one.stderr for one in done]
    [lost] = [one.stderr for one in done if one.returncode]
    assert "is run by" in lost or "only a job that failed" in lost
    until((shared / "runs-1").exists, seconds=90, what="the retry's gang")
    end(shared, 1, 0)
    machine.wait(job_id, "COMPLETED")
    assert len(machine.ledger.list_attempts(job_id)) == 2
    assert not (shared / "two-gangs").exists()
    assert machine.checkpoints(job_id) == ["checkpoint-0", "checkpoint-1"]


@pytest.mark.extended
def test_an_abandoned_machine_stops_its_job(machine: Machine, other: Machine, shared: Path) -> None:
    job_id = push(machine, shared)
    other.run("stop", "--job-id", job_id, "--abandoned")
    until(lambda: not nodes(machine, job_id), seconds=90, what="the first machine's gang gone")
    other.run("retry", "--job-id", job_id)
    until((shared / "runs-1").exists, seconds=90, what="the retry's gang")
    end(shared, 1, 0)
    machine.wait(job_id, "COMPLETED")
    events = machine.ledger.list_events(job_id)
    epochs = [event.epoch for event in events]
    assert epochs == sorted(epochs)
    assert [event.state for event in events].count(JobState.STOPPED) == 1
    assert machine.checkpoints(job_id) == ["checkpoint-0", "checkpoint-1"]
    assert not (shared / "two-gangs").exists()


@pytest.mark.parametrize(
    "killed",
    [
        "",
        pytest.param("supervisor.run_flow", marks=pytest.mark.extended),
        pytest.param("supervisor", marks=pytest.mark.extended),
    ],
    ids=["none", "flow", "both"],
)
def test_a_machine_that_comes_back_ends_what_it_had_and_changes_nothing(
    machine: Machine, other: Machine, shared: Path, killed: str
) -> None:
    """Halt the machine, as if its network were gone, while a person gives its job up.

    Then resume it, without its flow, or without flow and supervisor.
    """
    patient = Machine(machine.root, {**machine.environment, "PREFECT_BT_ORPHAN_DEADLINE": "3600"})
    job_id = push(patient, shared)
    theirs = suspend(machine, job_id)
    for process in theirs:
        with suppress(psutil.NoSuchProcess):
            if killed and f"prefect_bt.{killed}" in " ".join(process.cmdline()):
                process.kill()
    (shared / "gang").unlink()  # the other machine's gang has a lock of its own
    other.run("stop", "--job-id", job_id, "--abandoned")
    other.run("retry", "--job-id", job_id)
    until((shared / "runs-1").exists, seconds=90, what="the retry's gang")
    for process in theirs:
        with suppress(psutil.NoSuchProcess):
            process.resume()
    until(lambda: not nodes(machine, job_id), seconds=90, what="the first machine's gang gone")
    until(lambda: not any(map(is_alive, theirs)), seconds=90, what="nothing of it left")
    assert machine.ledger.get_state(job_id) is JobState.RUNNING
    assert machine.ledger.controls.find_stop_request(job_id) is None
    check_refused(machine, job_id)
    end(shared, 1, 0)
    machine.wait(job_id, "COMPLETED")
    events = machine.ledger.list_events(job_id)
    assert {event.epoch for event in events if event.attempt == 1} == {events[-1].epoch}
    assert len(machine.ledger.list_attempts(job_id)) == 2
    assert machine.checkpoints(job_id) == ["checkpoint-0", "checkpoint-1"]
    assert not (shared / "two-gangs").exists()


def check_refused(machine: Machine, job_id: str) -> None:
    """Check that this machine cannot run the job that another one runs, and learns where it is."""
    with environment_of(machine.environment):
        refused: Any = train(job_id=job_id, return_state=True)
    assert refused.is_failed()
    assert f"Job {job_id} is run by" in refused.message
    assert "--abandoned" in refused.message
    told = machine.run("retry", "--job-id", job_id, check=False).stderr
    assert "Traceback" not in told
    assert os.uname().nodename in told, told
    assert machine.ledger.get_state(job_id) is JobState.RUNNING


def suspend(machine: Machine, job_id: str) -> list[psutil.Process]:
    """Suspend all processes of the job; its shell's short ones may end meanwhile."""
    halted: list[psutil.Process] = []
    for pid in machine.job_processes(job_id):
        with suppress(psutil.NoSuchProcess):
            process = psutil.Process(pid)
            process.suspend()
            halted.append(process)
    return halted


def is_alive(process: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def nodes(machine: Machine, job_id: str) -> list[object]:
    settings = Settings(store=str(machine.root / "store"), state_dir=machine.state_dir)
    site = open_job_context(machine.ledger, machine.ledger.get_job(job_id), settings=settings)
    return list(site.substrate.list_nodes(job_id))


# Of the race: one checkpoint, then the end that a race goes on from. The lock tells of two gangs.
SHORT = """
exec 9>"$SHARED/gang"
flock -n 9 || touch "$SHARED/two-gangs-$BT_RETRY_COUNT"
mkdir -p $BT_CHECKPOINT_DIR/checkpoint-$BT_RETRY_COUNT
seq $BT_RETRY_COUNT 5000 > $BT_CHECKPOINT_DIR/checkpoint-$BT_RETRY_COUNT/numbers.txt
echo "{\\"attempt\\": $BT_RETRY_COUNT}" > $BT_CHECKPOINT_DIR/checkpoint-$BT_RETRY_COUNT/state.json
sleep $(($(od -An -N1 -tu1 /dev/urandom) % 6))
exit 1
"""
RACES = 20
TRAIN_AGAIN = "from prefect_bt.flows.train import train; train(job_id={!r})"


class Race:
    """Rounds of one job: both machines ask for it at once, and any process of it may be killed."""

    def __init__(self, both: tuple[Machine, Machine], job_id: str, shared: Path) -> None:
        self.both, self.job_id, self.shared = both, job_id, shared
        self.ledger = both[0].ledger
        self.listed: set[str] = set()
        self.counts: Counter[str] = Counter()

    def run(self, chance: random.Random) -> None:
        """Run one round; the job is over before and after it."""
        asked = [self._ask(one, chance) for one in self.both]
        for _ in range(chance.choice([0, 1, 1, 2])):
            time.sleep(chance.uniform(0, 9))
            self._kill(chance)
        for one in asked:
            one.wait(timeout=600)
        self._end_job()
        for one in asked:
            self._check_words(one)
        self._check_records()

    def _ask(self, machine: Machine, chance: random.Random) -> Asked:
        words = machine.command("retry", "--job-id", self.job_id)
        if is_flow := chance.random() < 0.4:
            words = [sys.executable, "-c", TRAIN_AGAIN.format(self.job_id)]
        return Asked(machine, words, is_flow=is_flow, folder=self.shared)

    def _kill(self, chance: random.Random) -> None:
        """Kill any process of the job: a command, a supervisor, a flow, a guard, an uploader."""
        if pids := self._processes():
            with suppress(psutil.NoSuchProcess):
                victim = psutil.Process(chance.choice(pids))
                self.counts[what_of(" ".join(victim.cmdline()))] += 1
                victim.send_signal(signal.SIGKILL)

    def _processes(self) -> list[int]:
        """Return the pids of the job, and of its supervisors, which are found by their store."""
        store = str(self.both[0].root / "store")
        keepers = [
            int(entry.name)
            for entry in Path("/proc").iterdir()
            if entry.name.isdigit() and int(entry.name) != os.getpid()
            if "-m prefect_bt.supervisor"
            in (said := read_all(entry / "cmdline").replace("\0", " "))
            if said and store in read_all(entry / "environ")
        ]
        return sorted({*self.both[0].job_processes(self.job_id), *keepers})

    def _end_job(self) -> None:
        """End the job as a user does: look, and if it has no runner, stop it where it is held."""
        looked, deadline = time.monotonic(), time.monotonic() + 600
        while not self._is_quiet():
            assert time.monotonic() < deadline, self.story()
            time.sleep(0.25)
            if time.monotonic() - looked > 15:
                looked = time.monotonic()
                for one in self.both:
                    one.process("view", "--job-id", self.job_id)
                if not self._is_quiet() and not self._processes():
                    self.counts["stopped by hand"] += 1
                    self._stop()

    def _stop(self) -> None:
        done = [one.process("stop", "--job-id", self.job_id, check=False) for one in self.both[:1]]
        if self.ledger.get_state(self.job_id).terminal:
            return
        done.append(self.both[1].process("stop", "--job-id", self.job_id, check=False))
        assert self.ledger.get_state(self.job_id).terminal, (done, self.story())

    def _is_quiet(self) -> bool:
        over = self.ledger.get_state(self.job_id).terminal
        return over and not self._processes()

    def _check_words(self, one: Asked) -> None:
        """Check that the losing command names the machine that won, in a sentence."""
        code, said = one.wait(), one.said.read_text()
        self.counts[f"{'train' if one.is_flow else 'retry'} {code}"] += 1
        if code != 1 or one.is_flow:
            return
        assert "Traceback" not in said, said
        assert self.job_id in said, said
        # One that came late may find it over again; another lost its own supervisor to a kill.
        named = os.uname().nodename in said or "on this machine" in said
        known = ("only a job that failed", "The process of job")
        assert named or any(words in said for words in known), said

    def _check_records(self) -> None:
        assert not list(self.shared.glob("two-gangs*")), self.story()
        epochs = [event.epoch for event in self.ledger.list_events(self.job_id)]
        assert epochs == sorted(epochs), self.story()
        attempts = [one.attempt for one in self.ledger.list_attempts(self.job_id)]
        assert attempts == list(range(len(attempts))), self.story()
        now = set(self.both[0].checkpoints(self.job_id))
        assert self.listed <= now, (self.listed - now, self.story())
        self.listed = now
        record = self.ledger.get_job(self.job_id)
        assert verify(self.ledger.store, record.project_id, self.job_id) == [], self.story()

    def story(self) -> str:
        """Return the job's records, for the message of a failure."""
        events = self.ledger.list_events(self.job_id)[-12:]
        claims = self.ledger.store.list(
            f"training_projects/{self._project}/jobs/{self.job_id}/epochs"
        )
        lines = [f"{e.epoch} {e.state.short_name} {e.attempt} {e.message}" for e in events]
        processes = self._processes()
        return "\n".join([*lines, *(c.key for c in claims), str(processes), str(self.counts)])

    @property
    def _project(self) -> str:
        return self.ledger.get_job(self.job_id).project_id


class Asked:
    """A command that asks for the job; its output is in a file."""

    def __init__(self, machine: Machine, words: list[str], *, is_flow: bool, folder: Path) -> None:
        self.is_flow, self.said = is_flow, folder / f"said-{time.monotonic_ns()}"
        with self.said.open("wb") as said:
            self._process = subprocess.Popen(
                words, env=machine.environment, stdout=said, stderr=said, stdin=subprocess.DEVNULL
            )

    def wait(self, timeout: float | None = None) -> int:
        return self._process.wait(timeout)


def what_of(command: str) -> str:
    known = (
        *("supervisor.process", "run_flow", "jobs.reconcile"),
        *("node_agent.upload_process", "node_agent.guard", "node_agent.agent"),
    )
    others = {"retry --job-id": "retry", "-c from prefect_bt": "train", "run.sh": "command"}
    found = next((one for one in known if one in command), "")
    return f"killed {found or next((w for k, w in others.items() if k in command), 'other')}"


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_races_of_two_machines_with_random_kills(
    machine: Machine, other: Machine, shared: Path, soak: Soak
) -> None:
    job_id = str(machine.push(machine.folder(SHORT, env={"SHARED": str(shared)}))["id"])
    machine.wait(job_id, "FAILED")
    race = Race((machine, other), job_id, shared)
    for number in range(RACES * soak.length):
        race.run(soak.random)
        print(number, dict(race.counts), flush=True)
    print(json.dumps({**race.counts, "checkpoints": len(race.listed)}))
