"""`prefect-bt view`: what is shown of a store, as text and as JSON."""

# ruff: noqa: E501 (tables as they are printed)

import json
import signal
from dataclasses import replace

import pytest

from prefect_bt.definitions import Accelerator, AcceleratorSpec, Compute
from prefect_bt.definitions.compute import AvailabilityModel
from prefect_bt.ledger.open_ledger import load_definition
from prefect_bt.ledger.records import FailureClass, NodePhase, NodeStatus, Outcome, Resources
from prefect_bt.ledger.states import JobState
from prefect_bt.object_keys import job_prefix
from prefect_bt.planning.context import PlanContext
from prefect_bt.planning.planner import plan_gang
from prefect_bt.substrates.protocol import Capacity
from tests.cli.conftest import Cli, Shop

NO_JOBS = """\
No training projects yet. Start one: prefect-bt push config.py

No queued or active training jobs.
"""


def test_no_store_yet(cli: Cli):
    done = cli("view")
    assert (done.code, done.out, done.err) == (0, NO_JOBS, "")
    assert not (cli.folder / "store").exists()
    assert cli("view", "-o", "json").json == {
        "training_projects": [],
        "queued_jobs": [],
        "total_queued": 0,
        "active_jobs": [],
    }


def test_the_overview(cli: Cli, shop: Shop, ended, running):
    old = shop.job("tiny", *ended)
    big = Compute(node_count=2, accelerator=AcceleratorSpec(accelerator=Accelerator.H100, count=8))
    big.availability_model = AvailabilityModel.SPOT
    busy = shop.job("a [b] c", *running, name="run [1]", compute=big)
    done = cli("view")
    assert done.code == 0
    expected = f"""\
Training Projects
Project ID  Name     Created                  Last Modified            Latest Job ID  Latest Job Status       Checkpoint Sync  Status Page
{old.project_id}     tiny     2023-11-14 22:14:20 UTC  2023-11-14 22:19:20 UTC  {old.id}        TRAINING_JOB_COMPLETED
{busy.project_id}     a [b] c  2023-11-14 22:20:20 UTC  2023-11-14 22:24:20 UTC  {busy.id}        TRAINING_JOB_RUNNING

Active Training Jobs
Job ID   Job Name  Project  Status                Instance Type                     Capacity Type  Created By  Created                  Job Page
{busy.id}  run [1]   a [b] c  TRAINING_JOB_RUNNING  2 nodes: 8 x H100, 1 vCPU, 2 GiB  Spot           ann         2023-11-14 22:21:20 UTC
"""
    assert done.out == expected


def test_the_queue_comes_by_priority(cli: Cli, shop: Shop):
    jobs = [shop.job("tiny", priority=priority) for priority in (1, 5, None)]
    for job in jobs:
        # A job is CREATED when it is written; one that waits for capacity has no event yet.
        for info in list(shop.ledger.store.list(f"training_projects/{job.project_id}/jobs")):
            if f"{job.id}/events/" in info.key:
                shop.ledger.store.delete(info.key)
    done = cli("view")
    rows = done.out.split("Queued Training Jobs\n")[1].splitlines()
    assert rows[0].split("  ")[0] == "Job ID"
    assert [row.split()[0] for row in rows[1:4]] == [jobs[1].id, jobs[0].id, jobs[2].id]
    assert "Active Training Jobs" not in done.out


