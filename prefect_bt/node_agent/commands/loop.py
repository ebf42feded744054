"""Run the start commands: one loop that reads their output, reaps, supervises and stops.

Commands share one pipe for both streams (node_agent.commands.runner), so that what a background
process of the first command prints while the second runs is logged too. The agent never waits for
the pipe's end: it stops reading when every process of the node is gone.
"""

from __future__ import annotations

import os
import select
import signal
import time
from typing import Final, NamedTuple

from prefect_bt.attempts.failure_causes import format_signal
from prefect_bt.host import processes
from prefect_bt.host.nodes.files import StatusFile
from prefect_bt.ledger.records import NodePhase
from prefect_bt.node_agent.activity_monitor import ActivityMonitor
from prefect_bt.node_agent.commands.runner import PIPE_BYTES, Runner
from prefect_bt.node_agent.commands.stop_signal import StopMonitor
from prefect_bt.node_agent.log_writer import LogFile, OutputLog
from prefect_bt.node_agent.upload_watchdog import UploaderProcess

POLL_INTERVAL: Final = 0.1
READ_BYTES: Final = 256 * 1024
MAX_READS_PER_POLL: Final = 8
MAX_READ_SECONDS: Final = 0.1
"""Longest time that one poll reads, in seconds. Lines of one byte take a hundred times as long as
others, and each poll checks once for a stop."""
COALESCE_SECONDS: Final = 0.01
"""Seconds in which output gathers in the pipe. A wake-up for every write would use a whole core."""
COALESCE_DIVISOR: Final = 8
"""A pipe that fills to an eighth within that time is read at once."""
BACKGROUND_MOMENT: Final = 0.5
"""Seconds in which a process that the commands left may end by itself."""
NAME_LIMIT: Final = 100
"""Characters of a command line that are shown."""
BACKGROUND_GRACE: Final = 5.0
"""Seconds that background processes have to leave once the last command has ended."""


class CommandsResult(NamedTuple):
    """`exit_code` is None when no command ran to an end."""

    exit_code: int | None = None
    signal: int | None = None
    oom_killed: bool = False
    ended_processes: tuple[str, ...] = ()
    """Command lines of the processes that still ran after the last command and were ended."""


class CommandContext(NamedTuple):
    """Objects that the loop uses."""

    log: LogFile
    output: OutputLog
    status: StatusFile
    stop_monitor: StopMonitor
    uploader: UploaderProcess | None
    activity: ActivityMonitor


