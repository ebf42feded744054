"""The collector, read as Prometheus reads it: its own parser, over HTTP."""

import fcntl
import os
import re
import socket
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from prefect_bt import codec
from prefect_bt.errors import ServerError, StoreError
from prefect_bt.host.state_folder import JobFolder
from prefect_bt.ledger.ledger import Ledger
from prefect_bt.ledger.states import JobState
from prefect_bt.local_server.discovery import write_server
from prefect_bt.object_store import open_store
from prefect_bt.open_metrics.collector import JobCollector
from prefect_bt.open_metrics.endpoint import check_address, serve_metrics
from prefect_bt.open_metrics.store_values import StoreReader
from tests.cli.conftest import Cli
from tests.job_metrics.node_files import write_node_file
from tests.jobs.records import new_record, small_project
from tests.node_agent.rig import make_plan, wait_until
from tests.ports import free_port
from tests.written_jobs import write_job

Samples = dict[str, list[tuple[dict[str, str], float]]]
ROOT = Path(__file__).resolve().parents[2]
OPEN_METRICS = "application/openmetrics-text; version=1.0.0"


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    """A store with a waiting job and a running one."""
    ledger = Ledger(open_store(str(tmp_path / "store")))
    for state in (JobState.CREATED, JobState.RUNNING, JobState.COMPLETED):
        record = new_record(ledger, small_project("tiny"))
        write_job(ledger, record, state=state)
    return ledger


@contextmanager
def running_node(
    state_dir: Path, *, job: str = "abc1234", name: str = "tiny", **file: object
) -> Iterator[Path]:
    """A node whose lock is held, with a file of metrics."""
    folder = JobFolder(state_dir, job).node_folder(0, 0)
    folder.path.mkdir(parents=True)
    variables = {"BT_TRAINING_PROJECT_NAME": name}
    plan = make_plan(state_dir, ("true",), job_id=job, environment=variables)
    folder.plan.write_text(codec.dumps(plan))
    write_node_file(folder.metrics, start=1e9, **{"samples": 5, "gpus": 2, **file})
    lock = os.open(folder.lock, os.O_CREAT | os.O_RDWR)
    fcntl.flock(lock, fcntl.LOCK_EX)
    try:
        yield folder.metrics
    finally:
        os.close(lock)


@contextmanager
def served(collector: JobCollector) -> Iterator[Callable[[], Samples]]:
    """Scrapes over HTTP: the samples by name."""
    registry = CollectorRegistry()
    registry.register(collector)
    server, thread = start_http_server(0, "127.0.0.1", registry)

    yield lambda: read_endpoint(f"http://127.0.0.1:{server.server_port}/metrics")
    server.shutdown()
    thread.join()


def read_endpoint(url: str) -> Samples:
    request = urllib.request.Request(url, headers={"Accept": OPEN_METRICS})
    with urllib.request.urlopen(request, timeout=60) as answer:
        text = answer.read().decode()
    found: Samples = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, []).append((dict(sample.labels), sample.value))
    return found


def wait_until_up(url: str, process: subprocess.Popen[str]) -> None:
    def is_up() -> bool:
        assert process.poll() is None
        with suppress(OSError):
            return read_endpoint(url).get("prefect_bt_up") == [({}, 1)]
        return False

    wait_until(is_up, "no answer")


def read_nothing() -> Ledger:
    raise StoreError("it does not answer")


def test_scrape_has_store_node_gpus_and_training(tmp_path: Path, ledger: Ledger):
    store = StoreReader(tmp_path, open_store=lambda: ledger, first_patience=60)
    with running_node(tmp_path), served(JobCollector(tmp_path, store)) as scrape:
        found = scrape()

    [(labels, cores)] = found["prefect_bt_node_cpu_usage_cores"]
    assert labels == {
        "job_id": "abc1234",
        "project": "tiny",
        "name": "",
        "rank": "0",
        "attempt": "0",
    }
    assert 0 < cores < 8
    assert [labels["gpu"] for labels, _ in found["prefect_bt_gpu_utilization_ratio"]] == ["0", "1"]
    assert found["prefect_bt_gpu_ecc_errors_total"][0][1] == 0
    assert found["prefect_bt_training_step"][0][1] == 8
    assert found["prefect_bt_training_loss"][0][1] > 0
    assert found["prefect_bt_up"] == [({}, 1)]
    assert found["prefect_bt_jobs"] == [({"state": "created"}, 1), ({"state": "running"}, 1)]


@pytest.mark.parametrize("project", ['a "quoted" name', "two\nlines", "back\\slash", "é}{,="])
def test_label_values_are_escaped(tmp_path: Path, project: str):
    store = StoreReader(tmp_path, open_store=read_nothing)
    with running_node(tmp_path, name=project), served(JobCollector(tmp_path, store)) as scrape:
        assert scrape()["prefect_bt_node_cpu_usage_cores"][0][0]["project"] == project


