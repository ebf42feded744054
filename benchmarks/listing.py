"""CPU and wall time of lists over a store with many ended jobs, beside `find` over the same folder.

`python benchmarks/listing.py [--jobs 2000] [--runs 5] [--json]`. The records are written directly,
as the ledger writes them. Cold: without an index of ended jobs in the store; all other lists run
after one that wrote it. `find` prints the names of the store's files, and `cat` of the records is
what any reader without an index pays at least. Each figure is a child process, taken in turn.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from prefect_bt import codec
from prefect_bt.definitions import Compute, Image, Runtime, TrainingJob, TrainingProject
from prefect_bt.definitions import project_document as definition_of
from prefect_bt.ledger.records import (
    AttemptRecord,
    FlowRunRecord,
    JobEvent,
    JobRecord,
    NodePhase,
    NodeStatus,
    Outcome,
    ProjectRecord,
)
from prefect_bt.ledger.states import JobState
from prefect_bt.object_keys import (
    INDEX_ENDED,
    attempt_prefix,
    job_index_key,
    job_prefix,
    project_index_key,
    project_prefix,
)

PROJECT = "project"
BEGAN = 1_700_000_000.0
STATES = (JobState.CREATED, JobState.DEPLOYING, JobState.RUNNING)
ENDS = (JobState.COMPLETED, JobState.COMPLETED, JobState.FAILED, JobState.STOPPED)
_NONE = subprocess.DEVNULL
CLI = [sys.executable, "-m", "prefect_bt.cli.entry"]


def write_jobs(root: Path, count: int, *, project: str = PROJECT) -> list[JobRecord]:
    """Write a project of so many ended jobs into an empty store. Return their records."""
    made = ProjectRecord("bench01", project, BEGAN)
    _write(root, f"{project_prefix(made.id)}/project.json", codec.dumps(made))
    _write(root, project_index_key(project), json.dumps({"project_id": made.id}))
    return [_write_job(root, made, number) for number in range(count)]


def _write_job(root: Path, project: ProjectRecord, number: int) -> JobRecord:
    at, run = BEGAN + 60.0 * number, f"{number:08d}-0000-4000-8000-000000000000"
    definition = TrainingProject(
        name=project.name,
        job=TrainingJob(
            image=Image(base_image="python:3.11"),
            compute=Compute(),
            runtime=Runtime(start_commands=["python train.py"]),
        ),
    )
    record = JobRecord(
        id=f"j{number:06d}",
        name=f"job-{number + 1}",
        project_id=project.id,
        project_name=project.name,
        created_at=at,
        definition=definition_of(definition),
        user="ann",
    )
    prefix = job_prefix(project.id, record.id)
    end = ENDS[number % len(ENDS)]
    _write(root, job_index_key(record.id), json.dumps({"project_id": project.id}))
    _write(root, f"{project_prefix(project.id)}/names/job-{number + 1}", "{}")
    _write(root, f"{prefix}/job.json", codec.dumps(record))
    for index, state in enumerate((*STATES, end)):
        event = JobEvent(state, at + index, "the last words" if state is end else "", 0)
        _write(root, f"{prefix}/events/{index:06d}.json", codec.dumps(event))
    _write(root, f"{prefix}/runs/{run}.json", codec.dumps(FlowRunRecord(run, at, host="bench:1")))
    attempt = attempt_prefix(project.id, record.id, 0)
    _write(root, f"{attempt}/attempt.json", codec.dumps(AttemptRecord(0, at, run, "bench:1")))
    nodes = (NodeStatus(phase=NodePhase.DONE, rank=0, exit_code=0),)
    outcome = Outcome(0, end, "the last words", nodes=nodes, started_at=at, ended_at=at + 9)
    _write(root, f"{attempt}/outcome.json", codec.dumps(outcome))
    return record


def _write(root: Path, key: str, text: str) -> None:
    path = root / key
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def measure(command: Sequence[str], environment: dict[str, str]) -> tuple[float, float]:
    """Run a child. Return its CPU seconds (user and system) and its wall seconds."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(command, env=environment, check=True, stdout=_NONE, stderr=_NONE)
    wall, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, wall


def figures(root: Path) -> dict[str, tuple[list[str], bool]]:
    """Name -> command, and whether the index is removed before it."""
    view, store = [*CLI, "view"], str(root / "store")
    return {
        "view, cold": (view, True),
        "view --project, cold": ([*view, "--project", PROJECT], True),
        "view --project --all, cold": ([*view, "--project", PROJECT, "--all"], True),
        "view --project --all": ([*view, "--project", PROJECT, "--all"], False),
        "view --project": ([*view, "--project", PROJECT], False),
        "view --project -o json": ([*view, "--project", PROJECT, "-o", "json"], False),
        "view": (view, False),
        "find": (["find", store, "-type", "f"], False),
        "ls -lR": (["ls", "-lR", store], False),
        "cat of all records": (
            ["find", store, "-name", "*.json", "-exec", "cat", "{}", "+"],
            False,
        ),
        "python -c pass": ([sys.executable, "-c", "pass"], False),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=2000)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="prefect-bt-bench-") as folder:
        root = Path(folder)
        write_jobs(root / "store", given.jobs)
        environment = {
            **os.environ,
            "PREFECT_BT_STORE": str(root / "store"),
            "PREFECT_BT_STATE_DIR": str(root / "state"),
        }
        taken: dict[str, list[tuple[float, float]]] = {}
        for _ in range(given.runs):
            for name, (command, cold) in figures(root).items():
                if cold:
                    shutil.rmtree(root / "store" / INDEX_ENDED, ignore_errors=True)
                taken.setdefault(name, []).append(measure(command, environment))
    report(taken, as_json=given.json)


def report(taken: dict[str, list[tuple[float, float]]], *, as_json: bool) -> None:
    rows = {
        name: {
            "cpu_s": round(statistics.median(cpu for cpu, _ in values), 3),
            "wall_s": round(statistics.median(wall for _, wall in values), 3),
            "runs": len(values),
        }
        for name, values in taken.items()
    }
    if as_json:
        print(json.dumps(rows, indent=1))
        return
    print(f"{'':<26} {'CPU s':>8} {'wall s':>8} {'runs':>5}")
    for name, row in rows.items():
        print(f"{name:<26} {row['cpu_s']:>8.3f} {row['wall_s']:>8.3f} {row['runs']:>5}")


if __name__ == "__main__":
    main()
