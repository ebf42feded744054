"""Who needs which checkpoints: holds count while their holder lives, and are all or nothing."""

import pytest

from prefect_bt import codec
from prefect_bt.attempts.job_context import JobContext, open_job_context
from prefect_bt.attempts.lifecycle import plan_attempt, release_holds
from prefect_bt.checkpoints.retention import holds
from prefect_bt.checkpoints.retention.prune import prune_job
from prefect_bt.definitions import BasetenCheckpoint, LoadCheckpointConfig
from prefect_bt.errors import CheckpointError, PlanError
from prefect_bt.ledger.ledger import Ledger
from prefect_bt.ledger.records import JobRecord, ProjectRecord
from prefect_bt.ledger.states import JobState
from prefect_bt.object_keys import deleting_key, job_index_key, project_record_key
from prefect_bt.settings import Settings
from tests.checkpoints import shelf
from tests.checkpoints.folders import JOB, PROJECT
from tests.checkpoints.shelf import commit, loaded, make_job, names
from tests.jobs.records import new_record, small_project
from tests.written_jobs import write_job

RUNNING = (JobState.DEPLOYING, JobState.RUNNING)


@pytest.fixture
def two(store, ckpts):
    commit(store, ckpts, (10, 20))
    return store


@pytest.fixture
def ledger(two):
    return Ledger(two)


def held(ledger):
    return [hold.label for hold in holds.list_active_holds(ledger, PROJECT, JOB)]


def test_a_hold_counts_while_its_job_runs(ledger, two):
    holder = make_job(ledger, *RUNNING)
    keys, gone = holds.acquire_holds(ledger, loaded(two, "checkpoint-10"), holder=holder)
    assert (len(keys), gone) == (1, ())
    assert held(ledger) == [f"job {holder}"]
    ledger.append_event(holder, JobState.FAILED)
    assert held(ledger) == []
    assert list(two.list(keys[0])) == []
    assert not [info for info in two.list("") if "/holds/" in info.key]


def test_a_hold_of_a_job_that_is_gone_does_not_count(ledger, two):
    holds.acquire_holds(ledger, loaded(two, "checkpoint-10"), holder="nosuch1")
    assert held(ledger) == []


def test_a_deployments_hold_counts_until_it_is_released(ledger, two):
    wanted = loaded(two, "checkpoint-10")
    keys, _ = holds.acquire_holds(ledger, wanted, holder="my model/v 1", kind=holds.DEPLOYMENT)
    assert held(ledger) == ["deployment my model/v 1"]
    holds.release_holds(two, keys)
    holds.release_holds(two, keys)
    assert held(ledger) == []


def test_attempts_of_one_job_hold_by_themselves(ledger, two):
    holder = make_job(ledger, *RUNNING)
    for attempt, name in enumerate(names(10, 20)):
        holds.acquire_holds(ledger, loaded(two, name), holder=holder, name=f"{holder}-{attempt}")
    assert held(ledger) == [f"job {holder}"] * 2


def test_missing_checkpoints_are_returned_and_nothing_is_held(ledger, two):
    wanted = loaded(two, "checkpoint-10", "checkpoint-20")
    prune_job(two, PROJECT, JOB, names(10), is_running=False)
    keys, gone = holds.acquire_holds(ledger, wanted, holder=make_job(ledger, *RUNNING))
    assert (keys, [one.name for one in gone]) == ((), ["checkpoint-10"])
    assert held(ledger) == []


def test_a_job_that_is_being_deleted_promises_nothing(ledger, two):
    wanted = loaded(two, "checkpoint-10")
    two.put(deleting_key(PROJECT, JOB), b"{}")
    _, gone = holds.acquire_holds(ledger, wanted, holder=make_job(ledger, *RUNNING))
    assert gone == tuple(wanted)


# -- an attempt takes them -------------------------------------------------------------------


@pytest.fixture
def site(ledger, two, tmp_path) -> JobContext:
    """A job that asks for checkpoint-20 of the one with checkpoints."""
    record = JobRecord(JOB, "job", PROJECT, "p", ledger.now(), definition={})
    two.put(job_index_key(JOB), b'{"project_id": "%s"}' % PROJECT.encode())
    project = ProjectRecord(PROJECT, "p", ledger.now())
    two.put(project_record_key(PROJECT), codec.dumps(project).encode())
    write_job(ledger, record)
    asks = BasetenCheckpoint.from_named_checkpoint(checkpoint_name="checkpoint-20", job_id=JOB)
    config = LoadCheckpointConfig(enabled=True, checkpoints=[asks])
    record = new_record(ledger, small_project("loads", load_checkpoint_config=config))
    write_job(ledger, record)
    ledger.append_event(record.id, JobState.DEPLOYING)
    settings = Settings(state_dir=tmp_path / "state", store=two.url)
    return open_job_context(ledger, record, settings=settings)


def test_an_attempt_holds_what_it_loads_until_its_job_is_over(site, ledger, two):
    plan = plan_attempt(site, 0)
    assert [one.name for one in plan.nodes[0].load] == ["checkpoint-20"]
    assert held(ledger) == [f"job {site.job_id}"]
    assert prune_job(two, PROJECT, JOB, names(20), is_running=False).pruned == ()
    # Its process dies: the job's recorded end is enough.
    ledger.append_event(site.job_id, JobState.FAILED)
    assert prune_job(two, PROJECT, JOB, names(20), is_running=False).pruned == names(20)
    release_holds(site)


def test_a_released_hold_is_gone(site, ledger):
    plan_attempt(site, 0)
    release_holds(site)
    assert held(ledger) == []


def test_a_checkpoint_that_is_gone_is_refused_with_what_there_is(site, two):
    prune_job(two, PROJECT, JOB, names(20), is_running=False)
    with pytest.raises(PlanError, match="That job has: checkpoint-10"):
        plan_attempt(site, 0)


def test_a_checkpoint_that_a_killed_prune_was_deleting_is_refused(site, two, monkeypatch):
    with pytest.raises(shelf.Killed):
        store = shelf.Interrupted(two._root, "/withdrawn/", shelf.kill)
        prune_job(store, PROJECT, JOB, names(20), is_running=False)
    monkeypatch.setattr("prefect_bt.attempts.lifecycle.HOLD_RETRY_DELAYS", (0.0, 0.01))
    with pytest.raises((CheckpointError, PlanError)):
        plan_attempt(site, 0)
    assert site.holds == []
