"""Neither the environment of other processes nor pipes in place of files mislead or stop `gc`."""

import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from prefect_bt.gc.findings import Findings, OrphanKind, remove_all
from prefect_bt.host.job_lock import lock_job
from prefect_bt.host.processes import FLOW_VARIABLE, MARK_VARIABLE
from prefect_bt.host.state_folder import JobFolder, make_mark
from prefect_bt.ledger.ledger import Ledger
from prefect_bt.ledger.open_ledger import open_ledger
from prefect_bt.ledger.states import JobState
from tests.gc.conftest import Site, Start, environ_of, flow_of
from tests.node_agent.rig import is_alive, wait_over, wait_until

NOBODY = 65534
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root runs processes of others")


def as_over(site: Site, job_id: str) -> Path:
    """A copy of our store in which somebody wrote that the job is over."""
    forged = site.root / "forged"
    shutil.copytree(site.root / "store", forged)
    clock: Callable[[], float] = lambda: time.time() - 600  # noqa: E731
    Ledger(open_ledger(str(forged)).store, clock=clock).append_event(job_id, JobState.COMPLETED)
    return forged


def finish(look: Callable[[], Findings]) -> Findings:
    """Return the findings; fail the test if a pipe stops the look."""
    found: list[Findings] = []
    thread = threading.Thread(target=lambda: found.append(look()), daemon=True)
    thread.start()
    thread.join(timeout=60)
    assert found, "gc waits for somebody to write into a pipe"
    return found[0]


