"""The published truss, unmodified, as the client of the HTTP API."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.cli.screens import Screen
from tests.e2e.conftest import Machine
from tests.ports import free_port

CLIENTS = Path(sys.prefix) / "clients" / "bin"
RUN_SH = """
    #!/bin/sh
    echo "hello $WORD"
    mkdir -p "$BT_CHECKPOINT_DIR/checkpoint-2"
    cd "$BT_CHECKPOINT_DIR/checkpoint-2"
    echo '{"model_type": "llama"}' > config.json
    printf '\\002\\000\\000\\000\\000\\000\\000\\000{}' > model.safetensors
    echo "{}" > tokenizer.json
    cd -
    echo note > "$BT_PROJECT_CACHE_DIR/note.txt"
    if [ -f wait ]; then sleep 600; fi
"""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.integration,
    pytest.mark.skipif(
        not (CLIENTS / "truss").exists(), reason="truss is not installed (make test-deps)"
    ),
]


class Truss:
    """Runs `truss` against the server at `url`, with the remote `ours`."""

    def __init__(self, machine: Machine, url: str) -> None:
        self.folder, self.url = machine.root, url
        self.environment = {
            **{k: v for k, v in machine.environment.items() if not k.startswith("PREFECT")},
            "HTTP_PROXY": url,
            "TRUSS_NO_UPDATE_CHECK": "1",
            "COLUMNS": "200",
        }
        program = str(Path(__file__).with_name("truss_commands.py"))
        self._process = subprocess.Popen(
            [CLIENTS / "python", program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=self.environment,
        )

    def __call__(self, *arguments: str, code: int = 0, remote: str = "ours") -> str:
        """Run `truss train`; return what it prints."""
        assert self._process.stdin and self._process.stdout
        output = self.folder / "truss-output"
        call = {
            "arguments": ["train", *arguments, "--remote", remote],
            "output": str(output),
            "folder": str(self.folder),
        }
        self._process.stdin.write(f"{json.dumps(call)}\n")
        self._process.stdin.flush()
        ended = int(self._process.stdout.readline())
        text = output.read_text()
        assert ended == code, (arguments, ended, text)
        return text

    def screen(self, *arguments: str) -> Screen:
        """Start `truss train` on a terminal of its own."""
        command = [str(CLIENTS / "truss"), "train", *arguments, "--remote", "ours"]
        return Screen(command, env=self.environment, folder=self.folder)

    def close(self) -> None:
        assert self._process.stdin
        self._process.stdin.close()
        self._process.wait(60)


@pytest.fixture
def truss(machine: Machine) -> Iterator[Truss]:
    port = free_port()
    machine.run("api-key", "create", f"truss-{port}", "--trussrc", "ours")
    command = machine.command("api", "--port", str(port))
    server = subprocess.Popen(command, env=machine.environment, stdout=subprocess.DEVNULL)
    while True:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port)):
            break
        assert server.poll() is None
        time.sleep(0.05)
    client = Truss(machine, f"http://127.0.0.1:{port}")
    yield client
    client.close()
    server.terminate()
    server.wait(60)


def _newest(machine: Machine) -> dict[str, Any]:
    return json.loads(machine.run("view", "--all", "-o", "json").stdout)["training_jobs"][-1]


def test_every_command_of_truss_works(machine: Machine, truss: Truss):
    config = machine.folder(RUN_SH, project="by truss", env={"WORD": "world"}, cache=True)
    (config.parent / "large.bin").write_bytes(os.urandom(9 * 1024 * 1024))
    pushed = truss("push", str(config), "--tail", "--job-name", "first", "--priority", "2")
    assert "Training job successfully created!" in pushed
    assert "(rank-0) hello world" in pushed
    assert "Training job completed successfully." in pushed
    job = _newest(machine)
    job_id = job["id"]
    assert (job["name"], job["priority"]) == ("first", 2)
    assert job["user"]["email"].startswith("truss-")

    assert "hello world" in truss("logs", "--job-id", job_id)
    assert "hello world" in truss("logs", "--job-id", job_id, "--tail")
    assert "TRAINING_JOB_COMPLETED" in truss("view", "--job-id", job_id)
    assert "by truss" in truss("view")
    assert job_id in truss("view", "--project", "by truss")
    assert "Training Job Metrics" in truss("metrics", "--job-id", job_id)
    assert "note.txt" in truss("cache", "summarize", "by truss", "-o", "csv")
    listed = json.loads(truss("checkpoints", "list", "--job-id", job_id, "-o", "json"))
    assert [one["checkpoint_id"] for one in listed["checkpoints"]] == ["checkpoint-2"]
    truss("get_checkpoint_urls", "--job-id", job_id)
    urls = json.loads((machine.root / f"by-truss_{job_id}_checkpoints.json").read_text())
    assert len(urls["checkpoint_artifacts"]) == 3
    truss("download", "--job-id", job_id, "--target-directory", str(machine.root))
    unpacked = machine.root / f"by-truss_{job_id}"
    assert (unpacked / "large.bin").read_bytes() == (config.parent / "large.bin").read_bytes()
    truss("download", "--job-id", job_id, "--target-directory", str(machine.root), "--no-unzip")
    assert tarfile.is_tarfile(machine.root / f"by-truss_{job_id}.tgz")
    truss("capacity", "view")
    set_limit = ("capacity", "update", "--team", "default", "--gpu-type", "H100")
    assert "H100" in truss(*set_limit, "--capacity", "4")
    assert "No auth codes" in truss("isession", "--job-id", job_id)
    assert "does not wait" in truss("update", "--job-id", job_id, "--priority", "3", code=1)
    assert "no interactive session" in truss(
        "update_session", job_id, "--trigger", "on_startup", code=1
    )
    assert "No queued or running jobs" in truss("stop", "--job-id", job_id, code=2)
    _deploy_dry_run(machine, truss, job_id)


def _deploy_dry_run(machine: Machine, truss: Truss, job_id: str) -> None:
    target = machine.root / "truss-config"
    config = machine.root / "deploy.py"
    config.write_text(
        "from truss_train import definitions as d\n"
        "from truss.base import truss_config\n"
        f"c = d.FullCheckpoint(training_job_id={job_id!r}, checkpoint_name='checkpoint-2')\n"
        "config = d.DeployCheckpointsConfig(\n"
        "    model_name='stories',\n"
        "    checkpoint_details=d.CheckpointList(checkpoints=[c]),\n"
        "    compute=d.Compute(cpu_count=1, memory='1Gi'),\n"
        "    runtime=d.DeployCheckpointsRuntime(environment_variables={'A': 'b'}),\n"
        ")\n"
    )
    given = ("--config", str(config), "--dry-run", "--truss-config-output-dir", str(target))
    truss("deploy_checkpoints", *given)
    assert "vllm serve" in (target / "config.yaml").read_text()


@pytest.mark.extended
def test_truss_asks_on_a_terminal(machine: Machine, truss: Truss):
    config = machine.folder(RUN_SH, project="asked", env={"WORD": "w"})
    (config.parent / "wait").touch()
    assert "successfully created" in truss("push", str(config))
    job_id = _newest(machine)["id"]
    screen = truss.screen("stop")
    screen.wait_for_line(job_id)
    screen.press("y", "enter")
    assert screen.end() == 0
    screen.close()
    while _newest(machine)["current_status"] != "TRAINING_JOB_STOPPED":
        time.sleep(0.2)
    screen = truss.screen("recreate")
    screen.wait_for_line(job_id)
    screen.press("y", "enter")
    assert screen.end() == 0
    screen.close()
    again = _newest(machine)["id"]
    assert again != job_id
    assert "Training job" in truss("stop", "--job-id", again, "--project", "asked")
