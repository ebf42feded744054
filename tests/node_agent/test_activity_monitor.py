"""What counts as activity of a rank: real commands of a real runner, in a process of its own."""

import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

LOOKS = """
import os, sys, time
from pathlib import Path
from prefect_bt.host import processes
from prefect_bt.host.nodes.files import StatusFile
from prefect_bt.ledger.records import NodePhase, NodeStatus
from prefect_bt.node_agent import activity_monitor
from prefect_bt.node_agent.commands.runner import ShellRunner

activity_monitor.POLL_INTERVAL = 0.1
runner = ShellRunner(
    os.environ,
    list_processes=lambda: processes.list_descendants(os.getpid()),
    uploader_pid=lambda: None,
)
runner.start(sys.argv[2])
try:
    while True:
        try:
            assert os.read(runner.output, 4096)
            break
        except BlockingIOError:
            time.sleep(0.01)
    status = StatusFile(Path(sys.argv[1]), NodeStatus(0, NodePhase.RUNNING))
    monitor = activity_monitor.ActivityMonitor(status, last_line=lambda: None, checkpoints=None)
    time.sleep(0.3)
    monitor.poll(runner)  # counts the CPU of the start
    for expected in sys.argv[3:]:
        for _ in range(100):
            before = status.status.active_at
            time.sleep(0.3)
            monitor.poll(runner)
            verdict = "inactive" if status.status.active_at == before else "active"
            if verdict == expected:
                break
        print(verdict, flush=True)
        sys.stdin.readline()
finally:
    runner.kill()
"""
CONNECT = "exec 3<>/dev/tcp/127.0.0.1/{port}; echo ready; sleep 60"


@contextmanager
def watched(command: str, folder: Path, *expected: str) -> Iterator[Iterator[str]]:
    """Yield verdicts on the command; the second look waits until the first is read.

    A look is repeated until it is as expected: on a slow machine, one alone may see a pause.
    """
    process = subprocess.Popen(
        [sys.executable, "-c", LOOKS, str(folder / "status.json"), command, *expected],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    stdin, stdout = process.stdin, process.stdout

    def read_looks() -> Iterator[str]:
        for _ in expected:
            yield stdout.readline().strip()
            stdin.write("\n")
            stdin.flush()

    try:
        yield read_looks()
    finally:
        process.communicate(timeout=60)


def test_a_sleeping_command_is_inactive(tmp_path: Path) -> None:
    expected = ["inactive", "inactive"]
    with watched("echo ready; sleep 60", tmp_path, *expected) as looks:
        assert list(looks) == expected


@pytest.mark.parametrize("child", ["", "& wait"], ids=["itself", "in a child"])
def test_a_command_with_an_open_connection_is_active_until_it_is_closed(
    tmp_path: Path, child: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        connect = CONNECT.format(port=server.getsockname()[1])
        command = f"bash -c '{connect}' {child}"
        with watched(command, tmp_path, "active", "inactive") as looks:
            accepted, _ = server.accept()
            assert next(looks) == "active"
            accepted.close()
            assert next(looks) == "inactive"


def test_a_busy_child_of_an_idle_command_is_active(tmp_path: Path) -> None:
    expected = ["active", "active"]
    with watched("echo ready; sh -c 'while :; do :; done' & wait", tmp_path, *expected) as looks:
        assert list(looks) == expected
