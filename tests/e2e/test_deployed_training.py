"""The last step of a training is a deployment that answers. Its engine is a script of this file.

tests/serving/engines/test_transformers_real.py has the answers of a real engine, and
test_serving.py a real engine after a training.
"""

import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from prefect_bt.blocks import ServingDeployment, ServingEngine
from prefect_bt.flows.train import train
from prefect_bt.serving.deployment_records import DeploymentLedger
from tests.in_process import environment_of
from tests.serving.committed import full

from .conftest import Machine

pytestmark = [pytest.mark.integration]

# Answers with its name and the names of the files that it was given.
SERVER = """
import json, os, sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

model = json.load(open("served.json"))["models"][0]
said = " ".join([model["name"], *sorted(os.listdir(model["path"]))])

class Handler(BaseHTTPRequestHandler):
    def answer(self, document):
        body = json.dumps(document).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        self.answer({"data": [{"id": model["name"]}]})

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.answer({"choices": [{"message": {"role": "assistant", "content": said}}]})

port = int(sys.argv[sys.argv.index("--port") + 1])
ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""


@pytest.fixture
def engine(tmp_path: Path) -> ServingEngine:
    """An engine whose `python` runs SERVER in place of the given program."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "server.py").write_text(SERVER)
    python = folder / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} {folder}/server.py "$@"\n')
    python.chmod(0o755)
    return ServingEngine.model_validate(
        {"engine": "transformers", "environment": {"PATH": f"{folder}:/usr/bin:/bin"}}
    )


def test_a_training_is_deployed(machine: Machine, engine: ServingEngine, tmp_path: Path) -> None:
    for name, data in full().items():
        file = tmp_path / "merged" / name
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(data)
    gate = {"prompts": [{"prompt": "Hello", "matches": "model.safetensors"}]}
    config = machine.folder(f"cp -r {tmp_path}/merged $BT_CHECKPOINT_DIR\n")
    with environment_of(machine.environment):
        job: Any = train(
            str(config),
            deploy=ServingDeployment.model_validate({"model_name": "trained", "gate": gate}),
            deploy_checkpoints=["merged"],
            engine=engine,
        )
    deployment = job["deployment"]
    assert job["current_status"] == "TRAINING_JOB_COMPLETED"
    assert (deployment["status"], deployment["models"]) == ("serving", ["merged"])
    assert "passed 1 prompt of its gate" in deployment["revisions"][0]["message"]
    body = {"model": "trained", "messages": [{"role": "user", "content": "Who is there?"}]}
    address = f"{deployment['address']}/chat/completions"
    answer = httpx.post(address, json=body, timeout=180)
    assert answer.json()["choices"][0]["message"]["content"].startswith("merged "), answer.text
    machine.run("deployments", "stop", "trained", "--yes")
    machine.nothing_left(DeploymentLedger(machine.ledger).find_job_id("trained", 1))
    machine.nothing_left(job["id"])
