"""Record the cost of each test: `test-costs.jsonl`, and a table of the folders beside their budget.

A plugin of pytest, loaded by `tests/conftest.py`. A worker measures the processor time of its own
process and of every process that descends from it, from the files of /proc (Linux; elsewhere only
processes that the worker waited for). The controller writes one line per test. A budget is a report
and never a verdict: processor time depends on the machine.

Servers that all workers share (`tests/shared_service.py`, `tests/s3_server.py`) are counted as
`shared servers`. Not counted: a process that neither its parent nor a sample of every
`SAMPLE_SECONDS` saw.
"""

from __future__ import annotations

import json
import os
import threading
import time
import tomllib
from collections import Counter, defaultdict
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TextIO

import pytest

FILE = "test-costs.jsonl"
BUDGETS = Path(__file__).with_name("budgets.toml")
SLOW_SECONDS = 3.0
"""Processor time from which a test must be named in `budgets.toml`."""
SAMPLE_SECONDS = 0.5
QUICK_SECONDS = 0.05
"""A test shorter than this starts no process that is worth a sample."""
SHARED = "shared servers"
_SHARED_PROGRAMS = ("tests.shared_service", "s3_server.py")
_TICKS = os.sysconf("SC_CLK_TCK")


class Process(NamedTuple):
    parent: int
    start: int
    """Ticks since boot: a process id with another start is another process."""
    cpu: float
    """Seconds of the process and of those of its children that it waited for."""
    shared: bool = False


class ProcessTimes:
    """Add up the processor time of all descendants of a process, from lists of all processes."""

    def __init__(self, root: int, *, is_shared: Callable[[int], bool]) -> None:
        self._root = root
        self._is_shared = is_shared
        self._living: dict[int, Process] = {}
        self._ended = {False: 0.0, True: 0.0}
        """Shared or not -> seconds of processes for which no measured process waited."""

    def total(self, *, shared: bool = False) -> float:
        """Return the seconds of the descendants; the root's own are not among them."""
        living = (process.cpu for process in self._living.values() if process.shared == shared)
        return sum(living) + self._ended[shared]

    def update(self, processes: dict[int, Process]) -> None:
        ended = {
            pid: process
            for pid, process in self._living.items()
            if pid not in processes or processes[pid].start != process.start
        }
        for pid in ended:
            del self._living[pid]
        for process in ended.values():
            if not self._is_waited_for(process, ended):
                self._ended[process.shared] += process.cpu
        for pid, process in self._living.items():
            self._living[pid] = processes[pid]._replace(shared=process.shared)
        self._add_descendants(processes)

    def _is_waited_for(self, process: Process, ended: dict[int, Process]) -> bool:
        """Return whether a living process has the time of `process` in its own."""
        parent = process.parent
        while parent in ended:
            parent = ended[parent].parent
        return parent in self._living or parent == self._root

    def _add_descendants(self, processes: dict[int, Process]) -> None:
        children: dict[int, list[int]] = defaultdict(list)
        for pid, process in processes.items():
            children[process.parent].append(pid)
        parents = [self._root, *self._living]
        while parents:
            parent = parents.pop()
            for pid in children[parent]:
                if pid not in self._living:
                    ours = self._living.get(parent)
                    shared = ours.shared if ours else self._is_shared(pid)
                    self._living[pid] = processes[pid]._replace(shared=shared)
                    parents.append(pid)


class CpuMeter:
    """Measure the processor time of this process and its descendants."""

    def __init__(self) -> None:
        self._times = ProcessTimes(os.getpid(), is_shared=_is_shared_server)
        self._lock = threading.Lock()
        threading.Thread(target=self._sample_always, daemon=True, name="cpu-meter").start()

    def read(self, *, quick: bool = False) -> float:
        """Return seconds so far, without those of shared servers.

        `quick` takes the last sample of the descendants.
        """
        with self._lock:
            if not quick:
                self._times.update(dict(_list_processes()))
            times = os.times()
            own = times.user + times.system + times.children_user + times.children_system
            return own + self._times.total()

    def read_shared(self) -> float:
        with self._lock:
            return self._times.total(shared=True)

    def _sample_always(self) -> None:
        while True:
            time.sleep(SAMPLE_SECONDS)
            with self._lock:
                self._times.update(dict(_list_processes()))


def _list_processes() -> Iterator[tuple[int, Process]]:
    """Yield the processes of this machine. Often: so it uses file descriptors."""
    try:
        names = os.listdir("/proc")  # noqa: PTH208
    except FileNotFoundError:
        return
    for name in names:
        if not name.isdigit():
            continue
        try:
            descriptor = os.open(f"/proc/{name}/stat", os.O_RDONLY)
        except OSError:
            continue
        try:
            stat = os.read(descriptor, 4096)
        except OSError:
            continue
        finally:
            os.close(descriptor)
        # The name of the program, in parentheses, can hold spaces.
        fields = stat[stat.rindex(b")") + 2 :].split()
        ticks = sum(map(int, fields[11:15]))  # utime, stime, cutime, cstime of proc(5)
        yield int(name), Process(int(fields[1]), int(fields[19]), ticks / _TICKS)


