"""A job that runs in the test's process, and what a test does to it meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.e2e.conftest import Machine, until


def complete_beside(
    machine: Machine, config: Path, act: Callable[[str], None], **given: Any
) -> dict[str, Any]:
    """Run the job to its end, and `act(job_id)` in a thread beside it; return the job's document.

    `given` are the parameters of `Machine.train`. If `act` fails, stop the job and raise the error.
    """
    before, failed = _job_ids(machine), list[BaseException]()

    def beside() -> None:
        job_id = ""
        try:
            (job_id,) = until(lambda: _job_ids(machine) - before, seconds=60, what="a job")
            act(job_id)
        except BaseException as error:
            failed.append(error)
            if job_id:
                machine.process("stop", "--job-id", job_id, check=False)

    thread = threading.Thread(target=beside)
    thread.start()
    try:
        job = machine.train(config, **given)
    finally:
        thread.join()
    for error in failed:
        raise error
    assert job["current_status"] == "TRAINING_JOB_COMPLETED", machine.logs(job["id"])
    return job


def _job_ids(machine: Machine) -> set[str]:
    return {job.id for job in machine.ledger.list_jobs()}
