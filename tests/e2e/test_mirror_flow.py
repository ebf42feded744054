"""The flow `mirror-weights`: sources are here, and in the store, before a job needs them."""

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from prefect_bt.flows.mirror_weights import mirror_weights
from prefect_bt.flows.tasks.mirror import KEPT
from tests.in_process import environment_of
from tests.weights.hub_server import Hub, Repo, serving_hub

from .conftest import Machine, call, until
from .test_endings import task_states
from .test_prefect_sees import ask
from .test_python_api import python
from .test_weights import SOURCE, config

pytestmark = [pytest.mark.integration]

MODEL = os.urandom(400_000)
DEFINITION = {
    "name": "weights",
    "job": {
        "image": {"base_image": "none"},
        "runtime": {"start_commands": ["true"]},
        "weights": [{"source": "hf://o/pre", "mount_location": "/proc/w"}],
    },
}


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with serving_hub() as hub:
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", hub.url)
        hub.repos["o/pre"] = Repo(token="hf_pl4nted")
        hub.repos["o/pre"].commit({"config.json": b"the config", "model.safetensors": MODEL})
        yield hub


def run(
    machine: Machine, hub: Hub, expression: str = "mirror_weights({})", **parameters: Any
) -> subprocess.Popen[str]:
    given = ", ".join(f"{name}={value!r}" for name, value in parameters.items())
    source = f"""
    import asyncio, json, os
    os.environ["HF_ENDPOINT"] = {hub.url!r}
    os.environ["PREFECT_BT_SECRET_PRE_TOKEN"] = "hf_pl4nted"
    from prefect_bt.flows.mirror_weights import amirror_weights, mirror_weights
    print(json.dumps({expression.format(given)}))
    """
    return python(machine, source)


def artifact(machine: Machine, key: str, holding: str = "") -> Any:
    """The newest one of this key that holds these words: other tests make some as well."""

    def shown() -> Any:
        wanted = {"key": {"any_": [key]}}
        found = ask(machine, "artifacts/filter", artifacts=wanted, sort="CREATED_DESC")
        return next((one for one in found if holding in str(one["data"])), None)

    return until(shown, seconds=30, what=f"the artifact {key}")