class CommandLoop:
    """Runs the node's start commands, and ends the processes that they leave behind."""

    def __init__(self, context: CommandContext, runner: Runner) -> None:
        self._around, self._runner = context, runner
        self._little = runner.pipe_capacity // COALESCE_DIVISOR
        self._gathering = False
        self._poll = select.poll()
        self._poll.register(runner.output, select.POLLIN)
        self._wakeup = _open_signal_wakeup()
        self._poll.register(self._wakeup, select.POLLIN)
        self._wakeup_poll = select.poll()
        self._wakeup_poll.register(self._wakeup, select.POLLIN)

    def run(self, commands: tuple[str, ...]) -> CommandsResult:
        """Run the commands in order until one fails or a stop is requested; end all processes."""
        end = CommandsResult()
        for index, command in enumerate(commands):
            if self._around.stop_monitor.reason:
                break
            self._around.log.write_platform(
                f"start command {index + 1} of {len(commands)}: {command}"
            )
            end = self._run_one(index, command)
            if end.exit_code != 0:
                break
        ended = self._end_background_processes()
        self._drain()
        self._around.output.finish_line()
        return end._replace(ended_processes=ended)

    def run_once(self) -> None:
        """Wait for an event, at most POLL_INTERVAL, and handle it."""
        around = self._around
        if self._gathering:
            self._wakeup_poll.poll(COALESCE_SECONDS * 1000)
            self._gathering = False
        pause = POLL_INTERVAL / 2 if around.log.has_pending else POLL_INTERVAL
        ready = {descriptor for descriptor, _ in self._poll.poll(pause * 1000)}
        if self._wakeup in ready:
            _read_available(self._wakeup, 4096, max_reads=4)
        if self._runner.output in ready:
            self._read_output()
        processes.reap_children(self._on_child_exit)
        self._runner.poll()
        around.output.flush_partial_line()
        around.log.flush_if_due()
        around.stop_monitor.poll()
        around.status.save()
        around.activity.poll(self._runner)
        if around.uploader is not None:
            around.uploader.ensure_running()

    def _run_one(self, index: int, command: str) -> CommandsResult:
        around = self._around
        begun = around.status.status.started_at or time.time()
        try:
            self._runner.start(command)
        except OSError as error:  # an argument list that is too long, no more processes
            around.log.write_platform(f"start command {index + 1} could not be started: {error}")
            around.status.update(phase=NodePhase.RUNNING, command=index, started_at=begun)
            return CommandsResult(126)
        around.status.update(phase=NodePhase.RUNNING, command=index, started_at=begun)
        while self._runner.exit_status is None and not around.stop_monitor.reason:
            self.run_once()
        if around.stop_monitor.reason:
            self._stop_processes()
        self._drain()
        around.output.finish_line()
        return self._log_exit(index)

    def _log_exit(self, index: int) -> CommandsResult:
        ended = self._runner.exit_status
        if ended is None:
            return CommandsResult(128 + signal.SIGKILL, signal.SIGKILL)
        oom = self._runner.was_oom_killed() and not self._around.stop_monitor.force
        how = f"was ended by {format_signal(ended.signal)}" if ended.signal else ""
        how = how or f"exited with {ended.code}"
        cause = " (the kernel killed it for lack of memory)" if oom else ""
        self._around.log.write_platform(f"start command {index + 1} {how}{cause}")
        return CommandsResult(ended.code, ended.signal, oom)

    # -- ending what runs -------------------------------------------------------------------

    def _stop_processes(self) -> None:
        """Send SIGTERM to every group; wait until they end or the stop is forced."""
        watch = self._around.stop_monitor
        self._around.log.write_platform(f"stopping the commands: {watch.reason}")
        self._runner.terminate()
        while not watch.force and self._runner.list_processes():
            self.run_once()
        if self._runner.list_processes():
            self._around.log.write_platform("the commands did not exit in time and are killed")
        self._kill_processes()

    def _end_background_processes(self) -> tuple[str, ...]:
        """End the processes that the commands left; return the command lines of those that stay.

        Many programs leave one that ends by itself in a moment, as Python's resource tracker does.
        """
        moment = time.monotonic() + BACKGROUND_MOMENT
        while self._runner.list_processes() and time.monotonic() < moment:
            self.run_once()
            if self._around.stop_monitor.reason:
                break
        left = self._runner.list_processes()  # one may have ended since the look before the moment
        names = tuple(_format_command_line(process.pid) for process in left)
        if left:
            self._runner.terminate()
            deadline = time.monotonic() + BACKGROUND_GRACE
            while self._runner.list_processes() and time.monotonic() < deadline:
                self.run_once()
                if self._around.stop_monitor.force:
                    break
            shown = ", ".join(filter(None, dict.fromkeys(names)))
            count = f"{len(left)} background process{' was' if len(left) == 1 else 'es were'}"
            self._around.log.write_platform(f"{count} ended{shown and ': '}{shown}")
        self._kill_processes()
        return () if self._around.stop_monitor.reason else names

    def _kill_processes(self) -> None:
        self._runner.kill()
        processes.reap_children(self._on_child_exit)

    def _on_child_exit(self, pid: int, status: int) -> None:
        uploader = self._around.uploader
        if uploader is not None and pid == uploader.pid:
            uploader.on_exit(status)
        else:
            self._runner.on_child_exit(pid, status)

    # -- the pipe ---------------------------------------------------------------------------

    def _read_output(self) -> None:
        size, began = 0, time.monotonic()
        for _ in range(MAX_READS_PER_POLL):
            chunks = _read_available(self._runner.output, READ_BYTES, max_reads=1)
            for data in chunks:
                size += len(data)
                self._around.output.feed(data)
            if not chunks or time.monotonic() - began > MAX_READ_SECONDS:
                break
        self._gathering = 0 < size < self._little

    def _drain(self) -> None:
        """Read the pipe's content; bounded, because a background process may refill it."""
        for data in _read_available(
            self._runner.output, READ_BYTES, max_reads=4 * PIPE_BYTES // READ_BYTES
        ):
            self._around.output.feed(data)


def _format_command_line(pid: int) -> str:
    """Return the shortened command line; "" if the process is gone or in another container."""
    text = " ".join(processes.read_command_line(pid))
    return text if len(text) <= NAME_LIMIT else f"{text[: NAME_LIMIT - 1]}…"


def _read_available(descriptor: int, size: int, *, max_reads: int) -> list[bytes]:
    chunks: list[bytes] = []
    for _ in range(max_reads):
        try:
            chunk = os.read(descriptor, size)
        except BlockingIOError:
            break
        if not chunk:
            break
        chunks.append(chunk)
    return chunks


def _open_signal_wakeup() -> int:
    """Return a descriptor that becomes readable with every signal, also at a child's end."""
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    os.set_blocking(writing, False)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
    return reading
