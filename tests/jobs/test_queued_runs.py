"""A Prefect server that is wrong, or none at all, keeps no job from its place in the queue."""

from pathlib import Path

import pytest

from prefect_bt.capacity.overview import change_limit
from prefect_bt.definitions import load_training_project
from prefect_bt.jobs.options import SubmitOptions
from prefect_bt.jobs.queue.cancelled_runs import CancelledRuns
from prefect_bt.jobs.queue.queued_runs import WaitReasons
from prefect_bt.jobs.submit import submit
from prefect_bt.ledger.open_ledger import open_ledger
from prefect_bt.ledger.states import JobState

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
    for poller in (CancelledRuns(), WaitReasons()):
        poller.poll(ledger)
    assert ledger.get_state(job["id"]) is JobState.PENDING
    assert ledger.runs.list(job["id"]) == []
