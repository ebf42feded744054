"""The metrics of a job over HTTP."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from prefect_bt.host.state_folder import JobFolder
from prefect_bt.job_metrics.job_metrics import JobMetricsReader
from prefect_bt.job_service import job_readers
from prefect_bt.ledger.records import JobRecord
from tests.job_metrics.measured_jobs import write_node_file

from .log_sites import LogSite

SERIES = {
    "gpu_memory_usage_bytes",
    "gpu_utilization",
    "cpu_usage",
    "cpu_memory_usage_bytes",
    "ephemeral_storage",
}


@pytest.fixture
def site(tmp_path: Path) -> Iterator[LogSite]:
    with LogSite(tmp_path).serving() as site:
        yield site


def running_job(site: LogSite, *, samples: int = 100, gpus: int = 2) -> JobRecord:
    """A job with a sample every five seconds until now."""
    record = site.job(ago=samples * 5)
    site.begin(record)
    folder = JobFolder(site.site.settings.state_dir.absolute(), record.id).node_folder(0, 0)
    folder.metrics.parent.mkdir(parents=True)
    write_node_file(folder.metrics, start=site.at, samples=samples, gpus=gpus)
    site.at = time.time()
    return record


@pytest.mark.parametrize("gpus", [0, 2])
def test_document_has_the_shape_of_the_hosted_service(site: LogSite, gpus: int):
    record = running_job(site, gpus=gpus)
    document = site.post(record, "metrics").json()
    (node,) = document["per_node_metrics"]
    assert node["node_id"] == "0" and set(node["metrics"]) == SERIES
    assert {name: document[name] for name in SERIES} == node["metrics"]
    assert document["gpu_utilization"].keys() == {str(i) for i in range(gpus)}
    assert len(document["cpu_usage"]) == 100
    assert document["training_job"]["id"] == record.id


def test_job_without_nodes_has_empty_series(site: LogSite):
    document = site.post(site.job(), "metrics").json()
    assert document["gpu_utilization"] == document["gpu_memory_usage_bytes"] == {}
    assert document["cpu_usage"] == document["per_node_metrics"] == []


@pytest.mark.parametrize(
    ("seconds", "step", "count"), [(60, None, 11), (60, 20, 3), (10**9, 50, 10), (10**9, 10**9, 1)]
)
def test_window_and_step_choose_samples(site: LogSite, seconds: int, step: int | None, count: int):
    record = running_job(site)
    now = int((record.created_at + 501) * 1000)  # a second after the last of 100 samples
    body = {"start_epoch_millis": now - seconds * 1000, "end_epoch_millis": now}
    if step:
        body["step_seconds"] = step
    document = site.post(record, "metrics", **body).json()
    assert abs(len(document["cpu_usage"]) - count) <= 1
    assert site.client.get(site.path(record, "metrics"), params=body).json() == document
    old = site.post(record, "metrics", end_epoch_millis=now - 400_000).json()
    assert abs(len(old["cpu_usage"]) - 20) <= 1


def test_files_are_read_once_for_many_clients(site: LogSite, monkeypatch: pytest.MonkeyPatch):
    record, reads, read = running_job(site), [], JobMetricsReader.read
    monkeypatch.setattr(
        JobMetricsReader,
        "read",
        lambda *args, **options: [reads.append(0), read(*args, **options)][1],
    )
    monkeypatch.setattr(job_readers, "MAX_METRICS_AGE", 600.0)  # however slow the machine is
    for _ in range(5):
        site.post(record, "metrics")
    assert len(reads) == 1


@pytest.mark.parametrize(
    "body", [{"step_seconds": 0}, {"start_epoch_millis": 10**400}, {"end_epoch_millis": "soon"}]
)
def test_wrong_window_is_refused_with_a_message(site: LogSite, body: dict):
    answer = site.post(site.job(), "metrics", **body)
    assert answer.status_code == 400 and next(iter(body)) in answer.json()["message"]