def test_store_that_fails_is_down_and_nodes_are_there(tmp_path: Path):
    store = StoreReader(tmp_path, open_store=read_nothing)
    with running_node(tmp_path), served(JobCollector(tmp_path, store)) as scrape:
        found = scrape()
    assert (found["prefect_bt_up"], found["prefect_bt_store_errors_total"]) == (
        [({}, 0)],
        [({}, 1)],
    )
    assert "prefect_bt_node_cpu_usage_cores" in found and "prefect_bt_queue_jobs" not in found


def test_store_that_hangs_delays_no_second_scrape(tmp_path: Path):
    hangs, asked = threading.Event(), list[int]()

    def wait() -> Ledger:
        asked.append(1)
        hangs.wait(60)
        return read_nothing()

    now = [0.0]
    store = StoreReader(tmp_path, open_store=wait, clock=lambda: now[0], first_patience=0.01)
    with served(JobCollector(tmp_path, store)) as scrape:
        for _ in range(3):
            assert scrape()["prefect_bt_up"] == [({}, 0)]
            now[0] += 60
        assert len(asked) == 1, "one read at a time"
        hangs.set()


def test_store_is_read_at_most_every_30_seconds(tmp_path: Path, ledger: Ledger):
    asked, now = list[int](), [0.0]

    def count() -> Ledger:
        asked.append(1)
        return ledger

    store = StoreReader(tmp_path, open_store=count, clock=lambda: now[0])
    for at in (0, 10, 29, 31):
        now[0] = at
        store.refresh()
        assert store._thread is not None
        store._thread.join()
    assert len(asked) == 2


def test_file_is_decoded_as_it_grows_and_ended_nodes_are_left_out(tmp_path: Path):
    collector = JobCollector(tmp_path, StoreReader(tmp_path, open_store=read_nothing))
    with running_node(tmp_path, samples=50) as path, served(collector) as scrape:
        whole = path.read_bytes()
        path.write_bytes(whole[: len(whole) // 2])
        half = scrape()["prefect_bt_training_step"][0][1]
        path.write_bytes(whole)
        assert half < scrape()["prefect_bt_training_step"][0][1] == 98
        path.with_name("plan.json").unlink()
        path.unlink()
        assert "prefect_bt_training_step" not in scrape()
    with served(collector) as scrape:
        assert "prefect_bt_node_cpu_usage_cores" not in scrape()


def test_dashboard_has_every_exported_metric_and_no_other(tmp_path: Path, ledger: Ledger):
    job = ledger.list_jobs()[0].id
    store = StoreReader(tmp_path, open_store=lambda: ledger, first_patience=60)
    with running_node(tmp_path, job=job), served(JobCollector(tmp_path, store)) as scrape:
        found = scrape()

    exported, labels = (
        set(found),
        {name for rows in found.values() for row, _ in rows for name in row},
    )
    dashboard = (ROOT / "deployments/grafana/prefect-bt.json").read_text()
    documented = (ROOT / "docs/monitoring.md").read_text()
    assert set(re.findall(r"prefect_bt_[a-z_]+", dashboard)) == exported
    assert set(re.findall(r"(\w+)=~|{{(\w+)}}", dashboard)) <= {
        *((label, "") for label in labels),
        *(("", label) for label in labels),
    }
    assert not {name for name in exported if f"`{name}" not in documented}


@pytest.mark.slow
def test_worker_serves_its_metrics(tmp_path: Path):
    cli = Cli(tmp_path)
    worker = cli.start("worker", "--metrics-listen", "127.0.0.1:0")
    try:
        lines = iter(worker.stdout.readline, "")
        url = next(found[0] for line in lines if (found := re.search(r"http://\S+", line)))
        wait_until_up(url, worker)
    finally:
        worker.kill()
        worker.communicate()


@pytest.mark.slow
def test_watchdog_of_up_serves_its_metrics(tmp_path: Path):
    cli, address = Cli(tmp_path), f"127.0.0.1:{free_port()}"
    (tmp_path / "state").mkdir(0o700)
    write_server(tmp_path / "state", {"metrics_listen": address})
    watchdog = cli.start(program=[sys.executable, "-m", "prefect_bt.local_server.watchdog"])
    try:
        wait_until_up(f"http://{address}/metrics", watchdog)
    finally:
        watchdog.kill()
        watchdog.communicate()


@pytest.mark.parametrize("address", ["9464", "127.0.0.1", "127.0.0.1:99999", "http://h:1"])
def test_address_that_is_none_is_refused(tmp_path: Path, address: str):
    run = Cli(tmp_path)("worker", "--metrics-listen", address)
    assert "PREFECT_BT_METRICS_LISTEN=127.0.0.1:9464" in run.refusal(2)


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]"])
def test_port_that_is_taken_is_reported(host: str):
    family = socket.AF_INET6 if host == "[::1]" else socket.AF_INET
    with socket.create_server((host.strip("[]"), 0), family=family) as taken:
        address = f"{host}:{taken.getsockname()[1]}"
        for start in (check_address, serve_metrics):  # of up, of a worker
            with pytest.raises(ServerError, match=r"already in use.*PREFECT_BT_METRICS_LISTEN"):
                start(address)
