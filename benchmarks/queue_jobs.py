"""Draw the jobs of a queue's benchmark, and push them from a process of a pretended machine.

`python benchmarks/queue_jobs.py JOBS.json RECORDS FOLDER` pushes the jobs of a file one after
another through the Python API, and prints a line `<name> <job id>` for each.

A job's command writes one line at its start and one at its end into the file RECORDS:

    start|end|cut  <job id>  <attempt>  <GPUs>  <CUDA_VISIBLE_DEVICES>  <epoch seconds>

The time is the true one, also on a machine whose clock is made wrong.
"""

from __future__ import annotations

import json
import random
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

TEAMS = ("red", "blue")
CAPPED = TEAMS[0]
GPU_TYPE = "H100"
SIZES = (1, 1, 1, 1, 2, 2, 4, 8)
"""Numbers of GPUs to choose from: small ones are more frequent."""
COMMAND = """
note() {{ echo "$1 $BT_TRAINING_JOB_ID $BT_RETRY_COUNT {gpus} ${{CUDA_VISIBLE_DEVICES:--}} \
$(LD_PRELOAD= date +%s.%N)" >> "{records}"; }}
trap 'note cut; exit 143' TERM
note start
sleep {seconds:.3f} & wait $!
note end
"""


@dataclass(frozen=True)
class PoolJob:
    """A job to push; `run_time` is its limit in seconds, above its length."""

    name: str
    gpus: int
    seconds: float
    priority: int
    team: str
    spot: bool = False
    run_time: float | None = None

    @property
    def may_die(self) -> bool:
        """Return whether its processes may be killed: a repeated run must not meet the limit."""
        return self.run_time is None


def draw_jobs(
    count: int,
    seed: int,
    *,
    sizes: tuple[int, ...] = SIZES,
    seconds: tuple[float, float] = (15.0, 60.0),
    margin: float = 10.0,
) -> list[PoolJob]:
    """Return the jobs that the seed chooses. Half have a limit; a third of the others are spot.

    `margin`: seconds of a limit beyond a tenth more than the length, for a busy machine.
    """
    chance = random.Random(seed)
    return [_draw_job(chance, number, sizes, seconds, margin) for number in range(count)]


def _draw_job(
    chance: random.Random,
    number: int,
    sizes: tuple[int, ...],
    seconds: tuple[float, float],
    margin: float,
) -> PoolJob:
    length, limited = chance.uniform(*seconds), chance.random() < 0.5
    return PoolJob(
        name=f"job-{number:03d}",
        gpus=chance.choice(sizes),
        seconds=length,
        priority=chance.randrange(3),
        team=chance.choice(TEAMS),
        spot=not limited and chance.random() < 0.33,
        run_time=1.1 * length + margin if limited else None,
    )


def write_jobs(path: Path, jobs: list[PoolJob]) -> None:
    """Write the jobs to a file for a process that pushes them."""
    path.write_text(json.dumps([asdict(job) for job in jobs]))


def push_jobs(jobs: list[PoolJob], records: Path, folder: Path) -> None:
    """Push the jobs one after another, and print the ID of each."""
    from prefect_bt.jobs.options import SubmitOptions
    from prefect_bt.jobs.submit import submit
    from prefect_bt.ledger.records import RetryBudget

    script = folder / "run.sh"
    for job in jobs:
        text = COMMAND.format(gpus=job.gpus, seconds=job.seconds, records=records)
        script.write_text(text)
        options = SubmitOptions(
            retry_policy=RetryBudget(infrastructure=50, without_progress=0, longest_delay=2.0),
            max_run_time=job.run_time,
        )
        document = submit(make_project(job), source_dir=folder, options=options)
        print(job.name, document["id"], flush=True)


def make_project(job: PoolJob):
    """Return the definition of a job whose workspace has the script run.sh."""
    from prefect_bt.definitions import (
        AvailabilityModel,
        Compute,
        Image,
        Runtime,
        TrainingJob,
        TrainingProject,
    )

    kind = AvailabilityModel.SPOT if job.spot else AvailabilityModel.DEDICATED
    gpus = f"{GPU_TYPE}:{job.gpus}"
    return TrainingProject(
        name=f"pool-{job.team}",
        team_name=job.team,
        job=TrainingJob(
            name=job.name,
            priority=job.priority,
            image=Image(base_image="none"),
            compute=Compute(memory="64Mi", accelerator=gpus, availability_model=kind),
            runtime=Runtime(start_commands=["sh run.sh"]),
        ),
    )


def main(arguments: list[str]) -> None:
    """Push the jobs of the file."""
    path, records, folder = map(Path, arguments)
    push_jobs([PoolJob(**one) for one in json.loads(path.read_text())], records, folder)


if __name__ == "__main__":
    main(sys.argv[1:])
