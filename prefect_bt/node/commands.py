"""Running the start commands: one loop that reads their output, reaps, supervises and stops.

Commands share one pipe for both streams (node.runner), so that what a background process of the
first command prints while the second runs is logged too. The agent never waits for the pipe's end:
it stops reading when every process of the node is gone.
"""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Callable
from typing import Final, NamedTuple

from prefect_bt.diagnosis import signal_name
from prefect_bt.host import processes
from prefect_bt.host.files import StatusFile
from prefect_bt.node.activity import Activity
from prefect_bt.node.logfile import LogFile, OutputLog
from prefect_bt.node.runner import PIPE_BYTES, Runner
from prefect_bt.node.stopping import StopWatch
from prefect_bt.node.uploader import Uploader
from prefect_bt.records import NodePhase

TICK: Final = 0.1
READ_BYTES: Final = 256 * 1024
READS_A_TURN: Final = 8
READING_A_TURN: Final = 0.1
"""Longest time that a turn reads, in seconds. Lines of one byte each take a hundred times as long
as others, and a stop is looked for once a turn."""
GATHER: Final = 0.01
"""Seconds in which output gathers in the pipe. A look at every write would cost a core."""
GATHER_SHARE: Final = 8
"""A pipe that is filled faster than to an eighth of it in that time is read at once."""
LEFTOVER_GRACE: Final = 5.0
"""Seconds that background processes have to leave once the last command has ended."""
EXIT_NOT_STARTED: Final = 125
"""As `docker run` and `timeout` say that the command itself never ran."""


class CommandsEnd(NamedTuple):
    """`exit_code` is None when no command ran to an end."""

    exit_code: int | None = None
    signal: int | None = None
    oom: bool = False


class Surroundings(NamedTuple):
    """What the loop talks to."""

    log: LogFile
    output: OutputLog
    status: StatusFile
    watch: StopWatch
    uploader: Uploader | None
    activity: Activity


class Commands:
    """The node's start commands and everything they leave behind."""

    def __init__(self, around: Surroundings, runner: Runner) -> None:
        self._around, self._runner = around, runner
        self._little = runner.pipe_bytes // GATHER_SHARE
        self._gathering = False
        self._poll = select.poll()
        self._poll.register(runner.output, select.POLLIN)
        self._wakeup = _wake_on_signals()
        self._poll.register(self._wakeup, select.POLLIN)
        self._wakeup_poll = select.poll()
        self._wakeup_poll.register(self._wakeup, select.POLLIN)

    def run(self, commands: tuple[str, ...]) -> CommandsEnd:
        """All of them in order, until one fails or somebody stops them; nothing is left running."""
        end = CommandsEnd()
        for index, command in enumerate(commands):
            if self._around.watch.reason:
                break
            self._around.log.platform(f"start command {index + 1} of {len(commands)}: {command}")
            end = self._run_one(index, command)
            if end.exit_code != 0:
                break
        self._end_tree()
        self._drain()
        self._around.output.end_line()
        return end

    def turn(self) -> None:
        """Wait for something to happen, at most a tick, and see to it."""
        around = self._around
        if self._gathering:
            self._wakeup_poll.poll(GATHER * 1000)
            self._gathering = False
        pause = TICK / 2 if around.log.waiting else TICK
        ready = {descriptor for descriptor, _ in self._poll.poll(pause * 1000)}
        if self._wakeup in ready:
            _read_all(self._wakeup, 4096, turns=4)
        if self._runner.output in ready:
            self._read_output()
        processes.reap_children(self._note_end)
        self._runner.turn()
        around.output.tick()
        around.log.tick()
        around.watch.look()
        around.status.save()
        around.activity.tick()
        if around.uploader is not None:
            around.uploader.supervise()

    def _run_one(self, index: int, command: str) -> CommandsEnd:
        around = self._around
        begun = around.status.status.started_at or time.time()
        try:
            self._runner.start(command)
        except OSError as error:  # an argument list that is too long, no more processes
            around.log.platform(f"start command {index + 1} could not be started: {error}")
            around.status.update(phase=NodePhase.RUNNING, command=index, started_at=begun)
            return CommandsEnd(126)
        around.status.update(phase=NodePhase.RUNNING, command=index, started_at=begun)
        self._until(lambda: self._runner.ended is not None)
        if around.watch.reason:
            self._stop_tree()
        self._drain()
        around.output.end_line()
        return self._say_end(index)

    def _until(self, condition: Callable[[], bool]) -> None:
        while not condition() and not self._around.watch.reason:
            self.turn()

    def _say_end(self, index: int) -> CommandsEnd:
        ended = self._runner.ended
        if ended is None:
            return CommandsEnd(128 + signal.SIGKILL, signal.SIGKILL)
        oom = self._runner.killed_for_memory() and not self._around.watch.force
        how = f"was ended by {signal_name(ended.signal)}" if ended.signal else ""
        how = how or f"exited with {ended.code}"
        cause = " (the kernel killed it for lack of memory)" if oom else ""
        self._around.log.platform(f"start command {index + 1} {how}{cause}")
        return CommandsEnd(ended.code, ended.signal, oom)

    # -- ending what runs -------------------------------------------------------------------

    def _stop_tree(self) -> None:
        """The polite signal to every group, then as long as it takes, or until it is forced."""
        watch = self._around.watch
        self._around.log.platform(f"stopping the commands: {watch.reason}")
        self._runner.terminate()
        while not watch.force and self._runner.tree():
            self.turn()
        if self._runner.tree():
            self._around.log.platform("the commands did not leave in time and are killed")
        self._kill_tree()

    def _end_tree(self) -> None:
        """What the last command left in the background."""
        left = self._runner.tree()
        if left:
            self._runner.terminate()
            deadline = time.monotonic() + LEFTOVER_GRACE
            while self._runner.tree() and time.monotonic() < deadline:
                self.turn()
                if self._around.watch.force:
                    break
            self._around.log.platform(f"{len(left)} background processes were ended")
        self._kill_tree()

    def _kill_tree(self) -> None:
        self._runner.kill()
        processes.reap_children(self._note_end)

    def _note_end(self, pid: int, status: int) -> None:
        uploader = self._around.uploader
        if uploader is not None and pid == uploader.pid:
            uploader.ended(status)
        else:
            self._runner.note_end(pid, status)

    # -- the pipe ---------------------------------------------------------------------------

    def _read_output(self) -> None:
        size, began = 0, time.monotonic()
        for _ in range(READS_A_TURN):
            chunks = _read_all(self._runner.output, READ_BYTES, turns=1)
            for data in chunks:
                size += len(data)
                self._around.output.feed(data)
            if not chunks or time.monotonic() - began > READING_A_TURN:
                break
        self._gathering = 0 < size < self._little

    def _drain(self) -> None:
        """What is in the pipe now; a background process may fill it again, hence a bound."""
        for data in _read_all(self._runner.output, READ_BYTES, turns=4 * PIPE_BYTES // READ_BYTES):
            self._around.output.feed(data)


def _read_all(descriptor: int, size: int, *, turns: int) -> list[bytes]:
    chunks: list[bytes] = []
    for _ in range(turns):
        try:
            chunk = os.read(descriptor, size)
        except BlockingIOError:
            break
        if not chunk:
            break
        chunks.append(chunk)
    return chunks


def _wake_on_signals() -> int:
    """A descriptor that becomes readable with every signal, the end of a child among them."""
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    os.set_blocking(writing, False)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
    return reading
