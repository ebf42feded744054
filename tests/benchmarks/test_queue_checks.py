"""The checks of benchmarks/queue_benchmark.py find each kind of fault."""

from __future__ import annotations

import importlib
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from prefect_bt.host.job_lock import host_id
from prefect_bt.queue.machines import measure_machine, report_machine

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
NAMES = ("queue_jobs", "queue_machines", "queue_records", "queue_checks", "queue_watch")
OTHERS = ("gangs", "figures", "listing", "servers", "queue_bucket", "queue_pool", "queue_kills")


@pytest.fixture(scope="module")
def modules() -> Iterator[SimpleNamespace]:
    sys.path.insert(0, str(BENCHMARKS))
    try:
        found: dict[str, ModuleType] = {
            name: importlib.import_module(name) for name in (*NAMES, "queue_waiting")
        }
        yield SimpleNamespace(**found)
    finally:
        sys.path.remove(str(BENCHMARKS))
        for name in (*NAMES, *OTHERS, "queue_waiting"):
            sys.modules.pop(name, None)


@pytest.mark.parametrize(
    ("runs", "deaths", "fault"),
    [
        ([(0, 0.0, 1.0, True)], 0, ""),
        ([(0, 0.0, 1.0, False), (1, 2.0, 3.0, True)], 1, ""),
        ([(0, 0.0, 1.0, True), (1, 2.0, 3.0, True)], 1, ""),  # killed before its end was recorded
        ([(0, 0.0, 1.0, False)], 1, "never came to its end"),
        ([(0, 0.0, 1.0, True), (1, 2.0, 3.0, True)], 0, "came to its end 2 times"),
        ([(0, 0.0, 1.0, False), (0, 2.0, 3.0, True)], 1, "attempt 0 started its command 2 times"),
        ([(0, 0.0, 2.0, False), (1, 1.0, 3.0, True)], 1, "attempts 0 and 1 ran at once"),
    ],
)
def test_a_command_that_did_not_run_exactly_once_is_found(
    modules: SimpleNamespace,
    runs: list[tuple[int, float, float, bool]],
    deaths: int,
    fault: str,
) -> None:
    job = modules.queue_jobs.PoolJob("job-000", 1, 1.0, 0, "red")
    read = [
        modules.queue_records.Run(job, "id", attempt, "host", frozenset(), start, end, whole)
        for attempt, start, end, whole in runs
    ]
    faults = list(modules.queue_checks._check_runs(read, deaths))
    assert [fault in told for told in faults] == ([True] if fault else [])


@pytest.mark.parametrize("stopped", [False, True], ids=["works", "stopped"])
def test_a_job_with_room_that_no_worker_starts_is_late(
    modules: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, stopped: bool
) -> None:
    """On a machine whose worker runs. The seconds of one that is stopped are counted apart."""
    watching = modules.queue_watch
    monkeypatch.setattr(watching, "SAMPLE_INTERVAL", 0.05)
    pool = modules.queue_machines.make_pool(tmp_path / "pool", {}, count=1, gpus=2)
    [machine] = pool.machines
    machine.state_dir.mkdir()
    host_id(machine.state_dir)  # its worker has given the folder an ID
    monkeypatch.setenv("PATH", machine.environment["PATH"])
    there = measure_machine(machine.state_dir, cpus=64, memory=1 << 40, substrates=("local",))
    report_machine(pool.ledger.store, there)
    job = modules.queue_jobs.PoolJob("job-000", 1, 1.0, 0, "red")
    modules.queue_waiting.write_waiting_jobs(pool.ledger, [job])
    machine.worker = subprocess.Popen(["sleep", "60"])  # takes no jobs
    machine.disturbed_at = time.monotonic() - 2 * watching.SETTLE_SECONDS
    if stopped:
        machine.worker.send_signal(signal.SIGSTOP)
    watch = watching.IdleWatch(pool)
    watch.start()
    try:
        while not (watch.left_out if stopped else watch.longest):
            time.sleep(0.01)
    finally:
        watch.finish()
        machine.kill_worker()
    assert (watch.longest if stopped else watch.left_out) == 0.0


@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
def test_the_clock_of_a_machine_is_ahead_and_its_waits_are_not(
    modules: SimpleNamespace, tmp_path: Path
) -> None:
    pool = modules.queue_machines.make_pool(tmp_path, {}, skew=600.0)
    code = "import time; a = time.monotonic(); time.sleep(0.1); print(time.monotonic() - a < 300)"
    for machine, ahead in zip(pool.machines, (0.0, 600.0), strict=True):
        done = subprocess.run(
            [sys.executable, "-c", f"{code}; print(time.time())"],
            env=machine.environment,
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        )
        waited, told = done.stdout.split()
        assert waited == "True"
        assert float(told) - time.time() == pytest.approx(ahead, abs=60)
