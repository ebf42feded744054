"""Shells in nodes of the local substrate: real processes, pipes and terminals."""

from __future__ import annotations

import os
import signal
import subprocess

import pytest

from prefect_bt.host.processes import MARK_VARIABLE
from prefect_bt.substrates.local.shell import ENDED
from tests.host.mounts.test_namespace import exact
from tests.node_agent.rig import Rig, wait_line, wait_over, wait_until
from tests.node_shells import LOCAL, Terminal, list_processes_of, run_shell, shell_argv

SECRET = "very-secret-word-9"
HOLD = "echo ready; while [ ! -e end ]; do sleep 0.05; done"
"""A command that runs until the file `end` is in the workspace."""
TERMINATED = f"""
import os, signal, time
from prefect_bt.substrates.local import shell
start, end_all = shell._start, shell._end_all
def end_all_and_terminate(known):
    os.kill(os.getpid(), signal.SIGTERM)
    end_all(known)
shell._end_all = end_all_and_terminate
{LOCAL}"""
"""A shell that gets SIGTERM while it ends what its command has left."""
SIGNALLED = TERMINATED.replace(
    LOCAL,
    f"""
def start_and_hang_up(handle, entry):
    child = start(handle, entry)
    while not (handle.folder.path / "workspace/started").exists():
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGHUP)
    return child
shell._start = start_and_hang_up
{LOCAL}""",
)
"""One that also gets SIGHUP before it waits for its command."""


def launch(rig: Rig):
    environment = {
        "BT_SCRATCH_DIR": "/mnt/bt-scratch",
        "URL": f"http://user:{SECRET}@host",
        "LR": "3e-4",
    }
    handle = rig.launch(
        HOLD,
        environment=environment,
        secret_environment={"TOKEN": "tok", "SHORT": "short"},
        secrets={"tok": SECRET, "short": "s1"},
    )
    wait_line(handle, "ready")
    return handle


def variables(handle, **options: object) -> dict[str, str]:
    done = run_shell(handle, "env", **options)
    assert done.returncode == 0, done
    return dict(line.split("=", 1) for line in done.stdout.splitlines())


@exact
def test_a_command_has_the_view_and_the_variables_without_secrets(rig: Rig) -> None:
    handle = launch(rig)
    seen = variables(handle)
    assert (seen["LR"], seen["BT_SCRATCH_DIR"]) == ("3e-4", "/mnt/bt-scratch")
    assert seen.keys().isdisjoint({"TOKEN", "SHORT", "URL", MARK_VARIABLE})
    with_secrets = variables(handle, with_secrets=True)
    assert (with_secrets["TOKEN"], with_secrets["SHORT"]) == (SECRET, "s1")
    assert with_secrets["URL"].endswith("@host") and MARK_VARIABLE not in with_secrets
    done = run_shell(handle, "sh", "-c", "pwd; touch from-shell /mnt/bt-scratch/x; exit 7")
    assert (done.stdout, done.returncode) == ("/b10/workspace\n", 7)
    assert (handle.folder.path / "workspace/from-shell").exists()
    assert (handle.folder.path / "scratch/x").exists()


def test_a_node_without_a_view_has_its_mapped_paths(mapped_rig: Rig) -> None:
    handle = launch(mapped_rig)
    workspace = handle.folder.path / "workspace"
    assert run_shell(handle, "pwd").stdout == f"{workspace}\n"
    assert variables(handle)["BT_SCRATCH_DIR"] == str(handle.folder.path / "scratch")


@pytest.mark.parametrize(
    ("command", "typed", "shown", "code"),
    [
        (("cat",), "hi\n", "hi\n", 0),
        ((), "echo $((6 * 7)); exit 3\n", "42\n", 3),
        (("sh", "-c", "kill -KILL $$"), "", "", 137),
        (("no-such-program",), "", "", 127),
        (("/b10/workspace",), "", "", 126),
    ],
)
def test_pipes_and_exit_codes_are_those_of_the_command(
    mapped_rig: Rig, command: tuple[str, ...], typed: str, shown: str, code: int
) -> None:
    command = tuple(str(mapped_rig.state) if one.startswith("/b10") else one for one in command)
    done = run_shell(launch(mapped_rig), *command, typed=typed)
    assert (done.stdout, done.returncode) == (shown, code), done


