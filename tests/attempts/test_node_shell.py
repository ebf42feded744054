"""Which node a shell is opened in, the errors of the others, and the line of the login."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import pytest

from prefect_bt.attempts.job_context import JobContext, open_job_context
from prefect_bt.attempts.node_shell import find_running_node, open_shell
from prefect_bt.cli.app import main
from prefect_bt.definitions import Compute, Image, Runtime, TrainingJob, TrainingProject
from prefect_bt.errors import PrefectBtError, StoreError
from prefect_bt.host.job_lock import host_id
from prefect_bt.host.terminal import ShellRequest
from prefect_bt.jobs.options import SubmitOptions
from prefect_bt.jobs.submit import write_job
from prefect_bt.ledger.ledger import Ledger
from prefect_bt.ledger.open_ledger import open_ledger
from prefect_bt.ledger.states import JobState
from prefect_bt.logs.levels import LogLevel
from prefect_bt.logs.platform_lines import JobHistory
from prefect_bt.settings import Settings
from tests.node_agent.rig import JOB, Rig, make_plan, wait_line

PROJECT = TrainingProject(
    name="p",
    job=TrainingJob(
        image=Image(base_image="x"),
        compute=Compute(node_count=2),
        runtime=Runtime(start_commands=["true"]),
    ),
)
HERE = "here"


@pytest.fixture
def ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ledger:
    monkeypatch.setenv("PREFECT_BT_STORE", str(tmp_path / "store"))
    monkeypatch.setenv("PREFECT_BT_STATE_DIR", str(tmp_path / "state"))
    return open_ledger()


def open_site(ledger: Ledger, *states: JobState, host: str = HERE) -> JobContext:
    """Return a job with these states, whose attempt this host or another one began."""
    record = write_job(ledger, PROJECT, SubmitOptions(), None)
    for state in states:
        ledger.append_event(record.id, state, attempt=0)
    if states:
        here = host_id(Settings().state_dir)
        ledger.begin_attempt(record.id, host=here if host == HERE else host)
    return open_job_context(ledger, record)


RUNNING = (JobState.DEPLOYING, JobState.RUNNING)


@pytest.mark.parametrize(
    ("states", "rank", "host", "message"),
    [
        (RUNNING, 2, HERE, "Job {job} has ranks 0 to 1, not 2."),
        (
            (*RUNNING, JobState.FAILED),
            0,
            HERE,
            "Job {job} has ended (TRAINING_JOB_FAILED), so no shell can be opened in it. See its "
            "log: prefect-bt logs --job-id {job}",
        ),
        (
            (JobState.DEPLOYING,),
            0,
            HERE,
            "No shell can be opened in job {job} now: rank 0 has not started. Follow it: "
            "prefect-bt logs --tail --job-id {job}",
        ),
        (
            RUNNING,
            1,
            "gpu2:0123456789ab",
            "Job {job} runs on gpu2. Log in there: ssh gpu2, then: prefect-bt shell --job-id {job} "
            "--rank 1",
        ),
    ],
)
def test_a_node_without_commands_of_this_machine_is_an_error_with_a_next_step(
    ledger: Ledger, states: tuple[JobState, ...], rank: int, host: str, message: str
) -> None:
    site = open_site(ledger, *states, host=host)
    with pytest.raises(PrefectBtError) as caught:
        find_running_node(site, rank)
    assert str(caught.value) == message.format(job=site.job_id)


def test_a_job_that_waits_has_no_nodes(ledger: Ledger) -> None:
    site = open_site(ledger)
    ledger.append_event(site.job_id, JobState.PENDING)
    with pytest.raises(PrefectBtError, match=r"waits, so it has no nodes yet. .*prefect-bt queue"):
        find_running_node(site, 0)


def test_another_state_folder_of_this_machine_is_named(ledger: Ledger) -> None:
    machine = host_id(Settings().state_dir).partition(":")[0]
    site = open_site(ledger, *RUNNING, host=f"{machine}:0123456789ab")
    with pytest.raises(PrefectBtError, match=r"another state folder .*Set PREFECT_BT_STATE_DIR"):
        find_running_node(site, 0)


def test_without_a_running_job_the_command_says_so(
    ledger: Ledger, capsys: pytest.CaptureFixture[str]
) -> None:
    open_site(ledger)
    assert main(["shell"]) == 1
    assert "No training job runs. See: prefect-bt view" in capsys.readouterr().err


# -- with a real node -------------------------------------------------------------------------


@pytest.fixture
def site(ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> JobContext:
    monkeypatch.setattr("prefect_bt.ledger.ledger.make_id", lambda: JOB)
    return open_site(ledger, *RUNNING)


def launch(site: JobContext, folder: Path, **changes: object) -> Rig:
    """Return the machine with one node of the job, which runs its command."""
    rig = Rig(folder / "state", site.substrate)  # pyright: ignore[reportArgumentType]
    given = {"project_id": site.record.project_id, **changes}
    wait_line(rig.launch_plan(make_plan(rig.state, ("echo ready; sleep 1000",), **given)), "ready")
    return rig


def test_a_login_is_a_line_of_the_log_and_ranks_have_their_own_nodes(
    site: JobContext,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # It would adopt, and kill, containers that other tests start on an engine below this process.
    monkeypatch.setattr("prefect_bt.substrates.local.shell._adopted_processes", nullcontext)
    rig = launch(site, tmp_path, rank=1, group_size=2)
    words = ShellRequest(("sh", "-c", "echo $BT_TRAINING_JOB_ID s3cret"), with_secrets=True)
    assert open_shell(site, 1, words, user="alice") == 0
    assert capfd.readouterr().out == f"{JOB} s3cret\n"
    lines = JobHistory(site.ledger, site.record).read_lines()
    found = [line for line in lines if "alice" in line.line.message]
    assert [(one.attempt, one.level) for one in found] == [(0, LogLevel.WARNING)]
    assert found[0].line.message.startswith("alice ran sh in rank 1 on ")
    assert found[0].line.message.endswith(", with secrets.")
    rig.close()


def test_without_a_record_of_the_login_no_command_runs(
    site: JobContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = launch(site, tmp_path)
    job = tmp_path / f"store/training_projects/{site.record.project_id}/jobs/{JOB}"
    (job / "logins").write_text("")
    with pytest.raises(StoreError):
        open_shell(site, 0, ShellRequest(("touch", str(tmp_path / "ran"))), user="alice")
    assert not (tmp_path / "ran").exists()
    rig.close()
