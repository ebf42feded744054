"""The processor time of processes, and the lines that a run prints of it."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from tests.cost_report import Cost, CpuMeter, Process, ProcessTimes, render_folders, render_slow

ROOT, CHILD, GRANDCHILD, SERVER = 10, 11, 12, 20


def times_of(*lists: dict[int, tuple[int, float]]) -> ProcessTimes:
    """Return what was added up of lists of processes: process id -> parent and seconds."""
    times = ProcessTimes(ROOT, is_shared=lambda pid: pid == SERVER)
    for processes in lists:
        times.update({pid: Process(parent, pid, cpu) for pid, (parent, cpu) in processes.items()})
    return times


def test_descendants_count_and_other_processes_do_not() -> None:
    times = times_of(
        {1: (0, 50), ROOT: (1, 9), CHILD: (ROOT, 2), GRANDCHILD: (CHILD, 3), 30: (1, 7)}
    )
    assert times.total() == 5


def test_the_time_of_a_process_that_was_waited_for_is_its_parents() -> None:
    before = {ROOT: (1, 9), CHILD: (ROOT, 2), GRANDCHILD: (CHILD, 3)}
    assert times_of(before, {ROOT: (1, 9), CHILD: (ROOT, 5)}).total() == 5
    # The child's time is in the root's own, which the meter reads elsewhere.
    assert times_of(before, {ROOT: (1, 14)}).total() == 0


def test_an_orphan_keeps_counting_when_it_runs_and_when_it_has_ended() -> None:
    before = {ROOT: (1, 9), CHILD: (ROOT, 2), GRANDCHILD: (CHILD, 3)}
    orphan = {ROOT: (1, 11), GRANDCHILD: (1, 4)}
    assert times_of(before, orphan).total() == 4
    assert times_of(before, orphan, {ROOT: (1, 11)}).total() == 4
    child_of_it = {ROOT: (1, 11), GRANDCHILD: (1, 4), 13: (GRANDCHILD, 1)}
    assert times_of(before, orphan, child_of_it).total() == 5


def test_another_process_with_the_same_id_is_not_the_one_that_ended() -> None:
    times = times_of({CHILD: (ROOT, 2)}, {CHILD: (1, 2)})  # an orphan
    times.update({CHILD: Process(1, 99, 40)})
    assert times.total() == 2


def test_shared_servers_are_counted_apart() -> None:
    times = times_of({SERVER: (ROOT, 8), 21: (SERVER, 1), CHILD: (ROOT, 2)})
    assert (times.total(), times.total(shared=True)) == (2, 9)


@pytest.mark.slow
def test_real_processes_are_measured() -> None:
    meter = CpuMeter()
    # Ticks cut a hundredth of a second from each of two sums, and a test expects no exact time.
    burn = "import time\nwhile time.process_time() < 0.5: pass\n"
    orphan = f"[sys.executable, '-c', {burn!r} + 'import sys; sys.stdin.read()'], stdin=0"
    detach = f"import subprocess, sys; subprocess.Popen({orphan}); sys.stdin.read()"
    before = meter.read()
    subprocess.run([sys.executable, "-c", burn], check=True)
    assert meter.read() - before >= 0.4
    starting = subprocess.Popen([sys.executable, "-c", detach], stdin=subprocess.PIPE)
    while meter.read() - before < 0.8:  # until the grandchild has been seen at work
        time.sleep(0.05)
    starting.communicate()


def test_folders_are_printed_beside_their_budget_and_slow_tests_are_named() -> None:
    costs = [
        Cost("tests/cli/test_a.py::test_x[1]", wall=5, cpu=4),
        Cost("tests/cli/test_a.py::test_y", wall=5, cpu=3.5),
        Cost("tests/test_top.py::test_z", wall=1, cpu=1),
    ]
    lines = list(render_folders(costs, 6.0, {"cli": 5, "(top)": 2}))
    assert [line.split() for line in lines] == [
        ["folder", "tests", "wall", "CPU", "budget"],
        ["cli", "2", "10", "8", "5", "over", "by", "2"],
        ["shared", "servers", "0", "0", "6", "0", "over", "by", "6"],
        ["(top)", "1", "1", "1", "2"],
        ["all", "3", "11", "14", "7"],
    ]
    assert list(render_slow(costs, {"tests/cli/test_a.py::test_x": 4})) == [
        "new and slow: 3.5 s of processor time, tests/cli/test_a.py::test_y"
    ]
