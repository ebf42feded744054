"""Start commands in a real node: their shell, environment, ends, and what they leave behind."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from prefect_bt.host.nodes.files import read_record
from prefect_bt.ledger.records import NodePhase
from prefect_bt.planning.plan import NodePlan
from tests.node_agent.rig import (
    Rig,
    all_lines,
    is_alive,
    own_lines,
    raw_log,
    wait_line,
    wait_over,
    wait_running,
    wait_until,
)

DAEMON = (
    "(setsid sh -c '(sleep 3000 & echo $! > /b10/workspace/pid; wait) &' &) ; "
    "until [ -s pid ]; do sleep 0.05; done"
)
SAVED = [f"saving {n}" for n in range(5)]
SAVE_IN_LINES = """python3 -uc "
import signal, sys, time
def save(*_):
    for n in range(5): sys.stdout.write(f'saving {n}\\n'); time.sleep(0.1)
    open('saved', 'w'); sys.exit(0)
signal.signal(signal.SIGTERM, save); sys.stdout.write('ready\\n'); time.sleep(300)
" """
"""Each line is one `write`: of two, a pause between them makes two lines."""
DEAF = "trap '' TERM; echo deaf; while :; do sleep 0.1; done"


def test_commands_run_in_order_in_one_folder(rig: Rig) -> None:
    handle = rig.launch("touch made; export X=1", "ls; pwd; echo ${X:-unset}")
    status = wait_over(handle)
    assert (status.phase, status.exit_code, status.command) == (NodePhase.DONE, 0, 1)
    assert own_lines(handle) == ["made", "/b10/workspace", "unset"]
    assert status.started_at is not None
    assert status.ended_at is not None


def test_the_first_that_fails_ends_the_node(rig: Rig) -> None:
    status, lines = rig.run("echo one", "exit 7", "echo never")
    assert (status.exit_code, status.signal, status.command) == (7, None, 1)
    assert lines == ["one"]


def test_nested_quotes_and_scripts_without_a_shebang(rig: Rig) -> None:
    status, lines = rig.run(
        "printf 'echo from $0' > run.sh",
        "/bin/sh -c 'chmod +x ./run.sh && ./run.sh'",
        """sh -c "python3 -c 'print(\\"a\\" \\"b\\")'" """,
    )
    assert status.exit_code == 0
    # Python writes the end of a line on its own: a pause before it makes two of one.
    assert [line for line in lines if line] == ["from ./run.sh", "ab"]


def test_a_signal_is_reported_as_by_a_shell(rig: Rig) -> None:
    status, _ = rig.run("kill -SEGV $$")
    assert (status.exit_code, status.signal) == (139, signal.SIGSEGV)
    assert not status.oom


def test_stdin_is_empty_and_both_streams_are_logged(rig: Rig) -> None:
    status, lines = rig.run("cat; echo out; echo err >&2")
    assert status.exit_code == 0
    assert lines == ["out", "err"]


def test_a_daemon_that_left_its_session_ends_with_the_node(rig: Rig) -> None:
    handle = rig.launch(DAEMON)
    assert wait_over(handle).exit_code == 0
    pid = int((handle.folder.path / "workspace" / "pid").read_text())
    assert not is_alive(pid)


def test_a_background_process_serves_the_next_command(rig: Rig) -> None:
    status, lines = rig.run(
        "(while :; do echo beat; touch beaten; sleep 0.05; done) & echo $! > pid",
        "until [ -e beaten ]; do sleep 0.05; done; kill -0 $(cat pid) && echo alive",
    )
    assert status.exit_code == 0
    assert "alive" in lines
    assert "beat" in lines


def test_background_processes_that_were_ended_are_named_without_secrets(rig: Rig) -> None:
    command = """nohup python3 -c 'import time; time.sleep(3000)' "$KEY" > train.log 2>&1 &
    until tr '\\0' ' ' < /proc/$!/cmdline | grep -q ^python3; do sleep 0.05; done"""
    handle = rig.launch(
        command, secret_environment={"KEY": "key"}, secrets={"key": "hunter2hunter2"}
    )
    status = wait_over(handle)
    assert status.exit_code == 0
    assert status.ended_processes == ("python3 -c import time; time.sleep(3000) ********",)
    assert b"1 background process was ended: python3 -c" in raw_log(handle)


def test_a_background_process_that_ends_by_itself_is_not_named(rig: Rig) -> None:
    status = wait_over(rig.launch("(trap '' TERM; sleep 0.05; echo last words) & true"))
    assert status.ended_processes == ()


@pytest.mark.extended
@pytest.mark.slow
def test_a_deaf_background_process_is_killed(rig: Rig) -> None:
    handle = rig.launch(f"({DEAF}) & sleep 0.3; exit 3")
    assert wait_over(handle).exit_code == 3
    assert any("background processes were ended" in line for line in all_lines(handle))


def test_polite_stop_lets_a_trainer_behind_a_shell_finish(rig: Rig) -> None:
    trainer = (
        "import signal,time,sys\n"
        "def end(*_):\n time.sleep(0.5); open('saved','w').write('x'); sys.exit(0)\n"
        "signal.signal(signal.SIGTERM,end)\nprint('ready')\ntime.sleep(300)"
    )
    handle = rig.launch(f'python3 -c "{trainer}" && echo next')
    wait_line(handle, "ready")
    handle.stop(reason="stopped")
    status = wait_over(handle)
    assert (status.phase, status.reason) == (NodePhase.DONE, "stopped")
    assert (handle.folder.path / "workspace" / "saved").exists()
    assert status.exit_code == 143


