"""Shells in containers of nodes, on a real Engine."""

from __future__ import annotations

import subprocess
import sys

import pytest

from prefect_bt.ledger.records import NodePhase
from prefect_bt.substrates.docker.node_handle import DockerNodeHandle
from tests.node_agent.rig import wait_line, wait_over, wait_until
from tests.node_shells import PATIENCE, Terminal, list_processes_of

from .node_rig import DockerRig

pytestmark = pytest.mark.integration
PROGRAM = """
import sys
from pathlib import Path
from prefect_bt.host.state_folder import JobFolder
from prefect_bt.host.terminal import ShellRequest
from prefect_bt.substrates.docker.engine import DockerEngine
from prefect_bt.substrates.docker.node_handle import DockerNodeHandle
from prefect_bt.substrates.docker.shell import run_shell
state, job, host, secrets, *command = sys.argv[1:]
engine = DockerEngine({"DOCKER_HOST": host} if host else {})
handle = DockerNodeHandle(JobFolder(Path(state), job), 0, 0, engine)
sys.exit(run_shell(handle, ShellRequest(tuple(command), secrets == "1", ("TOKEN",))))
"""
SECRET = "very-secret-word-9"


def argv(rig: DockerRig, *command: str, with_secrets: bool = False) -> list[str]:
    words = [str(rig.state), rig.job, rig.host, str(int(with_secrets))]
    return [sys.executable, "-c", PROGRAM, *words, *command]


def run(
    rig: DockerRig, *command: str, typed: str = "", with_secrets: bool = False
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        argv(rig, *command, with_secrets=with_secrets),
        input=typed,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


@pytest.fixture
def node(rig: DockerRig) -> DockerNodeHandle:
    handle = rig.launch(
        "echo ready; while [ ! -e end ]; do sleep 0.1; done",
        environment={"BT_WORKING_DIR": "/b10/workspace", "LR": "3e-4"},
        secret_environment={"TOKEN": "tok"},
        secrets={"tok": SECRET},
    )
    wait_line(handle, "ready")
    return handle


@pytest.mark.slow
def test_a_command_in_a_container(rig: DockerRig, node: DockerNodeHandle) -> None:
    script = "pwd; echo $LR-$TOKEN; echo aside >&2; cat; exit 7"
    done = run(rig, "sh", "-c", script, typed="hi\n")
    assert (done.stdout, done.stderr) == ("/b10/workspace\n3e-4-\nhi\n", "aside\n")
    assert done.returncode == 7
    assert run(rig, "no-such-program").returncode == 127
    assert run(rig, typed="exit 3\n").returncode == 3
    without = run(rig, "env", with_secrets=True)  # the image has no bash
    assert (without.returncode, without.stdout) == (126, "")
    assert "--with-secrets needs" in without.stderr

    shell = subprocess.Popen(argv(rig, "cat"), stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    (node.folder.path / "workspace/end").touch()
    status = wait_over(node)
    assert (status.phase, status.exit_code, status.ended_processes) == (NodePhase.DONE, 0, ())
    assert shell.wait(PATIENCE) != 0


@pytest.mark.slow
def test_a_terminal_in_a_container(rig: DockerRig, node: DockerNodeHandle) -> None:
    assert node.observe().phase is NodePhase.RUNNING
    terminal = Terminal(argv(rig))
    terminal.wait_for(" # ")
    terminal.type("stty size; echo $TERM-$LR\n")
    terminal.wait_for("30 100")
    terminal.wait_for("xterm-3e-4")
    terminal.type("sleep 86417\n")
    wait_until(lambda: list_processes_of("86417"))
    terminal.type("\x03")
    terminal.type("echo code-$((1 + 1))\n")
    terminal.wait_for("code-2")
    terminal.type("exit 4\n")
    assert terminal.wait_end() == 4
    assert terminal.settings_now() == terminal.settings
    terminal.close()
