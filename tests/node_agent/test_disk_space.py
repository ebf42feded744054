"""A log on a disk that is nearly full, and one that is full."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from prefect_bt.credentials.redaction import Redactor
from prefect_bt.logs.line_format import parse_lines
from prefect_bt.node_agent import disk_space, log_writer
from prefect_bt.node_agent.disk_space import MIN_FREE_BYTES, DiskSpace
from prefect_bt.node_agent.log_writer import LogFile
from tests.altered import altered
from tests.filesystem.small_disk import small_disk

GB = 1_000_000_000


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(disk_space, "time", altered(time, monotonic=lambda: now[0]))
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
    ("free", "total", "has_room"),
    [
        (MIN_FREE_BYTES, 1000 * GB, True),
        (MIN_FREE_BYTES - 1, 1000 * GB, False),
        (int(0.6 * GB), 10 * GB, True),
        (int(0.4 * GB), 10 * GB, False),
        (0, 0, True),
    ],
)
def test_too_little_free_space(free: int, total: int, has_room: bool):
    assert DiskSpace(lambda: (free, total)).check(1) is has_room


def test_it_is_looked_at_now_and_then(clock: list[float]):
    looks: list[int] = []

    def measure() -> tuple[int, int]:
        looks.append(1)
        return 0, GB

    disk = DiskSpace(measure)
    for _ in range(1000):
        disk.check(10)
    assert len(looks) == 1
    disk.check(disk_space.CHECK_BYTES)
    assert len(looks) == 2
    clock[0] += disk_space.CHECK_SECONDS
    disk.check(1)
    assert len(looks) == 3


def test_a_disk_that_cannot_be_measured_counts_as_roomy():
    def measure() -> tuple[int, int]:
        raise OSError(38, "Function not implemented")

    assert DiskSpace(measure).check(1)


def test_this_disk_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    found: list[tuple[int, int]] = []

    class Seen(DiskSpace):
        def check(self, size: int) -> bool:
            found.append(self._measure())
            return super().check(size)

    monkeypatch.setattr(log_writer, "DiskSpace", Seen)
    log = LogFile(tmp_path / "log", Redactor([]))
    log.write(["one"])
    log.close()
    ((free, total),) = found
    assert 0 < free < total


def test_only_lines_of_the_platform_are_kept(tmp_path: Path, clock: list[float]):
    disk = Disk(tmp_path)
    disk.log.write([f"head {n}" for n in range(100)])
    disk.free, clock[0] = GB // 2, clock[0] + 60
    for _ in range(300):
        clock[0] += 1
        disk.log.write(["flood"] * 100)
    disk.log.write_platform("start command 1 exited with 1")
    disk.log.close()
    lines = [line.message for line in parse_lines(disk.path.read_bytes())]
    assert lines[:100] == [f"head {n}" for n in range(100)]
    assert lines[100:] == [
        "[prefect-bt] only 0.50 GB of the disk are free: until there is more, the output of the "
        "commands is not kept here",
        "[prefect-bt] start command 1 exited with 1",
        "[prefect-bt] 30000 log lines could not be written: the disk was full",
    ]
    assert disk.log.written_at, "the commands still count as active"


def test_with_room_again_all_is_kept_again(tmp_path: Path, clock: list[float]):
    disk = Disk(tmp_path)
    disk.free = GB // 2
    disk.log.write(["a"] * 12)
    disk.free, clock[0] = int(1.2 * GB), clock[0] + 60
    disk.log.write(["b"] * 12)
    assert "b" not in disk.lines(), "not yet enough: it would turn to and fro"
    disk.free, clock[0] = 2 * GB, clock[0] + 60
    disk.log.write(["c"] * 12)
    first, *lines = disk.lines()
    assert first.startswith("[prefect-bt] only 0.50 GB")
    assert lines == [
        *["c"] * 12,
        "[prefect-bt] 24 log lines could not be written: the disk was full",
    ]


def test_a_disk_that_is_really_full(tmp_path: Path):
    with small_disk(tmp_path / "disk", "64k") as disk:
        log = LogFile(disk / "log", Redactor([]), measure=lambda: (GB * 9, GB * 100))
        written = [f"{number} {'x' * 100}" for number in range(2000)]
        for start in range(0, 2000, 20):
            log.write(written[start : start + 20])
            log.flush()
        os.truncate(disk / "log", 40_003)
        log.write(["after"])
        log.close()
        lines = [line.message for line in parse_lines((disk / "log").read_bytes())]
    whole = [line for line in lines if line in set(written)]
    assert whole == written[: len(whole)]
    assert "after" in lines, "a line of its own, though the one before was cut"
    assert "log lines could not be written: the disk was full" in lines[-1]