@pytest.mark.parametrize("pipe", ["tee log", "sed -u s/o/o/ | tee log", "tee log | cat"])
def test_a_stop_does_not_end_tee_before_the_trainer_has_saved(rig: Rig, pipe: str) -> None:
    handle = rig.launch(f"{SAVE_IN_LINES} | {pipe}")
    wait_line(handle, "ready")
    handle.stop(reason="stopped")
    wait_over(handle)
    workspace = handle.folder.path / "workspace"
    assert (workspace / "saved").exists()
    assert own_lines(handle) == (workspace / "log").read_text().splitlines() == ["ready", *SAVED]


def test_a_stop_reaches_a_trainer_that_reads_a_pipe(rig: Rig) -> None:
    handle = rig.launch(f"cat /dev/zero | {SAVE_IN_LINES}")
    wait_line(handle, "ready")
    handle.stop(reason="stopped")
    wait_over(handle)
    assert own_lines(handle) == ["ready", *SAVED]


def test_force_ends_what_ignores_the_polite_signal(rig: Rig) -> None:
    handle = rig.launch(DEAF.replace("''", "'echo asked'"))
    wait_line(handle, "deaf")
    handle.stop(reason="stopped")
    wait_line(handle, "asked")
    assert handle.observe().phase is NodePhase.RUNNING
    handle.stop(reason="stopped", force=True)
    handle.stop(reason="stopped")
    status = wait_over(handle)
    assert (status.exit_code, status.signal, status.reason) == (137, signal.SIGKILL, "stopped")
    assert not status.oom


def test_the_reason_of_a_stop_is_kept_word_for_word(rig: Rig) -> None:
    handle = rig.launch("sleep 3000")
    wait_running(handle)
    handle.stop(reason="straggler")
    assert wait_over(handle).reason == "straggler"


def test_a_stop_before_the_first_command_runs_none(rig: Rig) -> None:
    handle = rig.launch("echo never; sleep 3000")
    handle.stop(reason="stopped")
    status = wait_over(handle)
    assert status.reason == "stopped"
    if status.started_at is None:
        assert status.exit_code is None
        assert own_lines(handle) == []


def test_a_command_that_cannot_be_started_is_reported(rig: Rig) -> None:
    handle = rig.launch("echo " + "x" * 200_000)
    status = wait_over(handle)
    assert status.exit_code == 126
    assert any("could not be started" in line for line in all_lines(handle))


def test_the_environment_is_a_short_list(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PREFECT_API_KEY", "AWS_SECRET_ACCESS_KEY", "PREFECT_BT_SECRET_X", "OTHER"):
        monkeypatch.setenv(name, "leak-of-the-host")
    monkeypatch.setenv("https_proxy", "http://proxy:1")
    monkeypatch.setenv("NVIDIA_DRIVER_CAPABILITIES", "all")
    status, lines = rig.run(
        "env",
        environment={"MINE": "1", "BT_NUM_GPUS": "0"},
        secret_environment={"TOKEN": "hf_access_token"},
        secrets={"hf_access_token": "s3cret-value"},
    )
    assert status.exit_code == 0
    got = dict(line.split("=", 1) for line in lines if "=" in line)
    assert not any("leak-of-the-host" in line for line in lines)
    assert got["MINE"] == "1"
    assert got["TOKEN"] == "********"
    assert got["https_proxy"] == "http://proxy:1"
    assert got["NVIDIA_DRIVER_CAPABILITIES"] == "all"
    assert got["PYTHONUNBUFFERED"] == "1"
    assert got["CUDA_VISIBLE_DEVICES"] == ""
    assert "PYTHONPATH" not in got


def test_a_secret_is_in_the_environment_and_nowhere_else(rig: Rig) -> None:
    secret = "tok-5up3r-s3cret-0123456789"
    halves = "import os,sys,time; v=os.environ['T']; a=v[:9]; b=v[9:]; w=sys.stdout"
    command = (
        f'test "$T" = {secret[:5]}{secret[5:]} && echo same; echo $T; printf $T | base64; '
        f"python3 -c \"{halves}; w.write(a); w.flush(); time.sleep(1.5); w.write(b+'\\n')\""
    )
    plain = command.replace(secret, "x")
    handle = rig.launch(plain, secret_environment={"T": "t"}, secrets={"t": secret})
    assert wait_over(handle).exit_code == 0
    lines = own_lines(handle)
    assert lines.count("********") >= 2
    assert secret.encode() not in raw_log(handle)
    assert secret[:9] not in "".join(lines)
    for path in handle.folder.path.rglob("*"):
        if path.is_file():
            assert secret.encode() not in path.read_bytes(), path
    assert read_record(NodePlan, handle.folder.plan) is not None


def test_a_pipe_held_open_does_not_hang_the_end(rig: Rig) -> None:
    handle = rig.launch("(setsid sleep 3000 &) ; echo done")
    assert wait_over(handle).exit_code == 0
    assert own_lines(handle) == ["done"]


@pytest.mark.slow
def test_a_running_node_reports_when_it_was_active(rig: Rig) -> None:
    handle = rig.launch("while :; do echo beat; sleep 0.2; done")
    wait_until(lambda: handle.observe().active_at is not None)
    status = handle.observe()
    assert (status.started_at or 0) <= (status.active_at or 0) <= time.time()


@pytest.mark.slow
def test_scratch_and_workspace_are_the_nodes_own(rig: Rig) -> None:
    first = rig.launch("echo 0 > $BT_SCRATCH_DIR/who; sleep 0.5; cat $BT_SCRATCH_DIR/who", rank=0)
    second = rig.launch("echo 1 > $BT_SCRATCH_DIR/who; sleep 0.5; cat $BT_SCRATCH_DIR/who", rank=1)
    wait_over(first)
    wait_over(second)
    assert own_lines(first) == ["0"]
    assert own_lines(second) == ["1"]
    assert not Path("/mnt/bt-scratch").exists()
