"""From checkpoints of a job to a model that answers, through everything that may happen to it."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from prefect_bt.serving.deployment_records import DeploymentLedger
from prefect_bt.serving.rollout.revisions import list_revision_statuses
from prefect_bt.serving.router.deployment_folder import RouterFolder
from prefect_bt.serving.router.route import Route
from tests.optional import needs

from .conftest import Machine, call, until
from .test_python_api import output, python

pytestmark = [pytest.mark.integration, needs("torch", "transformers", "peft", "openai")]

TINY = Path(__file__).parents[1] / "serving" / "tiny.py"
KEY = "sk-serving-1"
NAME = "tiny"
PAUSE = 0.25
"""Seconds between an answer and the client's next question."""


@dataclass
class Clients:
    """Threads that ask one question after another, with a short pause between them."""

    address: str
    model: str
    answered: int = 0
    failed: list[str] = field(default_factory=list[str])
    over: threading.Event = field(default_factory=threading.Event)

    def ask(self) -> None:
        while not self.over.wait(PAUSE):
            answer = ask(self.address, self.model)
            if answer.status_code == 200:
                self.answered += 1
            else:
                self.failed.append(f"{answer.status_code} {answer.text[:300]}")


@contextmanager
def clients(address: str, model: str, count: int = 3) -> Iterator[Clients]:
    """While they ask."""
    asking = Clients(address, model)
    threads = [threading.Thread(target=asking.ask) for _ in range(count)]
    for thread in threads:
        thread.start()
    try:
        yield asking
    finally:
        asking.over.set()
        for thread in threads:
            thread.join()


def ask(address: str, model: str, key: str = KEY) -> httpx.Response:
    body = {
        "model": model,
        "max_tokens": 8,
        "temperature": 0,
        "messages": [{"role": "user", "content": "Who is there?"}],
    }
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    return httpx.post(f"{address}/chat/completions", json=body, headers=headers, timeout=180)


def said(address: str, model: str) -> str:
    answer = ask(address, model)
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"][0]["message"]["content"]


def deploy(machine: Machine, job_id: str, *words: str, check: bool = True) -> Any:
    command = ("deploy_checkpoints", "--job-id", job_id, "--model-name", NAME, *words)
    done = machine.run(*command, "-o", "json", check=check, PREFECT_BT_SECRET_SERVING_KEY=KEY)
    return json.loads(done.stdout) if check else done


def routed(machine: Machine, name: str = NAME) -> int:
    place = machine.state_dir / "deployments" / name / "route.json"
    return json.loads(place.read_text())["revision"]


def revision_states(machine: Machine) -> dict[int, str]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PREFECT_BT_STATE_DIR", str(machine.state_dir))
        return {
            one.revision.number: one.state for one in list_revision_statuses(machine.ledger, NAME)
        }


def server_of(machine: Machine, job_id: str) -> psutil.Process:
    """The one that listens."""
    for pid in machine.job_processes(job_id):
        with suppress(psutil.Error):
            process = psutil.Process(pid)
            if "transformers_server.py" in " ".join(process.cmdline()):
                return process
    raise AssertionError(f"no server among {machine.job_processes(job_id)}")