def _is_shared_server(pid: int) -> bool:
    try:
        command = Path(f"/proc/{pid}/cmdline").read_text(errors="replace")
    except OSError:
        return False
    return any(program in command for program in _SHARED_PROGRAMS)


# --- in a worker ------------------------------------------------------------------------------


class Measure:
    """Add the processor time to the last report of each test."""

    def __init__(self) -> None:
        self._meter = CpuMeter()
        self._cpu = self._begin = 0.0

    def pytest_collection_finish(self) -> None:
        self._cpu = self._meter.read()

    def pytest_runtest_logstart(self) -> None:
        self._begin = time.monotonic()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if call.when == "teardown":
            quick = time.monotonic() - self._begin < QUICK_SECONDS
            cpu = self._meter.read(quick=quick)
            report.user_properties.append(("cpu", max(0.0, cpu - self._cpu)))
            report.user_properties.append(("shared", self._meter.read_shared()))
            self._cpu = cpu
        return report


# --- in the controller ------------------------------------------------------------------------


@dataclass
class Cost:
    test: str
    wall: float = 0.0
    cpu: float = 0.0
    outcome: str = "passed"

    @property
    def folder(self) -> str:
        parts = Path(self.test.partition("::")[0]).parts
        return parts[1] if len(parts) > 2 else "(top)"


class Report:
    """Write the costs as tests end, and print them with the summary."""

    def __init__(self, file: Path) -> None:
        self._file: TextIO = file.open("w")
        self._running: dict[str, Cost] = {}
        self._costs: list[Cost] = []
        self._shared: dict[str, float] = {}
        """Worker -> seconds of the shared servers that it started."""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        cost = self._running.setdefault(report.nodeid, Cost(report.nodeid))
        cost.wall += report.duration
        if report.outcome != "passed":
            cost.outcome = report.outcome
        if report.when == "teardown":
            measured: dict[str, Any] = dict(report.user_properties)
            cost.cpu = measured.get("cpu", 0.0)
            self._shared[getattr(report, "worker_id", "")] = measured.get("shared", 0.0)
            self._costs.append(self._running.pop(report.nodeid))
            self._write(cost)

    def _write(self, cost: Cost) -> None:
        row = {
            "test": cost.test,
            "folder": cost.folder,
            "wall": round(cost.wall, 2),
            "cpu": round(cost.cpu, 2),
            "outcome": cost.outcome,
        }
        self._file.write(json.dumps(row) + "\n")
        self._file.flush()

    def pytest_terminal_summary(
        self, terminalreporter: pytest.TerminalReporter, config: pytest.Config
    ) -> None:
        if shared := sum(self._shared.values()):
            self._write(Cost(f"{SHARED}/", cpu=shared))
        budgets = tomllib.loads(BUDGETS.read_text()) if BUDGETS.exists() else {}
        lines = list(render_slow(self._costs, budgets.get("slow", {})))
        if config.args_source is not pytest.Config.ArgsSource.ARGS:
            lines = [*render_folders(self._costs, shared, budgets.get("folders", {})), *lines]
        if lines:
            terminalreporter.section(f"costs in seconds, by test in {FILE}")
            terminalreporter.write_line("\n".join(lines))


def render_folders(costs: list[Cost], shared: float, budgets: dict[str, float]) -> Iterator[str]:
    """Yield a line for each folder, the dearest first."""
    cpu, wall, tests = Counter[str](), Counter[str](), Counter[str]()
    for cost in costs:
        cpu[cost.folder] += cost.cpu  # pyright: ignore[reportArgumentType]
        wall[cost.folder] += cost.wall  # pyright: ignore[reportArgumentType]
        tests[cost.folder] += 1
    cpu[SHARED] = shared  # pyright: ignore[reportArgumentType]
    yield f"{'folder':16} {'tests':>6} {'wall':>7} {'CPU':>7} {'budget':>7}"
    for folder, seconds in cpu.most_common():
        budget = budgets.get(folder, 0)
        note = f"  over by {seconds - budget:.0f}" if seconds > budget else ""
        figures = f"{tests[folder]:6} {wall[folder]:7.0f} {seconds:7.0f} {budget:7}"
        yield f"{folder:16} {figures}{note}"
    totals = f"{tests.total():6} {wall.total():7.0f} {cpu.total():7.0f} {sum(budgets.values()):7}"
    yield f"{'all':16} {totals}"


def render_slow(costs: list[Cost], known: dict[str, float]) -> Iterator[str]:
    """Yield a line for each test that is slow and not in the table of budgets."""
    for cost in sorted(costs, key=lambda cost: -cost.cpu):
        if cost.cpu > SLOW_SECONDS and cost.test.partition("[")[0] not in known:
            yield f"new and slow: {cost.cpu:.1f} s of processor time, {cost.test}"


def pytest_configure(config: pytest.Config) -> None:
    workers = getattr(config.option, "numprocesses", None) or 0
    in_worker = hasattr(config, "workerinput")
    if in_worker or not workers:
        config.pluginmanager.register(Measure(), "cpu-of-tests")
    if not in_worker and not config.option.collectonly:
        config.pluginmanager.register(Report(config.rootpath / FILE), "costs-of-tests")
