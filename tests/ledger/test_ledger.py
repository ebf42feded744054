"""The job's record: ids, names, lifecycle and attempts, also with many writers at once."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from prefect_bt.errors import NotFoundError, StateError, StoreError
from prefect_bt.ledger.job_objects import load_pin
from prefect_bt.ledger.ledger import Ledger
from prefect_bt.ledger.records import JobRecord, Outcome
from prefect_bt.ledger.states import JobState
from prefect_bt.object_keys import job_index_key
from prefect_bt.object_store import open_store
from tests.jobs.records import new_record
from tests.written_jobs import write_job


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(open_store(str(tmp_path / "store")))


def make_job(ledger: Ledger, project: str = "my / project") -> JobRecord:
    record = new_record(ledger, project)
    write_job(ledger, record)
    return record


def test_a_project_is_found_by_id_and_by_any_name(ledger: Ledger) -> None:
    for name in ("plain", "owner/model style", "..", "ünï cödé %2F"):
        made = ledger.projects.ensure(name)
        assert ledger.projects.ensure(name) == made
        assert ledger.projects.get(name) == ledger.projects.get(made.id) == made


def test_an_unknown_project_lists_the_known(ledger: Ledger) -> None:
    made = ledger.projects.ensure("known")
    with pytest.raises(NotFoundError, match=f"{made.id} \\(known\\)"):
        ledger.projects.get("unknown")


@pytest.mark.parametrize("job_id", ["nojob00", "../../x", "", "a/b"])
def test_an_unknown_job_is_one_sentence(ledger: Ledger, job_id: str) -> None:
    with pytest.raises(NotFoundError, match="No job"):
        ledger.get_job(job_id)


@pytest.mark.parametrize("damaged", [b"[]", b"null", b"7", b'"text"', b"{"])
def test_a_damaged_pointer_is_an_error_that_callers_expect(ledger: Ledger, damaged: bytes) -> None:
    """Garbage collection and recovery skip a job for these errors, and go on with the others."""
    ledger.store.put(job_index_key("abc1234"), damaged)
    with pytest.raises((TypeError, ValueError)):
        ledger.get_job("abc1234")


def test_many_pushes_share_no_project_id_and_no_name(ledger: Ledger) -> None:
    with ThreadPoolExecutor(8) as pool:
        jobs = list(pool.map(lambda _: make_job(ledger), range(24)))
    assert len({job.project_id for job in jobs}) == 1
    assert {job.name for job in jobs} == {f"job-{n}" for n in range(1, 25)}
    assert len({job.id for job in jobs}) == 24
    assert {job.id for job in ledger.list_jobs()} == {job.id for job in jobs}
    assert len(ledger.projects.list()) == 1


def test_lifecycle(ledger: Ledger) -> None:
    job = make_job(ledger)
    states = [JobState.DEPLOYING, JobState.RUNNING, JobState.COMPLETED]
    for state in states:
        ledger.append_event(job.id, state)
    assert [event.state for event in ledger.list_events(job.id)] == [JobState.CREATED, *states]
    with pytest.raises(StateError, match="recreate"):
        ledger.append_event(job.id, JobState.RUNNING)


def test_only_one_of_many_ends_a_job(ledger: Ledger) -> None:
    job = make_job(ledger)
    ledger.append_event(job.id, JobState.DEPLOYING)

    def end(state: JobState) -> bool:
        try:
            ledger.append_event(job.id, state)
        except StateError:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        won = list(pool.map(end, [JobState.STOPPED, JobState.FAILED] * 8))
    assert ledger.get_state(job.id).terminal
    assert len(ledger.list_events(job.id)) == 3
    assert any(won)


def test_attempts_count_up_and_never_back(ledger: Ledger) -> None:
    job = make_job(ledger)
    with ThreadPoolExecutor(6) as pool:
        numbers = list(pool.map(lambda _: ledger.begin_attempt(job.id), range(12)))
    assert sorted(numbers) == list(range(12))
    ledger.end_attempt(job.id, Outcome(0, JobState.FAILED, "first"))
    ledger.end_attempt(job.id, Outcome(0, JobState.COMPLETED, "second"))
    assert [outcome.message for outcome in ledger.list_outcomes(job.id)] == ["first"]


def test_events_and_attempts_are_read_once(ledger: Ledger, tmp_path: Path) -> None:
    """Who follows a job looks every second, over weeks."""
    job = make_job(ledger)
    ledger.append_event(job.id, JobState.CREATED)
    ledger.begin_attempt(job.id)
    seen = ledger.list_events(job.id), ledger.list_attempts(job.id)
    for file in [*tmp_path.glob("**/events/*.json"), *tmp_path.glob("**/attempt.json")]:
        file.write_text("never asked for again")
    assert (ledger.list_events(job.id), ledger.list_attempts(job.id)) == seen
    ledger.append_event(job.id, JobState.DEPLOYING)
    assert ledger.get_state(job.id) is JobState.DEPLOYING


def test_a_stop_is_asked_once(ledger: Ledger) -> None:
    job = make_job(ledger)
    assert ledger.controls.find_stop_request(job.id) is None
    assert ledger.controls.request_stop(job.id, by="a user")
    assert not ledger.controls.request_stop(job.id, by="another")
    request = ledger.controls.find_stop_request(job.id)
    assert request is not None
    assert request.by == "a user"
    ledger.controls.delete_stop_request(job.id)
    assert ledger.controls.find_stop_request(job.id) is None


def test_a_run_is_bound_to_one_job(ledger: Ledger) -> None:
    one, two = make_job(ledger), make_job(ledger)
    assert ledger.runs.bind("run-1", one.id, url="http://ui/1") == one.id
    assert ledger.runs.bind("run-1", two.id) == one.id
    assert ledger.runs.find_job("run-1") == one.id
    (run,) = ledger.runs.list(one.id)
    assert (run.flow_run_id, run.url) == ("run-1", "http://ui/1")


def test_an_id_reserved_without_a_job_is_no_job(ledger: Ledger) -> None:
    owner = ledger.projects.ensure("p")
    reserved = ledger.reserve_job_id(owner.id)
    assert ledger.list_jobs() == []
    ledger.release_job_id(reserved)
    with pytest.raises(NotFoundError):
        ledger.get_state(reserved)


def test_the_first_revision_of_a_source_is_the_jobs(ledger: Ledger) -> None:
    job = make_job(ledger)
    assert ledger.pins.read_weights(job.id) == {}
    first = ledger.pins.pin_weights(job.id, "k1", "rev-a", files=3, size=100)
    assert ledger.pins.pin_weights(job.id, "k1", "rev-b", files=4, size=200) == first
    ledger.pins.pin_weights(job.id, "k2", "rev-c")
    pins = ledger.pins.read_weights(job.id)
    assert pins["k1"] == first
    assert (first.revision, first.files, first.bytes) == ("rev-a", 3, 100)
    assert {key: pin.revision for key, pin in pins.items()} == {"k1": "rev-a", "k2": "rev-c"}
    assert ledger.pins.read_weights(make_job(ledger).id) == {}


@pytest.mark.parametrize("revision", ["../../../etc", "/etc", "", ".", "..", "a\n", "a\0"])
def test_a_forged_revision_of_a_source_is_no_part_of_a_path(ledger: Ledger, revision: str) -> None:
    job = make_job(ledger)
    ledger.pins.pin_weights(job.id, "k1", revision)
    for read in (ledger.pins.read_weights, lambda one: ledger.pins.pin_weights(one, "k1", "rev-b")):
        with pytest.raises(StoreError, match=r"is not a revision\. It is corrupt or forged"):
            read(job.id)


@pytest.mark.parametrize("data", [b"{", b"null", b"[]", b"\xff", b'{"a": 7}', b"[" * 200_000])
def test_a_damaged_pin_is_one_error(data: bytes) -> None:
    with pytest.raises(StoreError, match=r"pins/k1\.json (is not a record|pins weights)"):
        load_pin(data, key="pins/k1.json")
