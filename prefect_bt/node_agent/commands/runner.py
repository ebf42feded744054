"""Runners of start commands: a shell of this machine, or one in a container."""

from __future__ import annotations

import fcntl
import os
import signal
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final, NamedTuple, Protocol

from prefect_bt.host import processes
from prefect_bt.host.cgroup import count_oom_kills
from prefect_bt.host.connections import has_outside_peer, list_connections, list_socket_inodes
from prefect_bt.node_agent.commands.spawn import spawn
from prefect_bt.node_agent.sampling.usage import TreeMeter, UsageMeter

PIPE_BYTES: Final = 1024 * 1024

ProcessLister = Callable[[], list[processes.ProcessStat]]


class ExitStatus(NamedTuple):
    """A command's exit code as a shell gives it, and the signal that ended it, if any."""

    code: int
    signal: int | None = None


class Runner(Protocol):
    """Runs one command at a time. `output` is a descriptor from which their output is read."""

    output: int
    """Descriptor that does not block."""
    pipe_capacity: int
    """Capacity of the output's pipe, in bytes."""
    exit_status: ExitStatus | None
    """Exit status of the last command; None while it runs."""

    def start(self, command: str) -> None:
        """Start a command. Raises OSError."""
        ...

    def poll(self) -> None:
        """Update `exit_status`; called many times a second."""
        ...

    def on_child_exit(self, pid: int, status: int) -> None:
        """Handle the end of a child of this process."""
        ...

    def list_processes(self) -> list[processes.ProcessStat]:
        """Return the living processes of the commands."""
        ...

    def create_meter(self) -> UsageMeter:
        """Return a meter of what the commands use, for another thread."""
        ...

    def has_connections(self) -> bool:
        """Return whether the commands have an open connection to a process that is not theirs."""
        ...

    def terminate(self) -> None:
        """Send SIGTERM to every group of the commands."""
        ...

    def kill(self) -> None:
        """Send SIGKILL to every process of the commands until none is left.

        The caller collects the children that have ended: the uploader can be one of them.
        """
        ...

    def was_oom_killed(self) -> bool:
        """Return whether the kernel killed a process of the last command for lack of memory."""
        ...


class ShellRunner:
    """Runs `/bin/sh -c` on this machine, in our working directory and view."""

    def __init__(
        self,
        environment: Mapping[str, str],
        *,
        list_processes: ProcessLister,
        uploader_pid: Callable[[], int | None],
    ) -> None:
        self._environment, self._tree, self._uploader = environment, list_processes, uploader_pid
        self.output, self._writing = os.pipe()
        os.set_blocking(self.output, False)
        self.pipe_capacity = enlarge_pipe(self._writing)
        self._null = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        self._running: int | None = None
        self.exit_status: ExitStatus | None = None
        self._kills_before = count_oom_kills()

    def start(self, command: str) -> None:
        self.exit_status = None
        shell = ("/bin/sh", "-c", command)
        self._running = spawn(shell, self._environment, stdin=self._null, output=self._writing)

    def poll(self) -> None:
        """Do nothing: `on_child_exit` sets the exit status."""

    def on_child_exit(self, pid: int, status: int) -> None:
        if pid == self._running:
            self._running = None
            self.exit_status = ExitStatus(*processes.decode_wait_status(status))

    def list_processes(self) -> list[processes.ProcessStat]:
        return self._tree()

    def create_meter(self) -> UsageMeter:
        return TreeMeter()

    def has_connections(self) -> bool:
        sockets = list_socket_inodes(process.pid for process in self._tree())
        return has_outside_peer([one for one in list_connections() if one.inode in sockets])

    def terminate(self) -> None:
        uploader = self._uploader()
        spare = {os.getpgrp(), *([uploader] if uploader else [])}
        processes.terminate_groups(self._tree(), exclude=spare)

    def kill(self) -> None:
        processes.kill_until_gone(lambda: [process.pid for process in self._tree()])

    def was_oom_killed(self) -> bool:
        kills = count_oom_kills()
        counted = None not in (kills, self._kills_before) and kills != self._kills_before
        killed = self.exit_status is not None and self.exit_status.code == 128 + signal.SIGKILL
        return counted and killed


def enlarge_pipe(pipe: int) -> int:
    """Enlarge the pipe; return its capacity in bytes."""
    with suppress(OSError, AttributeError):
        return fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    return 64 * 1024  # the default works, with more waiting
