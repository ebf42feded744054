"""Random processes of short jobs killed at random moments: what is promised holds every time.

A soak sweep: `make soak SEED= LENGTH=` makes 8 times LENGTH jobs, of a deployment too; the worker
and the server are killed as well, and take a minute to mend. The seed says what is drawn, the
machine's pace what a kill hits. In `make test`, tests/e2e/test_deaths.py kills each kind of process
at a moment that it waits for.
"""

import json
import random
import re
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil
import pytest

from prefect_bt.checkpoints.committed.verify_committed import verify
from prefect_bt.local_server.discovery import read_server
from tests.conftest import Soak

from .conftest import Machine, call, serve, until

pytestmark = [
    pytest.mark.integration,
    pytest.mark.soak,
    pytest.mark.timeout(0),  # each wait in it has its own
]

JOBS = 8
AT_ONCE = 4
STEPS = 6
SHARED = 0.15
"""How often a kill is for what all jobs share."""

# Goes on after what it finds; every attempt says what that is. A killed step is a killed training.
TRAIN = f"""
set -e
found=$(ls $BT_CHECKPOINT_DIR | wc -l)
echo attempt $BT_RETRY_COUNT finds $found
for i in $(seq $((found + 1)) {STEPS}); do
  mkdir -p $BT_CHECKPOINT_DIR/checkpoint-$i
  seq $i 20000 > $BT_CHECKPOINT_DIR/checkpoint-$i/numbers.txt
  echo "[$i]" > $BT_CHECKPOINT_DIR/checkpoint-$i/state.json
  sleep 0.5
done
"""


@dataclass(frozen=True)
class Kill:
    """A process that was killed, and what the job had committed just before."""

    what: str
    committed: int


def kill_one(machine: Machine, job_id: str, chance: random.Random) -> Iterator[Kill]:
    """Any process of the job: supervisor, flow, guard, agent, uploader, command; none if all ended.

    Now and then the worker's or the server's instead, which `up`'s watchdog starts again.
    """
    pids = sorted(machine.job_processes(job_id))
    if chance.random() < SHARED:
        known = read_server(machine.state_dir) or {}
        role = chance.choice(["server", "worker"])
        pids = [known[f"{role}_pid"]] if known.get(f"{role}_pid") else []
    if pids:
        with suppress(psutil.NoSuchProcess):
            victim = psutil.Process(chance.choice(pids))
            what = " ".join(victim.cmdline())
            safe = len(machine.checkpoints(job_id))
            victim.send_signal(signal.SIGKILL)
            yield Kill(what, safe)


def run_and_kill(machine: Machine, seed: str) -> str:
    """One job from push to its end; returns what happened, for a failure's message."""
    chance = random.Random(seed)
    words = ["--deployment", "train/train"] if chance.random() < 0.3 else []
    job_id = push(machine, *words)
    kills: list[Kill] = []
    until(lambda: machine.job_processes(job_id), seconds=240, what=f"job {job_id} to begin")
    for _ in range(chance.choice([1, 1, 2])):
        time.sleep(chance.uniform(0, 4))
        kills += kill_one(machine, job_id, chance)

    def ended() -> bool:
        return machine.ledger.get_state(job_id).terminal

    until(ended, seconds=240, what=f"seed {seed}, job {job_id}, after {kills}: an end")
    story = f"seed {seed}, job {job_id}: {kills}"
    check_end(machine, job_id, kills, story)
    return story


def push(machine: Machine, *words: str) -> str:
    """The id of an accepted job; asked again while the server is being started again."""
    config = machine.folder(TRAIN)

    def accepted() -> str:
        done = machine.run("push", str(config), *words, "-o", "json", check=False)
        return json.loads(done.stdout)["id"] if done.returncode == 0 else ""

    return until(accepted, seconds=120, what="a push to be accepted")


def check_end(machine: Machine, job_id: str, kills: list[Kill], story: str) -> None:
    job = machine.view(job_id)
    state, why = job["current_status"], job["error_message"] or ""
    story = f"{story}; {state}: {why}"
    assert state in {"TRAINING_JOB_COMPLETED", "TRAINING_JOB_FAILED"}, story
    if state == "TRAINING_JOB_FAILED":
        # One death is always survived. Two can be of two attempts that had committed nothing new.
        assert len(kills) == 2, story
        assert "committed" in why, story
    names = machine.checkpoints(job_id)
    if state == "TRAINING_JOB_COMPLETED":
        assert names == [f"checkpoint-{i}" for i in range(1, STEPS + 1)], story
    assert len(names) >= max((kill.committed for kill in kills), default=0), story
    record = machine.ledger.get_job(job_id)
    assert verify(machine.ledger.store, record.project_id, job_id) == [], story
    check_attempts(machine, job_id, kills, story)
    # The last one tells Prefect, whose server may have to come back first.
    until(lambda: not machine.job_processes(job_id), seconds=90, what=f"{story}; no process left")
    folder = machine.state_dir / "jobs" / job_id
    until(lambda: not folder.exists(), seconds=15, what=f"{story}; {folder} removed")
    assert job_id not in Path("/proc/self/mountinfo").read_text(), story
    (run,) = machine.ledger.runs.list(job_id)
    until(lambda: run_ended(machine, run.flow_run_id), seconds=60, what=f"{story}; its run's end")


def run_ended(machine: Machine, run_id: str) -> bool:
    """Whether Prefect shows the run as over."""
    with suppress(httpx.HTTPError):
        run = call(machine, "GET", f"flow_runs/{run_id}")
        return run["state_type"] in {"COMPLETED", "FAILED"}
    return False


def check_attempts(machine: Machine, job_id: str, kills: list[Kill], story: str) -> None:
    """Numbered in order, each with an end, and going on from all that was committed before."""
    attempts = machine.view(job_id)["attempts"]
    assert [a["attempt"] for a in attempts] == list(range(len(attempts))), story
    assert all(a["status"] != "running" for a in attempts), story
    assert len(attempts) <= len(kills) + 1, story
    said = re.findall(r"attempt (\d+) finds (\d+)", machine.logs(job_id))
    found = {int(attempt): int(count) for attempt, count in said}
    assert sorted(found) == [n for n in range(len(attempts)) if n in found], story
    counts = [found[n] for n in sorted(found)]
    assert counts == sorted(counts), f"{story}: {said}"
    if len(kills) == 1 and 1 in found:
        assert found[1] >= kills[0].committed, f"{story}: {said}"


@pytest.fixture
def own_machine(tmp_path: Path) -> Iterator[Machine]:
    """With a server and a worker that no other test uses: they are killed."""
    with serve(tmp_path / "machine") as environment:
        yield Machine(tmp_path / "machine", environment)


def test_random_kills(own_machine: Machine, soak: Soak) -> None:
    with ThreadPoolExecutor(AT_ONCE) as pool:
        seeds = [f"{soak.seed}:{number}" for number in range(JOBS * soak.length)]
        runs = [pool.submit(run_and_kill, own_machine, seed) for seed in seeds]
        faults = [str(error) for run in runs if (error := run.exception())]
    assert not faults, "\n\n".join(faults)
    print("", *(run.result() for run in runs), sep="\n")
