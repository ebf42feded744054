"""A Prefect server that is wrong, or none at all, keeps no job from its place in the queue."""

import socket
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from prefect_bt.definitions import load_training_project
from prefect_bt.jobs.options import SubmitOptions
from prefect_bt.jobs.starting import cancelled_runs, start_queued
from prefect_bt.jobs.starting.cancelled_runs import CancelledRuns
from prefect_bt.jobs.starting.poller import QueuePoller
from prefect_bt.jobs.starting.queued_runs import WaitReasons
from prefect_bt.jobs.submit import submit
from prefect_bt.ledger.open_ledger import open_ledger
from prefect_bt.ledger.states import JobState
from prefect_bt.queue import machine_queue
from prefect_bt.queue.overview import change_limit

CONFIG = """
from truss_train import definitions as d

project = d.TrainingProject(
    name="queued",
    job=d.TrainingJob(
        image=d.Image(base_image="none"),
        compute=d.Compute(memory="64Mi", accelerator="H100:1"),
        runtime=d.Runtime(start_commands=["true"]),
    ),
)
"""
SMI = "#!/bin/sh\necho '0, NVIDIA H100 80GB HBM3'\n"
WRONG = {
    "no URL": "http://prefect.example:port/api",
    "no server": "http://127.0.0.1:9/api",
    "no proxy": "http://127.0.0.1:9/api",
    "no certificates": "https://127.0.0.1:9/api",
}


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A job for a GPU, of a type of which jobs may use none."""
    tools, folder = tmp_path / "bin", tmp_path / "work"
    tools.mkdir()
    folder.mkdir()
    (tools / "nvidia-smi").write_text(SMI)
    (tools / "nvidia-smi").chmod(0o755)
    (folder / "config.py").write_text(CONFIG)
    monkeypatch.setenv("PATH", str(tools), prepend=":")
    monkeypatch.setenv("PREFECT_BT_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("PREFECT_BT_STORE", str(tmp_path / "store"))
    change_limit(open_ledger().store, "H100", None, maximum=0)
    return folder / "config.py"


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_server(wrong: str, config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFECT_API_URL", WRONG[wrong])
    if wrong == "no proxy":
        monkeypatch.setenv("HTTP_PROXY", "socks5://127.0.0.1:9")
    if wrong == "no certificates":
        monkeypatch.setenv("PREFECT_API_SSL_CERT_FILE", str(config.with_name("missing.pem")))
    project = load_training_project(config)
    job = submit(project, source_dir=config.parent, options=SubmitOptions(substrate="local"))
    ledger = open_ledger()
    CancelledRuns(ledger).stop_jobs()
    WaitReasons(ledger).update()
    assert ledger.get_state(job["id"]) is JobState.PENDING
    assert ledger.runs.list(job["id"]) == []


def test_a_job_starts_while_a_silent_server_is_asked(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project, ledger = load_training_project(config), open_ledger()
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    monkeypatch.setenv("PREFECT_HOME", str(config.parent))
    monkeypatch.setattr(machine_queue, "IDLE_SECONDS", 0.0)
    job = submit(project, source_dir=config.parent, options=SubmitOptions(substrate="local"))
    started = list[str]()
    monkeypatch.setattr(
        start_queued, "hand_over_job", lambda ledger, record, lock: started.append(record.id)
    )
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        monkeypatch.setenv("PREFECT_API_URL", f"http://127.0.0.1:{port}/api")
        poller = QueuePoller()
        connection, _ = server.accept()
        connection.setblocking(False)
        change_limit(ledger.store, "H100", None, maximum=1)
        assert poller.poll() == [f"job {job['id']}: started"]
        assert started == [job["id"]]
        until(lambda: connection.recv(65536))
        with pytest.raises(BlockingIOError):  # the thread waits for the answer still
            connection.recv(1)
        connection.close()


def until(read: Callable[[], bytes]) -> None:
    """Wait until there is something to read."""
    while True:
        with suppress(BlockingIOError):
            read()
            return
        time.sleep(0.01)


def test_a_mass_cancellation_is_read_page_by_page(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prefect's server returns 200 runs at most."""
    runs = [{"id": f"run-{number}"} for number in range(2 * 200 + 1)]

    class Api:
        def post(self, path: str, body: dict[str, Any]) -> list[dict[str, str]]:
            assert (path, body["limit"]) == ("/flow_runs/filter", 200)
            return runs[body["offset"] : body["offset"] + body["limit"]]

    project, ledger = load_training_project(config), open_ledger()
    job = submit(project, source_dir=config.parent, options=SubmitOptions(substrate="local"))
    ledger.runs.bind("run-400", job["id"])
    monkeypatch.setattr(cancelled_runs, "find_http_api", Api)
    CancelledRuns(ledger).stop_jobs()
    assert ledger.get_state(job["id"]) is JobState.STOPPED
    assert list(ledger.store.list("queue/waiting")) == []
