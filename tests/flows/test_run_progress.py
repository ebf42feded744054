"""The progress of a transfer in the log of a Prefect run."""

import logging

import pytest

from prefect_bt.flows.tasks.reporting import run_progress
from prefect_bt.text.progress import Progress


def test_names_from_a_source_do_not_steer_a_terminal(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    logger = logging.getLogger("transfer")
    monkeypatch.setattr(run_progress, "get_run_logger", lambda: logger)
    with run_progress.report_progress("weights") as progress:
        progress.update(Progress("hf://o/r", note="tried again: \x1b]0;title\x07.bin"))
    assert "hf://o/r: tried again: ␛]0;title␇.bin" in caplog.text
