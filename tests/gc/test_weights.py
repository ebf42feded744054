"""Weights that nobody works on, and leases that keep nothing."""

import os
import subprocess
import time

from prefect_bt.gc.findings import OrphanKind
from prefect_bt.ledger.states import JobState
from prefect_bt.weights.cache.node_cache import NodeCache
from tests.gc.conftest import DAY, Site


def test_unfinished_weights_go_when_nobody_works_on_them(site: Site) -> None:
    cache = NodeCache(site.settings.weights_dir)
    busy, left = cache.partial_path("busy"), cache.partial_path("left")
    for part in (busy, left):
        part.mkdir(parents=True)
        (part / "data").write_bytes(b"x" * 5000)
        (part / "lock").touch()
    worker = subprocess.Popen(
        ["flock", str(busy / "lock"), "sh", "-c", "echo locked; exec sleep 300"],
        stdout=subprocess.PIPE,
    )
    try:
        assert worker.stdout.readline() == b"locked\n"
        assert site.kinds() == [], "somebody may come back to it"
        (found,) = site.look(older_than=0.0).orphans
        assert (found.kind, found.location) == (OrphanKind.WEIGHTS, str(left))
        assert found.bytes >= 5000
        assert site.clear(older_than=0.0) == []
        assert busy.exists()
        assert not left.exists()
    finally:
        worker.kill()
        worker.wait()


def test_a_part_that_was_written_to_lately_is_not_old(site: Site) -> None:
    part = NodeCache(site.settings.weights_dir).partial_path("p")
    part.mkdir(parents=True)
    (part / "data").write_bytes(b"x")
    long_ago = time.time() - 30 * DAY
    os.utime(part, (long_ago, long_ago))
    assert site.kinds() == []
    os.utime(part / "data", (long_ago, long_ago))
    assert site.kinds() == [OrphanKind.WEIGHTS]


def test_leases_of_jobs_that_are_over(site: Site) -> None:
    over, running = site.job(JobState.COMPLETED), site.job(JobState.RUNNING)
    leases = site.settings.weights_dir / "trees" / "key-rev" / "leases"
    leases.mkdir(parents=True)
    for job_id in (over, running, "unknown"):
        (leases / job_id).touch()
    assert site.kinds() == [], "a lease of a job that is over keeps nothing"
    assert [one.job for one in site.look(older_than=0.0).orphans] == [over]
    assert site.clear(older_than=0.0) == []
    assert sorted(lease.name for lease in leases.iterdir()) == sorted([running, "unknown"])
