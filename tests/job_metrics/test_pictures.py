"""Pictures: what they show, and their size."""

import re
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from prefect_bt.job_metrics.pictures import to_svg

from .measured_jobs import measured_job

pytestmark = pytest.mark.slow


def texts(svg: str) -> list[str]:
    return re.findall(r"<text[^>]*>([^<]+)</text>", svg)


def test_picture_of_gpus_has_curves_phases_and_a_bounded_size(tmp_path: Path):
    svg = to_svg(measured_job(tmp_path, gpus=8, samples=2000))

    shown = texts(svg)
    for title in ("loss", "learning_rate", "GPU utilization (%)", "GPU memory (GiB)"):
        assert title in shown
    assert "mean of 8" in shown and any(text.startswith("training ") for text in shown)
    assert not any("lost" in text for text in shown), "a class without a second"
    assert len(svg) < 200_000


def test_picture_of_four_nodes_has_each_attempt(tmp_path: Path):
    svg = to_svg(measured_job(tmp_path, ranks=4, attempts=3, samples=50))

    shown = texts(svg)
    assert {"CPU cores in use", "node 0", "node 3", "attempt"} <= set(shown)
    assert {"0", "1", "2"} <= set(shown)
    assert len(svg) < 200_000


@pytest.mark.parametrize(
    ("name", "shown"), [("cost $5 of $6", "cost $5 of $6"), ("a &lt;", None), ("x\x1b[31m", None)]
)
def test_names_are_no_markup(tmp_path: Path, name: str, shown: str | None):
    job = measured_job(tmp_path, samples=2)
    record = replace(job.history.record, name=name)

    svg = to_svg(replace(job, history=replace(job.history, record=record)))

    ElementTree.fromstring(svg)
    assert "\x1b" not in svg
    assert shown is None or any(shown in text for text in texts(svg))


@pytest.mark.parametrize("samples", [0, 1])
def test_job_with_hardly_a_sample_is_drawn(tmp_path: Path, samples: int):
    assert "attempt" in texts(to_svg(measured_job(tmp_path, samples=samples)))
