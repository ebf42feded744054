"""What counts as activity of a rank: real commands, with a poll interval of a tenth of a second."""

import os
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from prefect_bt.host import processes
from prefect_bt.host.nodes.files import StatusFile
from prefect_bt.ledger.records import NodePhase, NodeStatus
from prefect_bt.node_agent import activity_monitor
from prefect_bt.node_agent.activity_monitor import ActivityMonitor
from prefect_bt.node_agent.commands.runner import ShellRunner

CONNECT = "exec 3<>/dev/tcp/127.0.0.1/{port}; echo ready; sleep 60"

StartCommand = Callable[[str], ShellRunner]


@pytest.fixture
def start_command() -> Iterator[StartCommand]:
    started: list[ShellRunner] = []

    def start(command: str) -> ShellRunner:
        def list_commands() -> list[processes.ProcessStat]:
            return processes.list_descendants(os.getpid())

        runner = ShellRunner(os.environ, list_processes=list_commands, uploader_pid=lambda: None)
        started.append(runner)
        runner.start(command)
        wait_for_output(runner)
        return runner

    yield start
    for runner in started:
        runner.kill()


def wait_for_output(runner: ShellRunner) -> None:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        try:
            if os.read(runner.output, 4096):
                return
        except BlockingIOError:
            time.sleep(0.01)
    raise AssertionError("the command printed nothing")


def is_active(runner: ShellRunner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Return whether the second look reports activity; the first one counts the start's CPU."""
    monkeypatch.setattr(activity_monitor, "POLL_INTERVAL", 0.1)
    status = StatusFile(tmp_path / "status.json", NodeStatus(0, NodePhase.RUNNING))
    monitor = ActivityMonitor(status, last_line=lambda: None, checkpoints=None)
    seen: list[float | None] = []
    for _ in range(2):
        time.sleep(0.3)
        monitor.poll(runner)
        seen.append(status.status.active_at)
    return seen[1] != seen[0]


def test_a_sleeping_command_is_inactive(
    start_command: StartCommand, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not is_active(start_command("echo ready; sleep 60"), tmp_path, monkeypatch)


@pytest.mark.parametrize("child", ["", "& wait"], ids=["itself", "in a child"])
def test_a_command_with_an_open_connection_is_active(
    start_command: StartCommand, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, child: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        command = CONNECT.format(port=server.getsockname()[1])
        runner = start_command(f"bash -c '{command}' {child}")
        accepted, _ = server.accept()
        # The other end is this process, which is not one of the commands.
        assert is_active(runner, tmp_path, monkeypatch)
        accepted.close()
        assert not is_active(runner, tmp_path, monkeypatch)


def test_a_busy_child_of_an_idle_command_is_active(
    start_command: StartCommand, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = start_command("echo ready; sh -c 'while :; do :; done' & wait")
    assert is_active(runner, tmp_path, monkeypatch)
