"""The parent of a detached job's flow: starts it, and starts it again if something kills it.

`python -m prefect_bt.supervisor.process JOB_ID`, started by prefect_bt.jobs.start with a socket for
standard input; the id is for lists of processes. It starts the flow's process at once, so that this
one imports Prefect while the job is still being made; then it is handed the job and the job's lock,
and passes both on. Holding the lock together with the flow's process, it keeps the nodes of a
killed flow owned until the next attempt has put them away. It imports nothing of Prefect: it is
small.
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
    """The job as the pusher described it (JSON), and its lock, held by this open file."""

    message: bytes
    lock: int


class TerminationSignal:
    """SIGTERM to this process: passed on to the flow's, and remembered while there is none."""

    def __init__(self) -> None:
        self.is_requested = False
        self.process: subprocess.Popen[bytes] | None = None
        signal.signal(signal.SIGTERM, self._handle_sigterm)

    def _handle_sigterm(self, number: int, frame: FrameType | None) -> None:
        _ = number, frame
        self.is_requested = True
        if self.process is not None:
            self.process.terminate()


class FlowProcess:
    """One process that runs supervisor.run_flow; it waits for a handover.

    `output` takes what it says.
    """

    def __init__(self, output: IO[bytes]) -> None:
        self._socket, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "prefect_bt.supervisor.run_flow", *sys.argv[1:]],
                stdin=theirs.fileno(),
                stdout=output,
                stderr=output,
            )

    def run(self, job: JobHandoff, ending: TerminationSignal) -> int:
        """Its exit status; negative when a signal ended it. SIGTERM to us is passed on."""
        ending.process = self._process
        with suppress(OSError):  # it is dead: its exit status says how
            socket.send_fds(self._socket, [job.message], [job.lock])
        return self._process.wait()

    def kill(self) -> None:
        """No job came."""
        self._process.kill()
        self._process.wait()


def receive_handoff(source: socket.socket) -> JobHandoff | None:
    """What the other side hands over; None when it left."""
    message, descriptors, _, _ = socket.recv_fds(source, 1 << 16, 1)
    return JobHandoff(message, descriptors[0]) if message and descriptors else None


def main() -> int:
    """0 when the job completed, or none came."""
    with tempfile.TemporaryFile() as output:
        flow = FlowProcess(output)
        job = receive_handoff(socket.socket(fileno=os.dup(0)))
        if job is None:
            flow.kill()
            return 0
        os.set_inheritable(job.lock, False)
        began, ending = time.monotonic(), TerminationSignal()
        code = flow.run(job, ending)
        # Only now: while the flow starts, the processor is better left to it.
        from prefect_bt.supervisor.supervised_job import (
            API_UNREACHABLE,
            RestartPolicy,
            SupervisedJob,
        )

        kept, starts = SupervisedJob(job.message, job.lock), RestartPolicy()
        while kept.is_owned(code):
            kept.clear_flow()
            lived = time.monotonic() - began
            if kept.is_finished or kept.is_on_other_machine:
                break
            if code == API_UNREACHABLE and not kept.wait_for_api(lambda: ending.is_requested):
                break
            pause = starts.next_delay(code, lived)
            if pause is None or ending.is_requested:
                break
            time.sleep(pause)
            began = time.monotonic()
            code = FlowProcess(output).run(job, ending)
        else:
            return kept.exit_code  # the flow put the job away
        output.seek(0)
        kept.finalize(
            output.read()[-TAIL_BYTES:], stopped_by="SIGTERM" if ending.is_requested else ""
        )
        if code not in {0, 1} and not kept.is_on_other_machine:
            kept.report_end()
        return kept.exit_code


if __name__ == "__main__":
    sys.exit(main())
