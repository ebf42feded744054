"""An uploader without any progress: it must not keep its job from ending."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from prefect_bt.host import processes, syscalls
from prefect_bt.node_agent.commands.loop import CommandLoop
from prefect_bt.node_agent.commands.runner import ShellRunner
from prefect_bt.node_agent.upload_watchdog import UploaderConfig, UploaderProcess
from tests.altered import altered
from tests.forked import Forked
from tests.node_agent.rig import wait_until

STOPS = """
printf '{"updated_at": 1.0, "current": "checkpoint-1", "file": "checkpoint-1/w.bin"}' > "$6.part"
mv "$6.part" "$6"
cat > /dev/null
kill -STOP $$
"""

WORKS = """
cat > /dev/null
until [ -e "$4/../go" ]; do sleep 0.05; done
printf '{"updated_at": 1.0, "flushed": true}' > "$6.part"; mv "$6.part" "$6"
"""


FAILS = """
cat > /dev/null
echo "$*" >> "$4/../tries"
printf '{"updated_at": 1.0, "flushed": true, "error": "503"%s}' "$REPEAT" > "$6.part"
mv "$6.part" "$6"
exit 1
"""


def uploader(folder: Path, script: str, *, patience: float) -> UploaderProcess:
    (folder / "ckpts").mkdir()
    (folder / "script").write_text(script)
    job = UploaderConfig(
        command=("/bin/sh", str(folder / "script")),
        plan=folder / "plan.json",
        directory=folder / "ckpts",
        status=folder / "upload.json",
        log=folder / "log",
        environment=dict(os.environ),
        rank=3,
        stall_timeout=patience,
    )
    return UploaderProcess(job)


def flush(made: UploaderProcess) -> None:
    """Watch and reap it until the flush is over, as the agent does."""
    made.ensure_running()
    made.flush(succeeded=True)
    wait_until(lambda: turn(made), "the flush did not end")


def turn(made: UploaderProcess) -> bool:
    if made.pid is not None:
        pid, status = os.waitpid(made.pid, os.WNOHANG)
        if pid:
            made.on_exit(status)
    made.ensure_running()
    return made.is_finished


def test_one_that_is_stopped_is_killed_and_in_the_end_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1000.0]

    def monotonic() -> float:
        """Let time pass when the uploader has written its status, and while none runs."""
        if made.pid is None or (tmp_path / "upload.json").exists():
            now[0] += 0.1
        return now[0]

    watched = altered(time, monotonic=monotonic)
    monkeypatch.setattr("prefect_bt.node_agent.upload_watchdog.time", watched)
    made = uploader(tmp_path, STOPS, patience=0.3)
    flush(made)
    assert made.pid is None
    assert (
        "made no progress" in made.failure_reason()
        and "was killed 2 times" in made.failure_reason()
    )
    assert "checkpoint-1/w.bin (rank 3)" in made.failure_reason()


def end_beside_the_commands(folder: Path) -> str:
    """Kill an uploader while commands are killed; return how its flush failed, "" for not at all.

    Every process below this one counts as one of the commands, except the uploader.
    """
    syscalls.set_subreaper()  # as an agent: what a killed shell leaves is below this process
    made = uploader(folder, WORKS, patience=600.0)
    made.ensure_running()
    ended = made.pid
    assert ended is not None

    def list_processes() -> list[processes.ProcessStat]:
        left = processes.list_descendants(os.getpid(), exclude=(ended,))
        if made.pid == ended and left:
            os.kill(ended, signal.SIGKILL)
            os.waitid(os.P_PID, ended, os.WEXITED | os.WNOWAIT)
        return left

    runner = ShellRunner(os.environ, list_processes=list_processes, uploader_pid=lambda: made.pid)
    runner.start("sleep 3000 & sleep 3000")
    around: Any = SimpleNamespace(uploader=made)
    loop = CommandLoop.__new__(CommandLoop)
    loop._around, loop._runner = around, runner
    loop._kill_processes()
    (folder / "go").touch()
    flush(made)
    return made.failure_reason()


def test_one_that_ends_while_the_commands_are_killed_is_started_again(tmp_path: Path) -> None:
    """As by the kernel on a full machine. Else its last flush would wait for it for ever."""
    program = f"""
import sys
from pathlib import Path
from {__name__} import end_beside_the_commands
print(end_beside_the_commands(Path(sys.argv[1])))
"""
    assert Forked(program, [tmp_path]).communicate(200) == ("\n", "")


def test_a_slow_uploader_is_not_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its work takes six times the patience, of which no step takes more."""
    now = [1000.0]
    watched = altered(time, monotonic=lambda: now[0])
    monkeypatch.setattr("prefect_bt.node_agent.upload_watchdog.time", watched)
    made = uploader(tmp_path, WORKS, patience=2.0)
    made.ensure_running()
    made.flush(succeeded=True)
    for work in range(8):
        status = tmp_path / "upload.part"
        status.write_text(f'{{"updated_at": 1.0, "work": {work}}}')
        status.rename(tmp_path / "upload.json")
        now[0] += 1.5
        made.ensure_running()
    (tmp_path / "go").touch()
    wait_until(lambda: turn(made), "the flush did not end")
    assert made.failure_reason() == ""


def test_one_that_does_not_even_die_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Leave it unreaped, as if in a system call that does not return."""
    monkeypatch.setattr("prefect_bt.node_agent.upload_watchdog.KILL_TIMEOUT", 0.0)
    made = uploader(tmp_path, STOPS, patience=0.2)
    made.ensure_running()
    made.flush(succeeded=True)

    def turn() -> bool:
        made.ensure_running()
        return made.is_finished

    wait_until(turn, "it was waited for")
    assert made.pid is not None
    assert (
        "made no progress" in made.failure_reason()
        and "killed, but did not end" in made.failure_reason()
    )
    os.kill(made.pid, signal.SIGKILL)
    os.waitpid(made.pid, 0)
    assert made.pid not in processes.list_processes()


REPEAT = ', "repeat": {"delay": 0.01, "number": 2, "total": 3}'


@pytest.mark.parametrize(("repeat", "stops", "tries"), [("", False, 1), (REPEAT, True, 1)])
def test_a_failed_flush_that_is_not_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, repeat: str, stops: bool, tries: int
) -> None:
    monkeypatch.setenv("REPEAT", repeat)
    made = uploader(tmp_path, FAILS, patience=60.0)
    if stops:
        made.end_repeats()
    flush(made)
    assert made.failure_reason() == "503"
    assert len((tmp_path / "tries").read_text().splitlines()) == tries


def test_each_repeat_gets_the_number_of_failed_tries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The uploader decides on repeats; a request to end them ends the wait for one, too."""
    monkeypatch.setenv("REPEAT", REPEAT)
    made = uploader(tmp_path, FAILS, patience=60.0)
    made.ensure_running()
    made.flush(succeeded=True)
    tries = tmp_path / "tries"
    wait_until(lambda: turn(made) or (tries.exists() and tries.read_text().count("\n") >= 3))
    wait_until(lambda: turn(made) or made.pid is None)
    made.end_repeats()
    wait_until(lambda: turn(made))
    first, second, third, *_ = tries.read_text().splitlines()
    assert "--failed-tries" not in first
    assert second.endswith("--failed-tries 1") and third.endswith("--failed-tries 2")
    assert made.failure_reason() == "503"
