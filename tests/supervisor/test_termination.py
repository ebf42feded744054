"""SIGTERM for the parent of a job's flow, whenever it comes."""

import os
import signal
import subprocess
from collections.abc import Iterator

import pytest

from prefect_bt.supervisor.process import TerminationSignal


@pytest.fixture
def termination() -> Iterator[TerminationSignal]:
    before = signal.getsignal(signal.SIGTERM)
    yield TerminationSignal()
    signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize("early", [True, False])
def test_it_is_forwarded_to_a_process_that_has_or_has_not_started(
    termination: TerminationSignal, early: bool
) -> None:
    if early:
        os.kill(os.getpid(), signal.SIGTERM)
        assert termination.is_requested
    with subprocess.Popen(["sleep", "3000"]) as process:
        termination.forward_to(process)
        if not early:
            os.kill(os.getpid(), signal.SIGTERM)
        assert process.wait(60) == -signal.SIGTERM
