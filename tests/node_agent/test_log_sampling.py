"""A log on a disk that is nearly full, and one that is full."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest

from prefect_bt.credentials.redaction import Redactor
from prefect_bt.logs.line_format import parse_lines
from prefect_bt.node_agent import log_sampling
from prefect_bt.node_agent.log_sampling import (
    MIN_FREE_BYTES,
    TAIL_LINES,
    DiskSpaceMonitor,
    LineSampler,
    make_disk_usage_reader,
)
from prefect_bt.node_agent.log_writer import LogFile
from tests.altered import altered

GB = 1_000_000_000


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(log_sampling, "time", altered(time, monotonic=lambda: now[0]))
    return now


class Disk:
    """Says what the test says; `log` is on it."""

    def __init__(self, folder: Path) -> None:
        self.free, self.path = 50 * GB, folder / "log"
        self.log = LogFile(self.path, Redactor([]), measure=lambda: (self.free, 1000 * GB))

    def lines(self) -> list[str]:
        self.log.flush()
        return [line.message for line in parse_lines(self.path.read_bytes())]


@pytest.mark.parametrize(
    ("free", "total", "scarce"),
    [
        (MIN_FREE_BYTES, 1000 * GB, False),
        (MIN_FREE_BYTES - 1, 1000 * GB, True),
        (int(0.6 * GB), 10 * GB, False),
        (int(0.4 * GB), 10 * GB, True),
        (0, 0, False),
    ],
)
def test_what_is_too_little(free: int, total: int, scarce: bool):
    room = DiskSpaceMonitor(lambda: (free, total))
    room.record_write(1)
    assert room.scarce is scarce


def test_it_is_looked_at_now_and_then(clock: list[float]):
    looks: list[int] = []

    def measure() -> tuple[int, int]:
        looks.append(1)
        return 0, GB

    room = DiskSpaceMonitor(measure)
    for _ in range(1000):
        room.record_write(10)
    assert len(looks) == 1
    room.record_write(log_sampling.CHECK_BYTES)
    assert len(looks) == 2
    clock[0] += log_sampling.CHECK_SECONDS
    room.record_write(1)
    assert len(looks) == 3


def test_a_disk_that_tells_nothing_counts_as_roomy():
    def measure() -> tuple[int, int]:
        raise OSError(38, "Function not implemented")

    room = DiskSpaceMonitor(measure)
    room.record_write(1)
    assert not room.scarce


def test_this_disk(tmp_path: Path):
    with (tmp_path / "file").open("wb") as file:
        free, total = make_disk_usage_reader(file.fileno())()
    assert 0 < free < total


def test_head_sample_and_end(tmp_path: Path, clock: list[float]):
    disk = Disk(tmp_path)
    disk.log.write([f"head {n}" for n in range(100)])
    disk.free, clock[0] = GB // 2, clock[0] + 60
    for second in range(3):
        clock[0] += 1
        for _ in range(100):
            disk.log.write([f"flood {second}"] * 100)
    disk.log.write([f"end {n}" for n in range(60)])
    disk.log.write_platform("start command 1 exited with 1")
    lines = disk.lines()
    assert lines[:100] == [f"head {n}" for n in range(100)]
    assert lines[100] == (
        "[prefect-bt] only 0.50 GB of the disk are free: until there is more, at most 10 lines a "
        "second are kept here"
    )
    assert lines[101:131] == [f"flood {second}" for second in range(3) for _ in range(10)]
    left_out = 30_000 - 30 + 60
    assert lines[131] == (
        f"[prefect-bt] {left_out} lines were left out, for lack of disk; the last of them:"
    )
    assert lines[132:-1] == [f"end {n}" for n in range(60 - TAIL_LINES, 60)]
    assert lines[-1] == "[prefect-bt] start command 1 exited with 1"


def test_with_room_again_all_is_kept_again(tmp_path: Path, clock: list[float]):
    disk = Disk(tmp_path)
    disk.free = GB // 2
    disk.log.write(["a"] * 12)
    disk.free, clock[0] = int(1.2 * GB), clock[0] + 60
    disk.log.write(["b"] * 12)
    assert disk.lines().count("b") == 10, "not yet enough: it would turn to and fro"
    disk.free, clock[0] = 2 * GB, clock[0] + 60
    disk.log.write(["c"] * 12)
    lines = disk.lines()
    said = [line for line in lines if line.startswith("[prefect-bt]")]
    assert said[1:] == [
        "[prefect-bt] 4 lines were left out, for lack of disk; the last of them:",
        "[prefect-bt] the disk has room again: all lines are kept",
    ]
    assert lines[-12:] == ["c"] * 12


def test_long_lines_are_cut():
    (kept,) = LineSampler().select(["x" * 5000])
    assert kept == f"{'x' * 1000}… (4000 more characters)"


def test_the_sample_holds_little(clock: list[float]):
    sample = LineSampler()
    for number in range(10_000):
        sample.select([f"{number}"])
    number, last = sample.take_dropped()
    assert (number, last) == (9990, [f"{n}" for n in range(9950, 10_000)])
    assert sample.take_dropped() == (0, [])


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small disk takes root")
def test_a_disk_that_is_really_full(tmp_path: Path):
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(disk)]
    if subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("no file system can be mounted here")
    try:
        log = LogFile(disk / "log", Redactor([]), measure=lambda: (GB * 9, GB * 100))
        written = [f"{number} {'x' * 100}" for number in range(2000)]
        for start in range(0, 2000, 20):
            log.write(written[start : start + 20])
            log.flush()
        os.truncate(disk / "log", 40_003)
        log.write(["after"])
        log.close()
        lines = [line.message for line in parse_lines((disk / "log").read_bytes())]
    finally:
        subprocess.run(["umount", str(disk)], check=True)
    whole = [line for line in lines if line in set(written)]
    assert whole == written[: len(whole)]
    assert "after" in lines, "a line of its own, though the one before was cut"
    assert "log lines could not be written: the disk was full" in lines[-1]