def pipe_at(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    os.mkfifo(path)


def test_a_process_cannot_name_the_store_that_judges_its_job(site: Site, start: Start) -> None:
    job_id = site.job(JobState.RUNNING)
    forged = as_over(site, job_id)
    start(**flow_of(site, job_id, PREFECT_BT_STORE=str(forged)))
    running = start(**flow_of(site, job_id))
    assert site.look() == Findings(())
    assert site.clear() == []
    assert running.poll() is None


def test_a_note_of_another_store_hides_no_job_of_ours(site: Site, start: Start) -> None:
    job_id = site.job(JobState.RUNNING)
    site.note_store(job_id, str(as_over(site, job_id)))
    start(**flow_of(site, job_id))
    assert site.look() == Findings(())


@pytest.mark.parametrize("ours_has_jobs", [True, False])
def test_a_noted_store_judges_its_job(site: Site, start: Start, ours_has_jobs: bool) -> None:
    if ours_has_jobs:
        site.job(JobState.RUNNING)
    other = site.root / "other"
    job_id = site.long_over(other)
    site.note_store(job_id, str(other))
    left = start(**flow_of(site, job_id, PREFECT_BT_STORE=str(other)))
    assert site.kinds() == [OrphanKind.FOLDER, OrphanKind.PROCESS]
    assert site.clear() == []
    assert not is_alive(left.pid) or left.poll() is not None


def test_processes_of_a_job_unknown_to_our_stores_are_kept(site: Site, start: Start) -> None:
    site.job(JobState.RUNNING)
    other = site.root / "other"
    job_id = site.long_over(other)
    start(**flow_of(site, job_id, PREFECT_BT_STORE=str(other)))
    assert site.kinds() == []


@needs_root
@pytest.mark.parametrize("variable", [FLOW_VARIABLE, MARK_VARIABLE])
def test_another_users_process_is_never_ours(site: Site, start: Start, variable: str) -> None:
    job_id = site.long_over()
    mark = make_mark(site.state, job_id=job_id, attempt=0, rank=0)
    value = job_id if variable == FLOW_VARIABLE else mark
    variables = {**flow_of(site, job_id), variable: value}
    if variable == MARK_VARIABLE:
        del variables[FLOW_VARIABLE]
    start(user=NOBODY, **variables)
    assert site.kinds() == []
    start(**variables)
    assert site.kinds() == [OrphanKind.PROCESS], "of our own user it is"


@needs_root
def test_a_process_of_a_container_is_never_ours(site: Site, start: Start) -> None:
    """Another pid namespace is what a container has."""
    unshare = ["unshare", "--pid", "--fork", "--kill-child"]
    if subprocess.run([*unshare, "true"], check=False, capture_output=True).returncode:
        pytest.skip("no pid namespace can be made here")
    variables = {
        **flow_of(site, site.long_over()),
        MARK_VARIABLE: make_mark(site.state, job_id="gone", attempt=0, rank=0),
    }
    told = [f"{name}={value}" for name, value in variables.items()]
    # The variables are set within, so that unshare itself has none of them.
    process = start(*unshare, "env", *told, "sleep", "300", OUTSIDE="1")
    below = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    wait_until(lambda: b"gone." in b"".join(environ_of(int(p)) for p in below.read_text().split()))
    assert site.kinds() == []


def test_a_process_that_names_several_jobs_is_kept(site: Site, start: Start) -> None:
    """Such as the supervisor of a running job that a shell of an ended one started."""
    over, running = site.long_over(), site.job(JobState.RUNNING)
    command = (sys.executable, "-m", "prefect_bt.supervisor.process", running)
    path = str(fake_keeper(site.root))
    process = start(*command, **flow_of(site, over, PYTHONPATH=path, PYTHONSAFEPATH="1"))
    assert site.kinds() == []
    assert process.poll() is None


def fake_keeper(root: Path) -> Path:
    """Return a PYTHONPATH; PYTHONSAFEPATH keeps the tests' own folder from coming before it."""
    module = root / "fake" / "prefect_bt" / "supervisor" / "process.py"
    module.parent.mkdir(parents=True)
    for folder in (module.parent, module.parent.parent):
        (folder / "__init__.py").touch()
    module.write_text("import time; time.sleep(300)")
    return root / "fake"


def test_processes_of_an_owned_job_are_kept(site: Site, start: Start) -> None:
    job_id = site.job(JobState.RUNNING)
    start(**{MARK_VARIABLE: make_mark(site.state, job_id=job_id, attempt=0, rank=0)})
    with lock_job(site.state, job_id):
        assert site.kinds() == []
    (found,) = site.look().orphans
    assert found.kind is OrphanKind.PROCESS
    with lock_job(site.state, job_id):
        (tried,) = remove_all(Findings((found,)))
    assert "runs again" in tried.error


def test_a_job_that_is_retried_after_the_look_keeps_its_flow(site: Site, start: Start) -> None:
    past = Ledger(site.ledger.store, clock=lambda: time.time() - 600)
    job_id = site.job(JobState.FAILED, ledger=past)
    flow = start(**flow_of(site, job_id))
    (found,) = site.look().orphans
    assert found.kind is OrphanKind.PROCESS
    site.ledger.append_event(job_id, JobState.CREATED)
    (tried,) = remove_all(Findings((found,)))
    assert "runs again" in tried.error
    assert flow.poll() is None


@needs_root
def test_roots_own_strays_in_another_users_state_folder_are_found(site: Site, start: Start) -> None:
    os.chown(site.state, NOBODY, NOBODY)
    start(**flow_of(site, site.long_over()))
    assert site.kinds() == [OrphanKind.PROCESS]


@pytest.mark.parametrize("place", ["loop", "x" * 3000, "nowhere\udce9"])
def test_an_unreadable_state_folder_hides_nothing(site: Site, start: Start, place: str) -> None:
    (site.root / "loop").symlink_to("loop")
    job_id = site.long_over()
    start(**flow_of(site, job_id, PREFECT_BT_STATE_DIR=str(site.root / place)))
    mine = start(**flow_of(site, job_id))
    found = site.look()
    (orphan,) = found.orphans
    assert (orphan.kind, orphan.location) == (OrphanKind.PROCESS, f"pid {mine.pid}")
    assert found.notes == ()


@pytest.mark.parametrize("mark", ["{long}.0.0.{place}", "a.².0.{place}", "a.{many}.0.{place}"])
def test_a_mark_that_is_none_hides_nothing(site: Site, start: Start, mark: str) -> None:
    mine = make_mark(site.state, job_id="abc1234", attempt=0, rank=3)
    place = mine.rpartition(".")[2]
    start(**{MARK_VARIABLE: mark.format(long="a" * 300, many="1" * 5000, place=place)})
    start(**{MARK_VARIABLE: mine})
    found = site.look()
    assert [one.job for one in found.orphans] == ["abc1234"]
    assert found.notes == ()


@pytest.mark.parametrize("record", ["index", "job.json", "events/000000.json", "jobs"])
def test_a_pipe_in_a_store_of_a_process_is_unread(site: Site, start: Start, record: str) -> None:
    job_id = site.job(JobState.RUNNING)
    forged = as_over(site, job_id)
    pipe_at(record_of(forged, job_id, record))
    start(**flow_of(site, job_id, PREFECT_BT_STORE=str(forged)))
    assert finish(site.look) == Findings(())


@pytest.mark.parametrize("record", ["index", "job.json", "events/000000.json"])
def test_a_pipe_in_our_own_store_decides_nothing(site: Site, record: str) -> None:
    site.job(JobState.RUNNING)
    job_id = site.job(JobState.COMPLETED)
    wait_over(site.node(job_id))
    path = record_of(site.root / "store", job_id, record)
    pipe_at(path)
    found = finish(site.look)
    assert found.orphans == ()
    assert any("Not a regular file" in note and str(path) in note for note in found.notes)


def record_of(root: Path, job_id: str, record: str) -> Path:
    if record == "index":
        return root / "index" / "jobs" / job_id
    if record == "jobs":
        shutil.rmtree(root / "index" / "jobs")
        return root / "index" / "jobs"
    return next(root.glob(f"training_projects/*/jobs/{job_id}")) / record


NODE_FILES = ("plan.json", "node.json", "status.json", "upload.json", "stop.json", "lock")


@pytest.mark.parametrize(
    "name",
    [
        *("store", "owner.lock"),
        *(f"attempt-0/rank-0/{name}" for name in (*NODE_FILES, "agent.log")),
    ],
)
def test_a_pipe_in_a_jobs_folder_stops_nothing(site: Site, name: str) -> None:
    job_id = site.job(JobState.COMPLETED)
    wait_over(site.node(job_id))
    pipe_at(JobFolder(site.state, job_id).path / name)
    found = finish(site.look)
    assert OrphanKind.NODE in [one.kind for one in found.orphans]
    tried = finish(lambda: Findings(tuple(remove_all(found))))
    assert [one.error for one in tried.orphans] == [""] * len(found.orphans)
    assert not JobFolder(site.state, job_id).path.exists()
