"""Start commands in a container of this machine by orders to its first process.

Orders and reports go through pipes (host.nodes.container_pipes), and not through the Engine, which
may be down or restart while its containers live. The end of the container is noticed by the end of
its first process, which is also a process of this machine.

The commands are root in the container and may read, fill and forge every pipe. No call waits for
one of them without a limit. A container that violates the protocol
(node_agent.commands.container_reports), or does not end when requested, is ended by SIGKILL to its
first process.
"""

from __future__ import annotations

import os
import platform
import select
import shlex
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from prefect_bt.host import processes
from prefect_bt.host.cgroup import count_oom_kills
from prefect_bt.host.connections import has_outside_peer, list_connections
from prefect_bt.host.nodes.container_pipes import (
    READY,
    ContainerRecord,
    Pipes,
    format_order,
    format_set_variable,
    kill_container,
    signal_all,
)
from prefect_bt.node_agent.commands.container_reports import ReportReader
from prefect_bt.node_agent.commands.runner import ExitStatus, enlarge_pipe
from prefect_bt.node_agent.sampling.usage import ContainerMeter, UsageMeter

READY_TIMEOUT: Final = 60.0
"""Seconds for an image's shell to start, which a busy disk has to load."""
EXIT_TIMEOUT: Final = 5.0
CHOWN_TIMEOUT: Final = 60.0
"""Seconds to change the owner of files of a plain user's job."""
KILL_TIMEOUT: Final = 10.0
KILLED_STATUS: Final = ExitStatus(128 + signal.SIGKILL, signal.SIGKILL)
"""Exit of a command whose container is gone: the kernel kills its processes."""