def test_one_job_in_detail(cli: Cli, shop: Shop, running):
    job = shop.job("tiny", *running)
    attempt = shop.ledger.begin_attempt(job.id)
    shop.ledger.end_attempt(
        job.id,
        Outcome(
            attempt,
            JobState.FAILED,
            message="Rank 1 failed first.",
            failure=FailureClass.USER,
            failed_rank=1,
            exit_code=3,
            started_at=shop.at,
            ended_at=shop.at + 30,
        ),
    )
    shop.ledger.append_event(job.id, JobState.FAILED, message="Rank 1 failed first: [exit 3].")
    shop.checkpoint(job, "checkpoint-1", size=10, at=1)
    shop.checkpoint(job, "checkpoint-2", size=10, at=2)
    done = cli("view", "--job-id", job.id)
    assert done.code == 0
    assert (
        done.out
        == f"""\
Training Job: {job.id}
Job Name            job-1
Job ID              {job.id}
Project ID          {job.project_id}
Project Name        tiny
Status              TRAINING_JOB_FAILED
Instance Type       1 node: 1 vCPU, 2 GiB
Priority            0
Availability Model  dedicated
Created By          ann
Created             2023-11-14 22:15:20 UTC
Last Modified       2023-11-14 22:20:20 UTC
Job Page
Substrate           local
Goodput             0.0% of 5 min 0 s trained; provisioning 3 min 0 s, lost 1 min 30 s, flushing 30 s
Store               file://{cli.folder}/store
Error Message       Rank 1 failed first: [exit 3].
Checkpoints         checkpoint-1, checkpoint-2

Attempts
Attempt  Status  Started                  Ended                    Exit Code  Failed Rank  Message
0        failed  2023-11-14 22:19:20 UTC  2023-11-14 22:19:50 UTC  3          1            Rank 1 failed first.

Phases
Phase         Attempt  Began                    Took
provisioning           2023-11-14 22:15:20 UTC  2 min 0 s
provisioning  0        2023-11-14 22:17:20 UTC  1 min 0 s
lost          0        2023-11-14 22:18:20 UTC  1 min 30 s
flushing      0        2023-11-14 22:19:50 UTC  30 s
"""
    )


def test_warnings_of_a_completed_job_are_shown_by_every_command(cli: Cli, shop: Shop, running):
    job = shop.job("tiny", *running)
    attempt = shop.ledger.begin_attempt(job.id)
    begun = NodeStatus(0, NodePhase.DONE, exit_code=0, started_at=shop.at, ended_at=shop.at + 30)
    nodes = (
        replace(begun, ended_processes=("python3 train.py", "python3 train.py", "tee log")),
        replace(begun, rank=1, exit_code=143, reason="straggler", ended_at=shop.at + 630),
    )
    shop.ledger.end_attempt(job.id, Outcome(attempt, JobState.COMPLETED, nodes=nodes))
    shop.ledger.append_event(job.id, JobState.COMPLETED)
    stopped = (
        "Rank 1 was stopped 10m after another rank had exited with 0: it had been inactive since "
        "22:19:20 UTC (no log line, checkpoint or open connection, and less than 1 % of a core). "
        "If it still had work to do, give it more time with --straggler-patience."
    )
    ended = (
        "Rank 0 ended 3 processes that still ran in the background after the last start command: "
        "`python3 train.py`, `tee log`. Start the training in the foreground (without `&` or "
        "nohup), or end the command with `wait`."
    )
    view = cli("view", "--job-id", job.id)
    fields = [line for line in view.out.splitlines() if line.startswith("Warning ")]
    assert [line.removeprefix("Warning").lstrip() for line in fields] == [stopped, ended]
    document = cli("view", "--job-id", job.id, "-o", "json").json
    assert document["warnings"] == document["attempts"][0]["warnings"] == [stopped, ended]
    followed = cli("logs", "--job-id", job.id, "--tail").err
    assert f"Training job {job.id} completed, with warnings." in followed
    assert f"Warning: {stopped}\nWarning: {ended}\n" in followed


def test_what_each_node_gets_is_shown_before_and_while_it_runs(cli: Cli, shop: Shop, running):
    pushed = Resources(4, 16 * 1024**3, why="as planned where it was pushed")
    got = Resources(26, 228 * 1024**3, 1, "H100", 114 * 1024**3, "the share of 1 of 4 GPUs")
    gpu = Compute(accelerator=AcceleratorSpec(accelerator=Accelerator.H100))
    job = shop.job("tiny", *running, compute=gpu, resources=pushed)

    def shown() -> tuple[str, str]:
        lines = cli("view", "--job-id", job.id).out.splitlines()
        rows = {line[:20].strip(): line[20:] for line in lines}
        return rows["Instance Type"], rows["Each Node"]

    line = "4 CPUs, 16 GiB: as planned where it was pushed"
    assert shown() == ("1 node: 1 x H100, 4 vCPU, 16 GiB", line)
    context = PlanContext(job.id, job.name, job.project_id, "", Capacity(1, 1 << 40, 1))
    plan = plan_gang(load_definition(job), context)
    shop.ledger.begin_attempt(job.id)
    shop.ledger.save_resources(job.id, 0, got)
    shop.ledger.save_resources(job.id, 0, plan.nodes[0].resources)  # the first one stands
    shop.ledger.begin_attempt(job.id)  # not planned yet: the one before tells
    line = "26 CPUs, 228 GiB, shared memory 114 GiB: the share of 1 of 4 GPUs"
    assert shown() == ("1 node: 1 x H100, 26 vCPU, 228 GiB", line)
    found = cli("view", "--job-id", job.id, "-o", "json").json
    assert found["resources"]["shared_memory"] == 114 * 1024**3
    assert found["resources"]["summary"] == line
    assert found["instance_type"]["id"] == "H100:1x1x26x228"