def writes(trained: Path) -> str:
    """A command that saves what `trained` holds, as if it had been trained there."""
    here = "$BT_CHECKPOINT_DIR"
    return f'cp -r {trained}/. {here}\nsed -i "s#{trained}#{here}#" {here}/*/adapter_config.json\n'


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a training writes: two adapters and a merged model."""
    folder = tmp_path_factory.mktemp("tiny")
    subprocess.run([sys.executable, TINY, folder], check=True, timeout=900)
    return folder


@pytest.mark.soak
def test_a_model_answers_through_all_that_may_happen(machine: Machine, trained: Path) -> None:
    script = (
        writes(trained)
        + """
    mkdir $BT_CHECKPOINT_DIR/broken
    cp $BT_CHECKPOINT_DIR/merged/*.json $BT_CHECKPOINT_DIR/broken
    head -c 3000 $BT_CHECKPOINT_DIR/merged/model.safetensors \\
      > $BT_CHECKPOINT_DIR/broken/pytorch_model.bin
    """
    )
    training = machine.completed(machine.folder(script))["id"]

    # Two adapters at once, each under its own name, and who may ask.
    both = ("--checkpoint", "checkpoint-10", "--checkpoint", "checkpoint-20")
    first = deploy(machine, training, *both, "--api-key-secret", "serving-key")
    address = first["address"]
    told = {name: said(address, name) for name in ("checkpoint-10", "checkpoint-20")}
    assert told["checkpoint-10"] != told["checkpoint-20"]
    assert ask(address, "checkpoint-10", key="wrong").status_code == 401
    assert said(address, NAME) == told["checkpoint-10"], "its own name is the first of them"
    from openai import OpenAI

    with OpenAI(base_url=address, api_key=KEY) as client:
        asked: Any = [{"role": "user", "content": "Who is there?"}]
        answer = client.chat.completions.create(
            model="checkpoint-20", messages=asked, max_tokens=8, temperature=0
        )
        assert answer.choices[0].message.content == told["checkpoint-20"]

    # Whoever watches dies: nobody who asks notices. The server dies: they wait for the next one.
    serving = DeploymentLedger(machine.ledger).find_job_id(NAME, 1)
    with clients(address, NAME) as asking:
        for process in machine.processes("prefect_bt.supervisor", serving):
            process.kill()
        (router,) = machine.processes("-m prefect_bt.serving.router")
        before = asking.answered
        until(lambda: asking.answered > before + 3, seconds=30, what="answers without a flow")
        server_of(machine, serving).kill()
        attempts = machine.ledger.list_attempts
        until(lambda: len(attempts(serving)) == 2, seconds=60, what="the server's next start")
        before = asking.answered
        until(lambda: asking.answered > before + 3, seconds=90, what="answers of the next one")
    refused = [one for one in asking.failed if not one.startswith("502")]
    assert not refused, "only what the dying server had begun may fail"
    assert len(asking.failed) <= 3

    # The router dies, and is there again at the same address.
    os.kill(router.pid, signal.SIGKILL)

    def answers() -> bool:
        with suppress(httpx.HTTPError):
            return ask(address, NAME).status_code == 200
        return False

    until(answers, seconds=60, what="the router's next start")

    # Another revision takes over under load; one that does not load changes nothing.
    with clients(address, NAME) as asking:
        second = deploy(machine, training, "--checkpoint", "merged")
        assert second["serving_revision"] == 2
        until(lambda: revision_states(machine)[1] == "stopped", seconds=60, what="the old one gone")
        broken = deploy(machine, training, "--checkpoint", "broken", check=False)
        assert broken.returncode == 1
        assert "Revision 3 of tiny does not serve" in broken.stderr
        assert routed(machine) == 2
    assert not asking.failed, asking.failed[:3]
    assert asking.answered > 10
    assert said(address, NAME) == told["checkpoint-20"], "merged, it says the same"
    assert revision_states(machine) == {1: "stopped", 2: "serving", 3: "failed"}

    # Back to the one before, then the end.
    machine.run("deployments", "rollback", NAME)
    until(lambda: routed(machine) == 1, seconds=60, what="the first one again")
    assert said(address, "checkpoint-10") == told["checkpoint-10"]
    machine.run("deployments", "stop", NAME, "--yes")
    with pytest.raises(httpx.ConnectError):
        ask(address, NAME)
    for number in (1, 2, 3):
        machine.nothing_left(DeploymentLedger(machine.ledger).find_job_id(NAME, number))
    assert KEY not in everything_written(machine)


def everything_written(machine: Machine) -> str:
    files = [
        path for path in machine.root.rglob("*") if path.is_file() and path.stat().st_size < 1e7
    ]
    return "\n".join(path.read_bytes().decode("utf-8", "replace") for path in files)


def assert_engine_refuses_direct_requests(machine: Machine, serving: str) -> None:
    """Check that only the router gets answers, and other users cannot learn the key."""
    place = RouterFolder.for_deployment(machine.state_dir, "trained")
    route, server = place.read_route(), server_of(machine, serving)
    assert route is not None and route.key
    for key in ("", KEY, route.key[:-1]):
        assert ask(f"{route.target}/v1", "merged", key).status_code == 401
    assert ask(f"{route.target}/v1", "merged", route.key).status_code == 200
    listening = [c.laddr.ip for c in server.net_connections("tcp") if c.status == "LISTEN"]
    assert listening == ["127.0.0.1"]
    assert route.key not in " ".join(server.cmdline())
    holding = [path for path in machine.root.rglob("*") if path.is_file() and holds(path, route)]
    assert holding == [place.route_file]
    if os.getuid() == 0:  # who may become another user
        paths = (f"/proc/{server.pid}/environ", place.route_file, place.path / "engine.secret")
        for path in paths:
            other: Any = {"user": 65534, "extra_groups": []}
            seen = subprocess.run(["cat", path], capture_output=True, check=False, **other)
            assert (seen.returncode != 0, seen.stdout) == (True, b""), path


def holds(path: Path, route: Route) -> bool:
    return path.stat().st_size < 1e7 and route.key.encode() in path.read_bytes()


@pytest.mark.extended
def test_a_training_ends_with_a_model_that_answers(machine: Machine, trained: Path) -> None:
    """test_deployed_training.py has the same with an engine of its own."""
    config = machine.folder(writes(trained))
    source = f"""
    import json
    from prefect_bt.blocks import ServingDeployment
    from prefect_bt.flows.train import train
    gate = {{"prompts": [{{"prompt": "Hello", "matches": "."}}]}}
    served = ServingDeployment(model_name="trained", gate=gate)
    print(json.dumps(train({str(config)!r}, deploy=served, deploy_checkpoints=["merged"])))
    """
    job = json.loads(output(python(machine, source)))
    deployment = job["deployment"]
    assert job["current_status"] == "TRAINING_JOB_COMPLETED"
    assert (deployment["status"], deployment["models"]) == ("serving", ["merged"])
    assert "passed 1 prompt of its gate" in deployment["revisions"][0]["message"]
    assert said(deployment["address"], "trained")
    assert_engine_refuses_direct_requests(machine, deployment["revisions"][0]["job_id"])
    check_interrupted_deployment(machine, job["id"])
    machine.run("deployments", "stop", "trained", "--yes")
    for number in (1, 2):
        machine.nothing_left(DeploymentLedger(machine.ledger).find_job_id("trained", number))
    machine.nothing_left(job["id"])


def check_interrupted_deployment(machine: Machine, job_id: str) -> None:
    """Ctrl-C ends the run that waits; the revision goes on."""
    source = f"""
    import asyncio
    from prefect_bt.flows.deploy_checkpoints import adeploy_checkpoints
    asyncio.run(adeploy_checkpoints("trained", job_id={job_id!r}, checkpoints=["merged"]))
    """
    process = python(machine, source)
    records = DeploymentLedger(machine.ledger)
    until(lambda: records.find_job_id("trained", 2), seconds=60, what="revision 2")
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=200)
    assert err.rstrip().endswith("KeyboardInterrupt")
    flow = {"name": {"any_": ["deploy-checkpoints"]}}
    newest = call(machine, "POST", "flow_runs/filter", flows=flow, sort="START_TIME_DESC")[0]
    assert newest["state"]["message"] == "Stopped by an interrupt."
