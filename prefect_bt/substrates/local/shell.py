"""Run a command in a node of this machine, beside the node's own commands.

The process has the view and the variables of the commands, but not the node's mark, and it is no
descendant of the agent. So the agent neither waits for it nor counts it as activity. It ends with
the commands, and nothing that it started outlives it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from typing import Final, NamedTuple

from prefect_bt import codec
from prefect_bt.credentials.redaction import Redactor
from prefect_bt.errors import SubstrateError
from prefect_bt.host import processes, syscalls
from prefect_bt.host.nodes import enter_view
from prefect_bt.host.nodes.enter_view import EntryRequest
from prefect_bt.host.nodes.files import read_record
from prefect_bt.host.nodes.handle import HostHandle, is_node_process
from prefect_bt.host.processes import MARK_VARIABLE
from prefect_bt.host.state_folder import NodeRecord
from prefect_bt.host.terminal import (
    ShellRequest,
    ended_by_signals,
    ignore_end_signals,
    restored_terminal,
    terminal_variables,
)
from prefect_bt.planning.plan import NodePlan

SEARCH_SECONDS: Final = 5.0
"""Longest wait for a process of the commands: between two commands there is none."""
HANGUP_SECONDS: Final = 2.0
"""Seconds from SIGHUP to SIGKILL when the commands have ended."""
ENDED: Final = "The commands of the node have ended, and the shell with them."
_CHECK_INTERVAL: Final = 0.5


class _NodeProcesses(NamedTuple):
    """Processes of a node: its agent, and one that the agent started for a command."""

    agent: int
    command: int


def run_shell(handle: HostHandle, request: ShellRequest) -> int:
    """Run the request with this process's terminal; return the exit code. SubstrateError."""
    plan, record = (
        read_record(NodePlan, handle.folder.plan),
        read_record(NodeRecord, handle.folder.record),
    )
    if plan is None or record is None:
        raise _error(handle, "its files cannot be read", "Use the account that runs the job.")
    found = _find_processes(handle, record)
    view = found.agent if _has_view(handle, found.agent) else 0
    workspace = plan.workspace.directory if view else str(handle.folder.path / "workspace")
    environment = _build_environment(plan, found.command, request)
    entry = EntryRequest(view, workspace, environment, request.command)
    with ended_by_signals(), restored_terminal(), _quiet_interrupts(), _adopted_processes():
        return _wait(handle, _start(handle, entry))


def _find_processes(handle: HostHandle, record: NodeRecord) -> _NodeProcesses:
    deadline = time.monotonic() + SEARCH_SECONDS
    while True:
        marked = processes.find_marked_processes(
            record.mark, handle.folder.root, exclude_uploader=True
        )
        parents = {pid: processes.read_parent(pid) for pid in marked}
        ours = [pid for pid in marked if is_node_process(pid)]
        agents = [pid for pid in ours if parents[pid] in ours] or ours
        commands = [pid for pid in marked if pid not in ours and parents[pid] in agents]
        if commands:
            first = min(commands, key=processes.read_start_time)
            return _NodeProcesses(parents[first], first)
        if time.monotonic() > deadline:
            raise _error(handle, "no command runs in it", "Try again, or look at its log.")
        time.sleep(0.1)


def _has_view(handle: HostHandle, agent: int) -> bool:
    with suppress(OSError):
        return handle.folder.root.samefile(f"/proc/{agent}/root")
    return False


def _build_environment(plan: NodePlan, command: int, request: ShellRequest) -> dict[str, str]:
    """Return the variables of the command, without the node's mark and without secrets."""
    variables = processes.read_environment(command)
    secrets = [variables[name] for name in plan.secret_environment if name in variables]
    redact = Redactor(secrets)
    kept = {
        name: value
        for name, value in variables.items()
        if name != MARK_VARIABLE
        and (request.with_secrets or not _is_secret(name, value, plan, secrets, redact))
    }
    return {**kept, **terminal_variables()}


def _is_secret(name: str, value: str, plan: NodePlan, secrets: list[str], redact: Redactor) -> bool:
    return name in plan.secret_environment or value in secrets or redact(value) != value


def _start(handle: HostHandle, entry: EntryRequest) -> subprocess.Popen[bytes]:
    """Start the command; return when it runs. SubstrateError."""
    reading, request = os.pipe()
    failure, errors = os.pipe()
    try:
        words = [sys.executable, "-P", "-m", enter_view.__name__, str(reading), str(errors)]
        child = subprocess.Popen(
            words, env=enter_view.build_own_environment(), pass_fds=(reading, errors)
        )
    finally:
        os.close(reading)
        os.close(errors)
    with os.fdopen(request, "wb") as file, suppress(BrokenPipeError):
        file.write(codec.dumps(entry).encode())
    with os.fdopen(failure, "rb") as file:
        why = file.read().decode(errors="replace")
    if why:
        child.wait()
        raise _error(
            handle,
            f"its folders cannot be entered: {why}",
            "Use the account that runs the job, or root, outside of a container.",
        )
    return child


def _wait(handle: HostHandle, child: subprocess.Popen[bytes]) -> int:
    while True:
        with suppress(subprocess.TimeoutExpired):
            code = child.wait(_CHECK_INTERVAL)
            return 128 - code if code < 0 else code
        if handle.observe().commands_ended:
            sys.stderr.write(f"\r\n{ENDED}\r\n")
            with suppress(ProcessLookupError):
                os.kill(child.pid, signal.SIGHUP)
                os.kill(child.pid, signal.SIGCONT)
            with suppress(subprocess.TimeoutExpired):
                child.wait(HANGUP_SECONDS)
            child.kill()


@contextmanager
def _adopted_processes() -> Generator[None]:
    """Become the parent of what the command leaves behind; at the end, kill all of it."""
    known = {process.pid for process in processes.list_descendants(os.getpid())}
    syscalls.set_subreaper()
    try:
        yield
    finally:
        try:
            ignore_end_signals()
        finally:  # also if one of them has just come
            _end_all(known)
            syscalls.set_subreaper(enabled=False)


def _end_all(known: set[int]) -> None:
    def look() -> list[int]:
        return [p.pid for p in processes.list_descendants(os.getpid(), exclude=known)]

    def find() -> list[int]:
        # Twice: a child whose parent dies during a look is below nobody in that look.
        return look() or look()

    processes.kill_until_gone(find, reap=lambda: _reap(find()))


def _reap(children: list[int]) -> None:
    for pid in children:
        with suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)


@contextmanager
def _quiet_interrupts() -> Generator[None]:
    """Leave Ctrl-C to the command, which inherits no handler, as it would SIG_IGN."""

    def ignore(_number: int, _frame: object) -> None: ...

    before = {number: signal.signal(number, ignore) for number in (signal.SIGINT, signal.SIGQUIT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _error(handle: HostHandle, why: str, next_step: str) -> SubstrateError:
    return SubstrateError(
        f"No shell can be opened in rank {handle.rank} of job {handle.job.job_id}: {why}.",
        substrate=handle.substrate,
        rank=handle.rank,
        next_step=next_step,
    )