def test_a_job_of_an_older_release_shows_its_requested_resources(cli: Cli, shop: Shop, running):
    """Its record has no `resources`, and neither have its attempts."""
    job = shop.job("tiny", *running)
    key = f"{job_prefix(job.project_id, job.id)}/job.json"
    document = json.loads(shop.ledger.store.get(key))
    del document["resources"]
    shop.ledger.store.put(key, json.dumps(document).encode())
    shop.ledger.begin_attempt(job.id)
    found = cli("view", "--job-id", job.id, "-o", "json").json
    assert found["resources"] is None
    assert found["instance_type"]["name"] == "1 node: 1 vCPU, 2 GiB"
    assert "Each Node" not in cli("view", "--job-id", job.id).out


def test_a_job_as_json(cli: Cli, shop: Shop, ended):
    job = shop.job("tiny", *ended)
    found = cli("view", "--job-id", job.id, "-o", "json").json
    assert found["id"] == job.id
    assert found["current_status"] == "TRAINING_JOB_COMPLETED"
    assert found["training_project"] == {"id": job.project_id, "name": "tiny", "team_name": None}
    assert {"attempts", "checkpoints", "store", "flow_run_id", "retries", "events"} <= found.keys()


@pytest.mark.slow
@pytest.mark.parametrize("option", ["--project", "--project-id", "--project_id"])
def test_a_project_by_name_or_id(cli: Cli, shop: Shop, ended, option: str):
    jobs = [shop.job("tiny", *ended) for _ in range(2)]
    shop.job("other", *ended)
    for value in ("tiny", jobs[0].project_id):
        done = cli("view", option, value)
        assert done.out.startswith("Training Job Details\nJob ID ")
        assert [line.split()[0] for line in done.out.splitlines()[2:]] == [j.id for j in jobs]
        found = cli("view", option, value, "--output-format", "json").json
        assert [job["id"] for job in found["training_jobs"]] == [j.id for j in jobs]


def test_project_wins_over_project_id(cli: Cli, shop: Shop, ended):
    shop.job("tiny", *ended)
    shop.job("other", *ended)
    done = cli("view", "--project", "tiny", "--project-id", "other", "-o", "json")
    assert done.json["training_jobs"][0]["training_project"]["name"] == "tiny"
    assert "--project is used" in done.err


def test_an_unknown_project_lists_those_there_are(cli: Cli, shop: Shop, ended):
    job = shop.job("tiny", *ended)
    error = cli("view", "--project", "nope").refusal()
    assert error == (
        f"error: No project 'nope' in this store. Projects here: {job.project_id} (tiny).\n"
    )


def test_a_job_of_another_project(cli: Cli, shop: Shop, ended):
    job = shop.job("tiny", *ended)
    shop.job("other", *ended)
    error = cli("view", "--job-id", job.id, "--project", "other").refusal()
    assert "It belongs to project 'tiny'" in error


def test_watched_until_ctrl_c(cli: Cli, shop: Shop, running):
    job = shop.job("tiny", *running)
    process = cli.start("view", "--job-id", job.id, "--watch", "-o", "json")
    assert process.stdout
    assert json.loads(process.stdout.readline())["current_status"] == "TRAINING_JOB_RUNNING"
    shop.ledger.append_event(job.id, JobState.COMPLETED)
    assert json.loads(process.stdout.readline())["current_status"] == "TRAINING_JOB_COMPLETED"
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=200)
    assert (process.returncode, err) == (130, "")