@exact
def test_a_terminal_has_a_size_and_ctrl_c_and_is_restored(rig: Rig) -> None:
    terminal = Terminal(shell_argv(launch(rig)), PS1="> ")
    terminal.type("stty size; echo $TERM-$BT_SCRATCH_DIR\n")
    terminal.wait_for("30 100")
    terminal.wait_for("xterm-/mnt/bt-scratch")
    terminal.resize(20, 50)
    terminal.type("stty size; sleep 86413; echo after-$?\n")
    terminal.wait_for("20 50")
    wait_until(lambda: list_processes_of("86413"))
    terminal.type("\x03")
    terminal.type("echo code-$((128 + 2))\n")
    terminal.wait_for("code-130")
    terminal.type("stty raw -echo; exit 4\r")
    assert terminal.wait_end() == 4
    assert terminal.settings_now() == terminal.settings
    terminal.close()


@pytest.mark.parametrize("view", [pytest.param(True, marks=exact), False])
def test_a_shell_ends_with_the_commands_and_does_not_hold_the_node(
    request: pytest.FixtureRequest, view: bool
) -> None:
    rig: Rig = request.getfixturevalue("rig" if view else "mapped_rig")
    handle = launch(rig)
    word = f"wait-{os.getpid()}-{view}"
    script = f"trap '' HUP TERM; setsid sh -c 'while :; do sleep 1; done' {word} & echo in; cat"
    shell = subprocess.Popen(
        shell_argv(handle, "sh", "-c", script),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert shell.stdout is not None and shell.stdout.readline() == "in\n"
    wait_until(lambda: list_processes_of(word))
    (handle.folder.path / "workspace/end").touch()
    status = wait_over(handle)
    assert (status.exit_code, status.ended_processes) == (0, ())
    assert shell.wait(60) == 128 + signal.SIGKILL
    assert shell.stderr is not None and ENDED in shell.stderr.read()
    assert list_processes_of(word) == []


@pytest.mark.parametrize("killed", [None, signal.SIGTERM, signal.SIGHUP])
def test_nothing_outlives_a_shell(mapped_rig: Rig, killed: signal.Signals | None) -> None:
    handle, word = launch(mapped_rig), f"left-{os.getpid()}-{killed}"
    script = f"setsid sh -c 'while :; do sleep 1; done' {word} >/dev/null & echo in; "
    shell = subprocess.Popen(
        shell_argv(handle, "sh", "-c", script + ("cat" if killed else "sleep 0.3")),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert shell.stdout is not None and shell.stdout.readline() == b"in\n"
    wait_until(lambda: killed is None or list_processes_of(word))
    if killed:
        shell.send_signal(killed)
    assert shell.wait(60) == (128 + killed if killed else 0)
    wait_until(lambda: not list_processes_of(word))  # a killed process is listed until it is gone
    assert handle.observe().exit_code is None  # the node runs


@pytest.mark.parametrize(
    ("program", "last", "code"),
    [
        (SIGNALLED, "cat", 128 + signal.SIGHUP),
        (TERMINATED, "until [ -e started ]; do sleep 0.01; done", 0),
    ],
)
def test_nothing_outlives_a_shell_that_gets_signals_at_any_moment(
    mapped_rig: Rig, program: str, last: str, code: int
) -> None:
    handle, word = launch(mapped_rig), f"signalled-{os.getpid()}-{code}"
    script = f"setsid sh -c 'touch started; while :; do sleep 1; done' {word} & {last}"
    argv = shell_argv(handle, "sh", "-c", script, program=program)
    with subprocess.Popen(argv, stdin=subprocess.PIPE) as shell:
        assert shell.wait(60) == code
        assert list_processes_of(word) == []