def test_a_job_finds_what_was_mirrored_before(
    machine: Machine, hub: Hub, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    extra = {"PREFECT_BT_SECRET_PRE_TOKEN": "hf_pl4nted"}
    with environment_of({**machine.environment, **extra}):
        rows: Any = mirror_weights(sources=["hf://o/pre"], auth_secret_name="pre_token")
    [row] = rows
    commit = hub.repos["o/pre"].branches["main"]
    assert (row["source"], row["revision"], row["files"]) == ("hf://o/pre", commit, 2)
    assert row["fetched"] == row["bytes"] == len(MODEL) + len(b"the config")
    assert "hf_pl4nted" not in f"{capfd.readouterr()} {row}"
    bar = artifact(machine, f"weights-{row['name'].partition('-')[0]}")
    assert bar["data"] == 100.0
    [shown] = json.loads(artifact(machine, "mirrored-weights", commit[:12])["data"])
    assert (shown["source"], shown["revision"]) == ("hf://o/pre", commit[:12])
    bodies = hub.bodies()

    source = SOURCE.format("hf://o/pre", "/app/models/base", 'auth_secret_name="pre_token"')
    job = machine.completed(config(tmp_path, source), extra=extra)
    assert job["weights"][0]["revision"] == commit
    assert hub.bodies() == bodies


def test_a_failed_source_does_not_stop_others(machine: Machine, hub: Hub, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.txt").write_text("a")
    sources = ["hf://o/none", f"file://{tmp_path}/data"]
    with environment_of(machine.environment):
        state: Any = mirror_weights(sources=sources, return_state=True)
    assert state.is_failed()
    assert "hf://o/none does not exist" in state.message
    trees = [tree["source"] for tree in listed(machine)]
    assert f"file://{tmp_path}/data" in trees
    rows = json.loads(artifact(machine, "mirrored-weights", str(tmp_path))["data"])
    assert [row["source"] for row in rows] == sources
    assert "does not exist" in rows[0]["error"]


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({}, "exactly one of `config`, `definition` and `sources`"),
    ({"sources": []}, "No weights source was given"),
    ({"sources": ["gcs://x/y"]}, "write gs://"),
    ({"sources": ["hf://o/pre@"]}, "has no revision after the @"),
    ({"definition": DEFINITION}, "nothing can be mounted under /proc"),
    ({"sources": ["hf://o/pre"], "auth_secret_name": "gone"}, "Secret 'gone' not found"),
]


def test_asked_in_a_wrong_way(machine: Machine) -> None:
    with environment_of(machine.environment):
        for given, words in REFUSED:
            state: Any = mirror_weights(**given, return_state=True)
            assert state.is_failed(), given
            assert words in state.message
            assert "Traceback" not in state.message


def listed(machine: Machine) -> list[dict[str, Any]]:
    return json.loads(machine.run("weights", "list", "-o", "json").stdout)["trees"]


@pytest.mark.extended
@pytest.mark.parametrize(
    ("expression", "number", "message"),
    [
        ("mirror_weights({})", signal.SIGINT, "Stopped by an interrupt."),
        ("mirror_weights({})", signal.SIGTERM, ""),
        ("asyncio.run(amirror_weights({}))", signal.SIGINT, KEPT),
    ],
    ids=["interrupt", "termination", "cancelled coroutine"],
)
def test_an_interrupt_ends_it_and_keeps_what_has_come(
    machine: Machine, hub: Hub, expression: str, number: signal.Signals, message: str
) -> None:
    name = f"o/slow-{uuid4().hex[:8]}"
    hub.repos[name] = Repo()
    hub.repos[name].commit({"model.safetensors": os.urandom(4 << 20)})
    hub.bad.seconds_a_chunk = 10.0
    hub.sent = 0
    process = run(machine, hub, expression, sources=[f"hf://{name}"])
    until(lambda: hub.sent, seconds=60, what="the first bytes")
    process.send_signal(number)
    _, err = process.communicate(timeout=200)  # at the server's speed it would take minutes
    assert process.returncode != 0
    if message:
        assert err.rstrip().endswith("KeyboardInterrupt")
        flow = {"name": {"any_": ["mirror-weights"]}}
        runs = call(machine, "POST", "flow_runs/filter", flows=flow, sort="START_TIME_DESC")
        (one,) = [run for run in runs if run["parameters"]["sources"] == [f"hf://{name}"]]
        assert (one["state"]["message"] or str(one)).startswith(message), err
        (task,) = task_states(machine, one["id"]).values()
        assert task == ("Cancelled", "CANCELLED", KEPT)
    assert f"hf://{name}" not in [tree["source"] for tree in listed(machine)]
    unfinished = json.loads(machine.run("weights", "list", "-o", "json").stdout)
    assert unfinished["unfinished_bytes"] > 0


@pytest.mark.extended
def test_an_interrupt_stops_a_mirroring_job(machine: Machine, hub: Hub, tmp_path: Path) -> None:
    hub.repos["o/slow-job"] = Repo()
    hub.repos["o/slow-job"].commit({"model.safetensors": os.urandom(4 << 20)})
    hub.bad.seconds_a_chunk = 10.0
    path = config(tmp_path, SOURCE.format("hf://o/slow-job", "/app/models/base", ""))
    before = {job.id for job in machine.ledger.list_jobs()}
    process = python(
        machine,
        f"""
        import os
        os.environ["HF_ENDPOINT"] = {hub.url!r}
        from prefect_bt.flows.train import train
        train({str(path)!r})
        """,
    )
    until(lambda: hub.sent, seconds=60, what="the first bytes")
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=200)
    [job_id] = {job.id for job in machine.ledger.list_jobs()} - before
    machine.wait(job_id, "STOPPED")
    machine.nothing_left(job_id)
