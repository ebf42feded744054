"""Series, their window and the document."""

import math
from dataclasses import replace
from pathlib import Path

import pytest

from prefect_bt.job_metrics.document import list_rows, metrics_document
from prefect_bt.job_metrics.job_metrics import JobMetrics
from prefect_bt.job_metrics.node_metrics import NodeMetrics, TrainingPoint
from prefect_bt.job_metrics.series import MAX_SAMPLES, Sample, Window, choose_window, join_training
from prefect_bt.training_cache.usage import CacheSummary

from .measured_jobs import START, measured_job


@pytest.mark.parametrize(
    ("limit", "kept"), [(None, range(10)), (10, range(10)), (4, (2, 5, 8, 9)), (2, (8, 9))]
)
def test_window_keeps_the_last_sample_of_each_part(limit: int | None, kept: range):
    samples = [Sample(float(at), 1.0, attempt=at) for at in range(10)]
    assert [each.attempt for each in Window(0, 20).cut(samples, limit=limit)] == list(kept)


@pytest.mark.parametrize("count", [MAX_SAMPLES, MAX_SAMPLES + 1, 17_280])
def test_default_window_has_at_most_500_samples_and_the_last(count: int):
    samples = [Sample(at * 5.0, float(at)) for at in range(count)]
    kept = Window(0, math.inf).cut(samples)
    assert MAX_SAMPLES / 2 < len(kept) <= MAX_SAMPLES and kept[-1] == samples[-1]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_value_that_is_no_number_is_left_out(value: float):
    assert Window(0, 9).cut([Sample(1, value), Sample(2, 3.0)]) == [Sample(2, 3.0)]


def test_attempts_are_joined_and_the_leader_is_on_top(tmp_path: Path):
    document = metrics_document(measured_job(tmp_path, ranks=2, attempts=2, samples=10))

    nodes = document["per_node_metrics"]
    assert [each["node_id"] for each in nodes] == ["0", "1"]
    assert (
        document["cpu_usage"]
        == nodes[0]["metrics"]["cpu_usage"]
        != nodes[1]["metrics"]["cpu_usage"]
    )
    times = [each["timestamp"] for each in document["cpu_usage"]]
    assert len(times) == 20 and times == sorted(times)
    assert [each["step"] for each in document["training"]["loss"]][9:11] == [18, 10]


def test_range_of_an_ended_job_ends_with_it(tmp_path: Path):
    job = measured_job(tmp_path, samples=10)
    job.nodes[0].times[-1] = START + 1e6
    assert choose_window(job).until == START + 50
    assert len(metrics_document(job)["cpu_usage"]) == 9


def test_cache_is_null_or_its_newest_snapshot(tmp_path: Path):
    job = measured_job(tmp_path, samples=1)
    cache = CacheSummary("p", timestamp="2026-11-28T00:00:00+00:00", total_size=7)
    assert metrics_document(job)["cache"] is None
    assert metrics_document(job, cache=cache)["cache"]["usage_bytes"][0]["value"] == 7


def with_points(job: JobMetrics, *points: TrainingPoint) -> JobMetrics:
    return replace(job, nodes=[NodeMetrics(0, 0, training=list(points))])


@pytest.mark.parametrize(
    ("values", "name"), [({}, "step_time"), ({"time/step": 7.0}, "time/step")], ids=["ours", "own"]
)
def test_step_time_is_the_trainers_or_computed(tmp_path: Path, values: dict, name: str):
    points = [TrainingPoint(10.0 * n, 5 * n, {"loss": 1.0, **values}) for n in range(3)]
    series = join_training(with_points(measured_job(tmp_path, samples=0), *points))
    assert list(series) == ["loss", name]
    assert series[name][-1].value == (values.get(name) or 2.0)


def test_rows_have_every_rank_and_the_training(tmp_path: Path):
    rows = list(list_rows(measured_job(tmp_path, ranks=2, gpus=1, samples=3)))
    assert {row["rank"] for row in rows} == {0, 1, None}
    assert {"cpu", "gpu0_power", "loss"} <= {row["series"] for row in rows}
