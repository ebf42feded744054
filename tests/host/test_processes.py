"""What is killed is gone when the killer returns."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from prefect_bt.host.processes import (
    MARK_VARIABLE,
    ProcessIdentity,
    find_marked_processes,
    kill_until_gone,
    list_descendants,
    list_processes,
    read_start_time,
)

FIRST_PROCESS = f"""
for _ in $(seq 100); do env -u {MARK_VARIABLE} sleep 600 & done
echo up
sleep 600
"""


def test_a_first_process_that_waits_for_the_others_is_waited_for(tmp_path: Path) -> None:
    """It gives up its memory, and with it the mark, before the kernel has ended the others."""
    if os.geteuid():
        pytest.skip("only root makes a PID namespace")
    mark = f"marked-{os.getpid()}"
    command = ["unshare", "--pid", "--fork", "sh", "-c", FIRST_PROCESS]
    variables = {**os.environ, MARK_VARIABLE: mark}
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=variables) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        below = {one.pid for one in list_descendants(process.pid)}
        assert len(below) > 100
        assert kill_until_gone(lambda: find_marked_processes(mark, tmp_path))
        assert below.isdisjoint(list_processes())


def test_an_identity_is_of_one_process() -> None:
    with subprocess.Popen(["sleep", "600"]) as process:
        identity = ProcessIdentity(process.pid, read_start_time(process.pid))
        assert identity.is_alive
        assert not ProcessIdentity(process.pid, identity.began - 1).is_alive
        process.kill()
    assert not identity.is_alive
    assert not ProcessIdentity(process.pid, read_start_time(process.pid)).is_alive


def test_a_process_that_got_the_pid_of_another_is_not_killed() -> None:
    """The identity was taken before: what has the pid now began at another time."""
    process = subprocess.Popen(["sleep", "300"])
    try:
        began = read_start_time(process.pid)
        ProcessIdentity(process.pid, began - 1).kill()
        ProcessIdentity(process.pid, 0).kill()
        process.terminate()  # SIGTERM after a SIGKILL would not be what ended it
        assert process.wait(timeout=60) == -signal.SIGTERM
        ProcessIdentity(process.pid, began).kill()
    finally:
        process.kill()
        process.wait()
