"""The examples of the page of metrics do what the page says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from prefect_bt.job_metrics.training_values.log_lines import LineParser
from prefect_bt.job_metrics.training_values.reader import TrainingValuesReader
from tests.docs.code_blocks import ROOT, list_blocks

BLOCKS = list_blocks((ROOT / "docs/metrics.md").read_text("utf-8"))
FORMATS, EXAMPLE = (
    next(block.code for block in BLOCKS if block.language == language)
    for language in ("text", "python")
)


@pytest.mark.parametrize("line", FORMATS.splitlines())
def test_a_format_of_the_page_is_recognized(line: str):
    assert LineParser().parse(line) is not None


def test_the_example_reports_its_values(tmp_path: Path):
    file = tmp_path / "metrics.jsonl"
    reader = TrainingValuesReader([], file)
    command = [sys.executable, "-I", "-S", "-c", EXAMPLE]
    subprocess.run(command, env={"BT_METRICS_FILE": str(file)}, check=True)
    [point] = reader.poll(final=True)
    assert (point.step, point.values) == (10, {"loss": 1.25, "tokens_per_second": 5120})
