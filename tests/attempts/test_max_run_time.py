"""The maximum run time of a job: what counts, who stops it, how it ends, and how it goes on."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from prefect_bt import codec
from prefect_bt.attempts.gang_policy import Gang, launch_gang
from prefect_bt.attempts.job_context import open_job_context
from prefect_bt.attempts.lifecycle import adopt_gang, launch_failure_outcome
from prefect_bt.attempts.max_run_time import (
    RunTimeLimit,
    check_run_time,
    find_run_time_limit,
    sum_run_time,
)
from prefect_bt.attempts.retry_policy import decide_retry
from prefect_bt.cli.app import main
from prefect_bt.errors import DefinitionError, MaxRunTimeError
from prefect_bt.jobs import resubmit
from prefect_bt.jobs.job_json import job_document
from prefect_bt.jobs.options import SubmitOptions
from prefect_bt.jobs.submit import write_job
from prefect_bt.ledger.ledger import Ledger
from prefect_bt.ledger.open_ledger import open_ledger
from prefect_bt.ledger.records import (
    Cause,
    FailureClass,
    JobRecord,
    NodePhase,
    NodeStatus,
    Outcome,
    RetryBudget,
    ServingRef,
    StopReason,
)
from prefect_bt.ledger.states import JobState
from prefect_bt.settings import Settings
from prefect_bt.text.durations import format_duration, parse_duration
from tests.attempts.simulated import Script, Simulated, pace_of, plan
from tests.jobs.records import small_project
from tests.node_agent.rig import JOB, Rig, make_plan, wait_line, with_checkpoints


def watch(gang: Gang) -> Outcome:
    gang.watch(stop_requested=lambda: False, on_change=lambda _: None)
    gang.wait_for_flush()
    return gang.make_outcome()


def launched(*scripts: Script, limit: float, used: float = 0.0) -> tuple[Simulated, Gang]:
    substrate = Simulated(list(scripts))
    pace = pace_of(substrate.clock, 0.5)
    gang = launch_gang(substrate, plan(len(scripts)), secrets={}, timing=pace)
    gang.run_time_limit = RunTimeLimit("abc1234", limit, used)
    return substrate, gang


FOR_EVER = Script(seconds=None)


def test_a_gang_is_stopped_politely_once_all_attempts_together_are_at_the_limit() -> None:
    stubborn = replace(FOR_EVER, ignores_sigterm=True)
    substrate, gang = launched(FOR_EVER, stubborn, limit=3600.0, used=3500.0)
    outcome = watch(gang)
    assert substrate.nodes[0].stops == [(StopReason.MAX_RUN_TIME, False)]
    assert substrate.nodes[1].stops == [(StopReason.MAX_RUN_TIME, force) for force in (False, True)]
    assert outcome.nodes[0].ended_at == 1100.0
    assert (outcome.state, outcome.cause) == (JobState.FAILED, Cause.MAX_RUN_TIME)
    assert (outcome.failure, outcome.failed_rank) == (FailureClass.USER, None)
    assert outcome.message == (
        "The commands have run for 1h, the job's maximum run time. They were stopped. "
        "Their checkpoints are committed. Continue from the last committed checkpoint with a "
        "higher limit: "
        "prefect-bt retry --job-id abc1234 --max-run-time 2h"
    )
    decision = decide_retry([outcome], RetryBudget(user=10), checkpointing=True)
    assert (decision.retry, decision.reason) == (False, "its run time is used up")


def test_other_ends_stay_what_they_are() -> None:
    assert watch(launched(Script(5), Script(9), limit=10)[1]).state is JobState.COMPLETED
    failed = watch(launched(Script(5, code=3), FOR_EVER, limit=10)[1])
    assert (failed.failed_rank, failed.cause) == (0, Cause.COMMAND_FAILED)
    substrate, gang = launched(FOR_EVER, limit=10)
    gang.watch(stop_requested=lambda: True, on_change=lambda _: None)
    assert gang.make_outcome().state is JobState.STOPPED
    # A step of the wall clock is no run time.
    substrate, gang = launched(Script(50), limit=60)
    clock = substrate.clock
    jumps = lambda: clock.now + (7200.0 if clock.now > 1020 else 0.0)  # noqa: E731
    gang.timing = replace(gang.timing, wall_clock=jumps)
    assert watch(gang).state is JobState.COMPLETED


def test_an_adopted_gang_has_the_remaining_time() -> None:
    substrate, first = launched(FOR_EVER, limit=100.0)
    first.statuses = [handle.observe() for handle in first.handles]
    substrate.clock.sleep(60)  # nothing watches it
    limit = RunTimeLimit("abc1234", 100.0)
    second = Gang(0, first.handles, timing=first.timing, run_time_limit=limit)
    watch(second)
    assert second.statuses[0].ended_at == 1100.0
    # The process that stopped it is gone, too: the nodes themselves say why they ended.
    third = Gang(0, first.handles, timing=first.timing, run_time_limit=limit)
    assert watch(third).cause is Cause.MAX_RUN_TIME
    unknown = Gang(0, first.handles, timing=first.timing)
    assert "have reached the maximum run time" in watch(unknown).message


def test_only_the_time_of_commands_counts() -> None:
    done = NodeStatus(0, NodePhase.DONE, started_at=100.0, ended_at=160.0)
    later = NodeStatus(1, NodePhase.DONE, started_at=110.0, ended_at=180.0, active_at=175.0)
    ran = Outcome(0, JobState.FAILED, nodes=(done, later), started_at=0.0, ended_at=900.0)
    never = Outcome(1, JobState.DEPLOY_FAILED, nodes=(NodeStatus(0, NodePhase.DONE),))
    gone = Outcome(2, JobState.DEPLOY_FAILED, started_at=0.0, ended_at=900.0)
    noticed_days_later = replace(done, phase=NodePhase.LOST, ended_at=300_000.0, active_at=120.0)
    lost = Outcome(3, JobState.FAILED, nodes=(noticed_days_later,))
    assert [sum_run_time([one]) for one in (ran, never, gone, lost)] == [80.0, 0.0, 0.0, 20.0]
    assert sum_run_time([ran, never, gone, lost]) == 100.0


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("12h", 43200), ("90m", 5400), ("3600", 3600), (7, 7), ("1h30m", 5400), ("2D", 172800)],
)
def test_spans_of_time(text: str, seconds: float) -> None:
    assert parse_duration(text, field="x") == seconds
    assert parse_duration(format_duration(seconds), field="x") == seconds


@pytest.mark.parametrize("text", ["", "0", "-1", "h", "1y", "nan", "inf", "1h3x", "-1h"])
def test_an_invalid_span_of_time_is_refused(text: str) -> None:
    with pytest.raises(DefinitionError, match="Write for example 12h, 90m"):
        parse_duration(text, field="max_run_time")


# -- in a job's record ------------------------------------------------------------------------


PROJECT = small_project("limited")


@pytest.fixture
def ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ledger:
    monkeypatch.setenv("PREFECT_BT_STORE", str(tmp_path / "store"))
    monkeypatch.setenv("PREFECT_BT_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("COLUMNS", "200")
    return open_ledger()


def ended(ledger: Ledger, record: JobRecord, *, ran: float, cause: Cause) -> None:
    """An attempt of the job that has ended."""
    attempt = ledger.begin_attempt(record.id)
    node = NodeStatus(0, NodePhase.DONE, started_at=50.0, ended_at=50.0 + ran)
    failed = Outcome(attempt, JobState.FAILED, nodes=(node,), failure=FailureClass.USER)
    ledger.end_attempt(record.id, replace(failed, cause=cause))


def test_options_settings_and_repeats(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = write_job(ledger, PROJECT, SubmitOptions(), None)
    assert plain.max_run_time is None
    assert find_run_time_limit(ledger, plain) is None
    old = codec.encode(plain)
    del old["max_run_time"]
    assert codec.loads(JobRecord, json.dumps(old)) == plain
    chosen = write_job(ledger, PROJECT, SubmitOptions(max_run_time="12h"), None)
    assert ledger.get_job(chosen.id).max_run_time == 43200.0
    monkeypatch.setenv("PREFECT_BT_MAX_RUN_TIME", "90m")
    again = write_job(ledger, PROJECT, SubmitOptions(), None, old=chosen)
    usual = write_job(ledger, PROJECT, SubmitOptions(), None)
    server = write_job(ledger, PROJECT, SubmitOptions(serving=ServingRef("m", 1)), None)
    assert (again.max_run_time, usual.max_run_time, server.max_run_time) == (43200.0, 5400.0, None)
    monkeypatch.setenv("PREFECT_BT_MAX_RUN_TIME", "soon")
    with pytest.raises(DefinitionError, match="PREFECT_BT_MAX_RUN_TIME is 'soon'"):
        Settings()


def test_a_retry_needs_a_higher_limit(ledger: Ledger, capsys: pytest.CaptureFixture[str]) -> None:
    record = write_job(ledger, PROJECT, SubmitOptions(max_run_time=100), None)
    ledger.append_event(record.id, JobState.DEPLOYING, attempt=0)
    ended(ledger, record, ran=60.0, cause=Cause.KILLED)
    check_run_time(ledger, record)
    left = find_run_time_limit(ledger, record)
    assert left is not None and (left.limit, left.used) == (100.0, 60.0)
    ended(ledger, record, ran=45.0, cause=Cause.MAX_RUN_TIME)
    ledger.append_event(record.id, JobState.FAILED, attempt=1)
    for limit in (None, 105.0):
        with pytest.raises(MaxRunTimeError) as caught:
            resubmit.retry(record.id, max_run_time=limit)
        assert "have run for 1m45s" in str(caught.value)
        assert f"prefect-bt retry --job-id {record.id} --max-run-time 3m30s" in str(caught.value)
    # A retry of the run in Prefect's UI reaches the attempt itself: it launches nothing.
    outcome = launch_failure_outcome(2, caught.value)
    assert (outcome.state, outcome.cause) == (JobState.FAILED, Cause.MAX_RUN_TIME)
    assert ledger.get_state(record.id) is JobState.FAILED

    check_run_time(ledger, record, limit=200.0)
    ledger.controls.set_max_run_time(record.id, 200.0)
    check_run_time(ledger, record)
    document = job_document(ledger, record)
    assert (document["max_run_time"], document["run_time"]) == (200.0, 105.0)
    assert main(["view", "--job-id", record.id]) == 0
    assert "3m20s; ended attempts used 1m45s" in capsys.readouterr().out


@pytest.mark.slow
def test_push_shows_it_and_what_has_no_effect(
    ledger: Ledger, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "work" / "config.py"
    config.parent.mkdir()
    config.write_text(
        "from truss_train import definitions as d\n"
        "from truss.base import truss_config as c\n"
        "job = d.TrainingJob(image=d.Image(base_image='x'), compute=d.Compute(memory='64Mi'),\n"
        "    runtime=d.Runtime(start_commands=['true']))\n"
        "project = d.TrainingProject(name='limited', job=job)\n"
    )
    words = ["push", str(config), "--dry-run", "--max-run-time", "90m", "--priority", "5"]
    assert main([*words, "-o", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["max_run_time"] == 5400.0
    assert not [note for note in document["notes"] if "priority" in note]
    assert main([*words, "--spot", "--interactive-timeout-minutes", "5", "--job-name", "a/b"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "Run time: at most 1h30m" in shown
    assert "note: interactive_session has no effect yet" in shown
    assert "note: BT_TRAINING_JOB_NAME is 'a-b'" in shown
    assert main([*words[:4], "soon"]) == 1
    assert "max_run_time is 'soon'" in capsys.readouterr().err


# -- with real nodes --------------------------------------------------------------------------


@pytest.mark.slow
def test_a_real_node_saves_when_its_time_is_up_also_for_the_process_that_adopts_it(
    ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("prefect_bt.ledger.ledger.make_id", lambda: JOB)
    record = write_job(ledger, PROJECT, SubmitOptions(max_run_time=0.001), None)
    assert record.id == JOB
    site = open_job_context(ledger, record)
    rig = Rig(tmp_path / "state", site.substrate)  # pyright: ignore[reportArgumentType]
    command = (
        "save() { mkdir $BT_CHECKPOINT_DIR/last; echo 1 > $BT_CHECKPOINT_DIR/last/x; exit 0; }; "
        "trap save TERM; echo ready; while :; do sleep 0.05; done"
    )
    ledger.begin_attempt(JOB)
    plan = with_checkpoints(make_plan(tmp_path / "state", (command,), project_id=record.project_id))
    node = rig.launch_plan(plan)
    wait_line(node, "ready")
    gang = adopt_gang(site)
    assert gang is not None
    outcome = watch(gang)
    assert (outcome.cause, outcome.nodes[0].exit_code) == (Cause.MAX_RUN_TIME, 0)
    assert [one["checkpoint_id"] for one in job_document(ledger, record)["checkpoints"]] == ["last"]
    rig.close()
