"""`prefect-bt push`: options over the config file, the plan, and jobs that really run."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from prefect_bt.ledger.open_ledger import open_ledger
from tests.cli.conftest import Cli, Shop
from tests.cli.test_imports import HEAVY

if TYPE_CHECKING:
    from tests.prefect_server import PrefectServer

pytest_plugins = ["tests.prefect_server"]
WATCHED = f"""
import sys
from prefect_bt.cli.entry import main
try:
    sys.exit(main())
finally:
    heavy = [name for name in {HEAVY} if name in sys.modules]
    print("Heavy imports:", heavy, file=sys.stderr)
"""
"""The command; its last line names the packages that it must not import."""


@pytest.fixture
def serving_jobs(cli: Cli, prefect_server: PrefectServer) -> None:
    """Jobs report to the server of the test run; without it each starts one for itself."""
    cli.env.update(prefect_server.api)


def test_a_dry_run_writes_nothing(cli: Cli, config):
    done = cli("push", str(config()), "--dry-run")
    assert done.code == 0, done.err
    lines = done.out.splitlines()
    assert lines[:2] == ["Dry run of job job-<n> of project tiny", "  Substrate: local"]
    assert "  Command 1: true" in lines
    each_node = (
        "1 CPU, 2 GiB: the requested amount, and more while the machine has it free; "
        "cpu_count and memory "
        "(defaults) are minimums; they are checked, not enforced: the node shares this machine"
    )
    assert f"  Each node: {each_node}" in lines
    assert "BT_GROUP_SIZE             1" in lines
    assert lines[-1] == "Nothing was written or started."
    assert not (cli.folder / "store").exists()
    assert not (cli.folder / "state").exists()


def test_push_names_the_python_of_the_commands(cli: Cli, config):
    note = "in the project's environment in "
    assert note in cli("push", str(config()), "--dry-run").out
    cli.env["PREFECT_BT_PYTHON"] = "/nonexistent/python3"
    error = cli("push", str(config()), "--dry-run").refusal()
    assert "PREFECT_BT_PYTHON is '/nonexistent/python3', which is not an executable" in error
    cli.env["PREFECT_BT_PYTHON_ENVIRONMENT"] = "false"
    assert note not in cli("push", str(config()), "--dry-run").out


def test_options_win_over_the_config(cli: Cli, config):
    done = cli(
        "push",
        str(config()),
        "--dry-run",
        *["-o", "json", "--job-name", "mine", "--node-count", "2", "--entrypoint", "sleep 1"],
        *["--team", "t", "--priority", "3", "--spot", "--accelerator", "none", "--remote", "x"],
        *["--interactive", "on_demand", "--interactive-timeout-minutes", "30", "--retries", "2"],
        *["--cpu-count", "1", "--memory", "128Mi"],
    )
    assert done.code == 0, done.err
    plan = done.json
    assert plan["job_name"] == "mine"
    assert [node["rank"] for node in plan["nodes"]] == [0, 1]
    assert plan["nodes"][0]["commands"] == ["sleep 1"]
    got = plan["nodes"][0]["resources"]
    assert (got["cpus"], got["memory"], got["limits"]) == (1, 128 * 1024**2, False)
    assert got["why"].startswith("the requested amount, and more")
    assert "start_commands" in done.err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--substrate", "moon"], "There is no substrate 'moon'."),
        (["--accelerator", "H1000"], "--accelerator 'H1000' is not valid"),
        (["--accelerator", "H100:1000"], "compute.accelerator asks for 1000"),
        (["--cpu-count", "0"], "--cpu-count 0 is not valid"),
        (["--cpu-count", "100000"], "Ask for less: --cpu-count "),
        (["--memory", "2"], "--memory '2' is not valid"),
        (["--memory", "900000Gi"], "Ask for less: --memory "),
        (["--node-count", "0"], "a job needs at least 1 node"),
        (["--entrypoint", " "], "write a shell command"),
        (["--interactive", "on_startup"], "has no interactive sessions"),
        (["--retries", "-1"], "retries is -1. Give 0 or more."),
        (["--retry-delay", "9", "--longest-retry-delay", "3"], "longest_retry_delay is 3."),
        (["--retry-jitter", "1.5"], "retry_jitter is 1.5."),
    ],
)
def test_an_impossible_job_is_refused(cli: Cli, config, arguments: list[str], told: str):
    for mode in (["--dry-run"], []):
        done = cli("push", str(config()), *arguments, *mode, "-o", "json")
        assert (done.code, done.out) == (1, ""), done.err
        assert told in done.err
        assert "Traceback" not in done.err
    assert not (cli.folder / "store" / "index" / "jobs").exists()


@pytest.mark.slow
@pytest.mark.integration
@pytest.mark.usefixtures("serving_jobs")
def test_a_job_that_completes_and_is_recreated_and_fails(cli: Cli, shop: Shop, config):
    greeting = "echo hello from rank $BT_NODE_RANK"
    again = cli.folder / "again"
    path = config(start_commands=[greeting, f"if test -e {again}; then exit 3; fi"])
    done = cli("push", str(path), "--tail", "--wait")
    assert done.code == 0, done.err
    first, *block = done.out.splitlines()[:5]
    assert first == "Training job successfully created!"
    job_id = block[0].split()[1]
    assert block[0] == f"  Job:     {job_id} (job-1) of project tiny"
    assert block[1] == f"  Machine: {os.uname().nodename}"
    assert block[2] == f"  Logs:    prefect-bt logs --job-id {job_id} --tail"
    assert "(rank-0) hello from rank 0\n" in done.out
    said, _, page = done.err.rpartition("  UI:      ")
    assert said.endswith(f"Training job {job_id} completed successfully.\n")
    assert page.startswith("http://127.0.0.1:")

    again.touch()
    done = cli("recreate", "--yes", "--wait", "-o", "json")
    assert done.code == 1
    job = done.json
    assert job["id"] != job_id
    assert job["current_status"] == "TRAINING_JOB_FAILED"
    assert [attempt["exit_code"] for attempt in job["attempts"]] == [3]
    said = f"Training job {job['id']} failed.\n{job['error_message']}\n"
    told = done.err.rpartition("  UI:      ")[0]
    assert told.endswith(f"{said}  Log: prefect-bt logs --job-id {job['id']} --first-failure\n")
    assert "Traceback" not in done.err
    for one in (job_id, job["id"]):
        seen = cli("view", "--job-id", one, "-o", "json").json
        assert seen["resources"]["summary"].startswith("1 CPU, 2 GiB: the requested amount")
        [attempt] = Path(shop.url.removeprefix("file://")).glob(f"*/*/jobs/{one}/attempts/0000")
        assert json.loads((attempt / "resources.json").read_text())["cpus"] == 1
    assert cli("logs", "--job-id", job["id"], "--grep", "^hello").out.count("\n") == 1


@pytest.mark.slow
@pytest.mark.integration
@pytest.mark.usefixtures("serving_jobs")
def test_ctrl_c_leaves_the_job_running_and_stop_ends_it(cli: Cli, shop: Shop, config):
    word = cli.folder / "word"
    goes_on = f"until test -e {word}; do sleep 0.1; done; echo it goes on"
    path = config(start_commands=["echo started", goes_on, "sleep 600"])
    words = ["push", str(path), "--tail", "--wait", "-o", "json"]
    process = cli.start(*words, program=[sys.executable, "-c", WATCHED])
    assert process.stderr
    told: list[str] = []
    while "started" not in (told[-1] if told else ""):
        told.append(process.stderr.readline())
        assert told[-1], told
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=200)
    assert process.returncode == 130, err
    assert err.splitlines()[-1] == "Heavy imports: []"
    job_id = json.loads(out)["id"]
    assert f"Stop it:          prefect-bt stop --job-id {job_id}" in err
    word.touch()
    while "it goes on" not in cli("logs", "--job-id", job_id).out:
        assert not open_ledger(shop.url).get_state(job_id).terminal
        time.sleep(0.2)
    done = cli("stop", "--yes")
    assert (done.code, done.out) == (0, f"Training job {job_id} stopped successfully.\n"), done.err
