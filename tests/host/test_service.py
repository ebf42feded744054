"""Starts of background services that are interrupted."""

import signal
import subprocess
from pathlib import Path

import pytest

from prefect_bt.host.service import wait_until_ready


def test_service_that_is_not_ready_ends_with_its_interrupted_start(tmp_path: Path) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    with subprocess.Popen(["sleep", "3000"]) as process:
        with pytest.raises(KeyboardInterrupt):
            wait_until_ready("server", process, interrupt, log=tmp_path / "log")
        assert process.wait(60) == -signal.SIGTERM
