"""The parent of a detached job's flow: it starts the flow, and starts it again after a crash.

jobs.starting.launcher runs `python -m prefect_bt.supervisor.process JOB_ID` with a socket as
standard input; the id is for lists of processes. The flow's process is started at once, to import
Prefect while the job is being made. Then this process receives the job and the job's lock, and
passes both on. Both processes hold the lock, so the nodes of a killed flow stay owned until the
flow runs again. This process does not import Prefect, to stay small.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from types import FrameType
from typing import IO

TAIL_BYTES = 2000


@dataclass(frozen=True)
class JobHandoff:
    """The message of jobs.starting.launcher (JSON), and the descriptor of the locked file."""

    message: bytes
    lock: int


class TerminationSignal:
    """Forwards SIGTERM to the flow's process, and remembers it."""

    def __init__(self) -> None:
        self.is_requested = False
        self._process: subprocess.Popen[bytes] | None = None
        signal.signal(signal.SIGTERM, self._handle_sigterm)

    def forward_to(self, process: subprocess.Popen[bytes]) -> None:
        """Forward the signal to this process from now on, also one that came before it started."""
        self._process = process
        if self.is_requested:
            process.terminate()

    def _handle_sigterm(self, number: int, frame: FrameType | None) -> None:
        _ = number, frame
        self.is_requested = True
        if self._process is not None:
            self._process.terminate()


class FlowProcess:
    """A process that runs supervisor.run_flow and waits for a handoff; it prints to `output`."""

    def __init__(self, output: IO[bytes]) -> None:
        self._socket, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "prefect_bt.supervisor.run_flow", *sys.argv[1:]],
                stdin=theirs.fileno(),
                stdout=output,
                stderr=output,
            )

    def run(self, job: JobHandoff, termination: TerminationSignal) -> int:
        """Send the job, and return the exit code, negative for a signal."""
        termination.forward_to(self._process)
        with suppress(OSError):  # it is dead, as its exit code tells
            socket.send_fds(self._socket, [job.message], [job.lock])
        return self._process.wait()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


def receive_handoff(source: socket.socket) -> JobHandoff | None:
    """Return the job that the other side sends; None if it closed the socket."""
    message, descriptors, _, _ = socket.recv_fds(source, 1 << 16, 1)
    return JobHandoff(message, descriptors[0]) if message and descriptors else None


def main() -> int:
    """Return 0 if the job completed, or if none was received."""
    with tempfile.TemporaryFile() as output:
        flow = FlowProcess(output)
        handoff = receive_handoff(socket.socket(fileno=os.dup(0)))
        if handoff is None:
            flow.kill()
            return 0
        os.set_inheritable(handoff.lock, False)
        return _supervise(flow, handoff, output)


def _supervise(flow: FlowProcess, handoff: JobHandoff, output: IO[bytes]) -> int:
    """Run the flow until its job is over or no restart is left; return the exit code."""
    started, termination = time.monotonic(), TerminationSignal()
    code = flow.run(handoff, termination)
    # Imported only now: while the flow starts, it needs the processor.
    from prefect_bt.supervisor.supervised_job import API_UNREACHABLE, RestartPolicy, SupervisedJob

    job, restarts = SupervisedJob(handoff.message, handoff.lock), RestartPolicy()
    while job.is_owned(code):
        job.clear_flow()
        uptime = time.monotonic() - started
        if job.is_finished or job.is_on_other_machine:
            break
        if code == API_UNREACHABLE and not job.wait_for_api(lambda: termination.is_requested):
            break
        delay = restarts.next_delay(code, uptime)
        if delay is None or termination.is_requested:
            break
        time.sleep(delay)
        if termination.is_requested:
            break
        started = time.monotonic()
        code = FlowProcess(output).run(handoff, termination)
    else:
        return job.exit_code  # the flow released the job
    output.seek(0)
    stopped_by = "SIGTERM" if termination.is_requested else ""
    job.finalize(output.read()[-TAIL_BYTES:], stopped_by=stopped_by)
    if code not in {0, 1} and not job.is_on_other_machine:
        job.report_end()
    return job.exit_code


if __name__ == "__main__":
    sys.exit(main())
