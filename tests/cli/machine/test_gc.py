"""`prefect-bt gc`: what it says about a job that it does not delete but puts back."""

import os
import time
from pathlib import Path

from prefect_bt.queue.waiting_jobs import list_waiting_jobs
from tests.cli.conftest import Shop, Within
from tests.jobs.records import new_record, small_project


def test_a_lost_job_is_put_back(within: Within, shop: Shop) -> None:
    """Its push was killed an hour ago, after the record of the job."""
    record = new_record(shop.ledger, small_project("lost"))
    shop.ledger.create_job(record)
    for path in Path(shop.url).glob("**/job.json"):
        os.utime(path, (time.time() - 3600, time.time() - 3600))
    run = within("gc", "--dry-run")
    assert run.code == 0, run
    assert "Would put back 1 job." in run.out + run.err
    run = within("gc", "--yes")
    assert (run.code, "Put back 1 job." in run.out, "Deleted" in run.out) == (0, True, False), run
    assert [job.id for job in list_waiting_jobs(shop.ledger.store)] == [record.id]
    assert "No orphans found." in within("gc").out