class ContainerRunner:
    """A Runner (node_agent.commands.runner). It is not used before `wait_until_ready` returned."""

    ready_timeout: float | None = READY_TIMEOUT

    def __init__(
        self,
        record: ContainerRecord,
        pipes: Pipes,
        *,
        should_continue: Callable[[], bool] = lambda: True,
    ) -> None:
        """`should_continue` is called during each wait; False ends the wait."""
        self.record, self._pipes, self._look = record, pipes, should_continue
        self.output = pipes.output
        self.pipe_capacity = enlarge_pipe(pipes.output)
        self.exit_status: ExitStatus | None = None
        self.gone = self._closed = False
        self.ended_by_us = False
        """Whether we killed its first process."""
        self._first = _open_pidfd(record)
        self._own: list[int] = []
        self._waiting = b""
        self._reports = ReportReader(pipes.reports)
        self._kills_before: int | None = None

    @property
    def protocol_error(self) -> str:
        """Return how the container broke the protocol; "" while it keeps to it."""
        return self._reports.broken

    def wait_until_ready(self, variables: Mapping[str, str]) -> None:
        """Wait for its first process, then send the variables.

        Raises ContainerStartError, ContainerProtocolError.
        """
        if self._wait_for_reply(self.ready_timeout) != READY:
            if not self._look():
                return
            if self.gone:
                raise ContainerStartError(
                    "its container ended before a command could run in it: its image needs a POSIX "
                    f"/bin/sh for this machine's processor ({platform.machine()})"
                )
            raise ContainerStartError(
                f"the image's /bin/sh did not begin within {READY_TIMEOUT:.0f} s"
            )
        self._record_idle_state()
        for name, value in variables.items():
            self._send(format_set_variable(name, value))

    @property
    def workdir(self) -> str | None:
        """Return the image's own WORKDIR; None if only its first process knows it."""
        return self.record.workdir

    def _record_idle_state(self) -> None:
        """Record what is in the container before any command."""
        self._own = [process.pid for process in processes.list_descendants(self.record.pid)]
        self._kills_before = self._count_oom_kills()

    def prepare_workdir(self, verb: str, place: str) -> None:
        """Copy or link (`verb`) `place` to where commands start.

        Raises ContainerStartError, ContainerProtocolError.
        """
        self._send_request(format_order(verb, place))
        answer = self._wait_for_reply(None)
        if answer not in {"0", ""} and not self.gone:
            tool = {"copy": "cp", "link": "ln"}[verb]
            why = ": ".join([f"exit code {answer}", *self._last_output_line()])
            raise ContainerStartError(f"the image's `{tool}` could not {verb} {place} ({why})")

    def start(self, command: str) -> None:
        self.exit_status = KILLED_STATUS if self.gone or self.protocol_error else None
        self._send_request(format_order("run", command))

    def poll(self) -> None:
        if self._waiting:
            self._flush_orders()
        self._read_reports()
        if self.exit_status is None and (word := self._reports.next_report()) is not None:
            self.exit_status = _parse_exit_code(word)
        if self.protocol_error and not self.gone:
            self._kill_first_process()
        if (self.gone or self.protocol_error) and self.exit_status is None:
            self.exit_status = KILLED_STATUS

    def on_child_exit(self, pid: int, status: int) -> None:
        """Do nothing: the commands are not children of this process."""

    def list_processes(self) -> list[processes.ProcessStat]:
        self._update_liveness()
        if self.gone:  # its pid may belong to another process
            return []
        return processes.list_descendants(self.record.pid, exclude=self._own)

    def create_meter(self) -> UsageMeter:
        return ContainerMeter(self.record.pid, self.record.gpus)

    def has_connections(self) -> bool:
        """Return whether there is one in its network namespace, which is the container's own."""
        return has_outside_peer(list_connections(self.record.pid))

    def terminate(self) -> None:
        signal_all(self._pipes, signal.SIGTERM)

    def kill(self) -> None:
        deadline = time.monotonic() + KILL_TIMEOUT
        while (left := self.list_processes()) and time.monotonic() < deadline:
            signal_all(self._pipes, signal.SIGKILL)
            for process in left:  # a command may have killed the listener
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(process.pid, signal.SIGKILL)
            time.sleep(0.02)
            self._read_reports()
        if left:  # they fork faster than they are killed
            self._kill_first_process()
        self._wait_for_exit_code()

    def was_oom_killed(self) -> bool:
        """Return whether any process was killed: a launcher's exit may hide its worker's."""
        kills = self._count_oom_kills()
        counted = None not in (kills, self._kills_before) and kills != self._kills_before
        return counted and self.exit_status is not None and self.exit_status.code != 0

    def close(self, written: Sequence[str] = ()) -> None:
        """End the container. Idempotent.

        `written`: folders in it whose files of root are given to this user, who cannot delete
        root's.
        """
        if self._closed:
            return
        self._closed = True
        if written and os.geteuid() and not self.gone:
            self._send_request(self._handover_order(written))
            self._look = lambda: True  # a stop was handled before: only the time limit applies
            with suppress(ContainerProtocolError):
                self._wait_for_reply(CHOWN_TIMEOUT)
        self._send(format_order("end"))
        self._wait_for_exit()
        if not self.gone:  # another process in it read the order
            self._kill_first_process()

    def _handover_order(self, written: Sequence[str]) -> bytes:
        places = " ".join(map(shlex.quote, written))
        return format_order("run", f"chown -hR {os.geteuid()}:{os.getegid()} {places}")

    def _wait_for_exit(self) -> None:
        deadline = time.monotonic() + EXIT_TIMEOUT
        while not self.gone and time.monotonic() < deadline:
            self._flush_orders()
            select.select([] if self._first is None else [self._first], [], [], 0.05)
            self._update_liveness()

    def _kill_first_process(self) -> None:
        """Kill the first process; the kernel then kills all others.

        An unprivileged user may not: then the listener gets the signal, and DockerHandle has the
        Engine remove the container.
        """
        self._update_liveness()
        if self.gone:
            return
        with suppress(ProcessLookupError, PermissionError):
            if self._first is not None:
                signal.pidfd_send_signal(self._first, signal.SIGKILL)
            else:
                os.kill(self.record.pid, signal.SIGKILL)
            self.ended_by_us = True
            self._wait_for_exit()
        kill_container(self._pipes)

    def _wait_for_exit_code(self) -> None:
        """Wait for the report of a killed command, which follows the end of its last process."""
        deadline = time.monotonic() + 1
        while self.exit_status is None and time.monotonic() < deadline:
            self._wait_for_report(0.02)
            self.poll()

    def _wait_for_reply(self, seconds: float | None) -> str:
        """Return the next report; "" after the time limit, or if the wait was ended.

        Raises ContainerProtocolError.
        """
        deadline = None if seconds is None else time.monotonic() + seconds
        word = self._reports.next_report()
        while word is None and not self.gone and self._look():
            if deadline is not None and time.monotonic() > deadline:
                break
            self._flush_orders()
            self._wait_for_report(0.02)
            self._read_reports()
            word = self._reports.next_report()
            if word is None and self.protocol_error:
                self._kill_first_process()
                raise ContainerProtocolError(self.protocol_error)
        return word or ""

    def _send_request(self, line: bytes) -> None:
        """Send an order that is answered with an exit code."""
        self._reports.expect_exit_code()
        self._send(line)

    def _send(self, line: bytes) -> None:
        self._waiting += line
        self._flush_orders()

    def _flush_orders(self) -> None:
        """Write as much as the pipe accepts now."""
        try:
            while self._waiting:
                written = os.write(self._pipes.orders, self._waiting[: select.PIPE_BUF])
                self._waiting = self._waiting[written:]
        except BlockingIOError:
            return

    def _read_reports(self) -> None:
        self._reports.read()
        self._update_liveness()

    def _wait_for_report(self, seconds: float) -> None:
        """Wait for a report, `seconds` at most."""
        select.select([] if self.protocol_error else [self._pipes.reports], [], [], seconds)
        self._update_liveness()

    def _update_liveness(self) -> None:
        self.gone = self.gone or not _is_alive(self._first, self.record)

    def _last_output_line(self) -> list[str]:
        """Return the last line of the output; "" without output."""
        try:
            return os.read(self.output, 4096).decode(errors="replace").split("\n")[:-1][-1:]
        except BlockingIOError:
            return []

    def _count_oom_kills(self) -> int | None:
        try:
            own = Path(f"/proc/{self.record.pid}/cgroup").read_text()
        except OSError:
            return self._kills_before
        return count_oom_kills(membership=own)


class ContainerStartError(Exception):
    """Error: the container cannot run the commands; the message says why."""


class ContainerProtocolError(ContainerStartError):
    """Error: something in the container broke the protocol before the commands ran."""


def _open_pidfd(record: ContainerRecord) -> int | None:
    """Return a descriptor of the container's first process; None if that process has ended."""
    try:
        descriptor = os.pidfd_open(record.pid)
    except OSError:
        return None
    if record.process.is_alive:
        return descriptor
    os.close(descriptor)
    return None


def _is_alive(descriptor: int | None, record: ContainerRecord) -> bool:
    if descriptor is not None:
        return not select.select([descriptor], [], [], 0)[0]
    return record.process.is_alive


def _parse_exit_code(text: str) -> ExitStatus:
    """Convert `$?` of the container's shell: above 128 it usually is a signal's number."""
    code = int(text)
    number = code - 128
    return ExitStatus(code, number if number in set(signal.Signals) else None)
