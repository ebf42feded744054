"""What of a rank's log is shown on its Prefect run: a sample, a count, and the end."""

import logging
from dataclasses import dataclass, field

import pytest

from prefect_bt.flows.tasks.reporting import rank_log
from prefect_bt.flows.tasks.reporting.rank_log import TAIL_LINES, RankLogForwarder
from prefect_bt.logs.line_format import format_line, format_lines


@dataclass
class Node:
    """A log in memory, read as a handle's."""

    data: bytearray = field(default_factory=bytearray)
    rank: int = 3
    most_read: int = 0

    def read_log(self, *, offset: int, limit: int) -> bytes:
        self.most_read = max(self.most_read, limit)
        return bytes(self.data[offset : offset + limit])


class Run:
    """A task run's logger, a clock that stands still, and a log."""

    def __init__(self, lines_per_second: float = 100) -> None:
        self.node, self.now = Node(), 1000.0
        self.shown: list[str] = []
        logger = logging.Logger("run")
        handler = logging.Handler()
        handler.emit = lambda record: self.shown.append(record.getMessage())
        logger.addHandler(handler)
        self.log = RankLogForwarder(
            self.node,  # pyright: ignore[reportArgumentType]
            lines_per_second=lines_per_second,
            logger=logger,
            clock=lambda: self.now,
        )

    def write(self, first: int, count: int) -> None:
        self.node.data += format_lines(first, (f"line {n}" for n in range(first, first + count)))


def numbers(shown: list[str]) -> list[int]:
    return [int(line.rpartition(" ")[2]) for line in shown if line.startswith("(rank-3) line")]


def test_few_lines_are_all_shown():
    run = Run()
    run.write(1, 5)
    run.log.forward()
    assert run.shown == [f"(rank-3) line {n}" for n in range(1, 6)]
    run.node.data += b"6 cut"
    run.log.forward()
    assert len(run.shown) == 5
    run.log.finish()
    assert run.shown[5:] == ["(rank-3) cut"]


@pytest.mark.parametrize("read_bytes", [64, 1000, 1 << 20])
def test_a_flood_is_counted_and_its_end_is_shown(monkeypatch, read_bytes: int):
    monkeypatch.setattr(rank_log, "READ_BYTES", read_bytes)
    run = Run()
    run.write(1, 10_000)
    run.log.forward()
    assert numbers(run.shown) == list(range(1, 101))
    run.now += 0.5
    run.write(10_001, 10_000)
    run.log.forward()
    assert numbers(run.shown)[100:] == list(range(10_001, 10_051))
    run.log.finish()
    said = [line for line in run.shown if "not shown" in line]
    assert said == ["19850 log lines of rank 3 are not shown here; `prefect-bt logs` has them all."]
    assert numbers(run.shown)[150:] == list(range(20_001 - TAIL_LINES, 20_001))


def test_what_was_shown_is_not_shown_again_at_the_end():
    run = Run()
    run.write(1, 300)
    run.log.forward()
    run.now += 10
    run.write(301, 5)
    run.log.finish()
    assert numbers(run.shown) == [*range(1, 101), *range(301, 306)]
    assert "200 log lines of rank 3 are not shown here" in run.shown[-1]


def test_long_lines_are_cut_and_never_gathered(monkeypatch):
    monkeypatch.setattr(rank_log, "MAX_LINE_BYTES", 10_000)
    monkeypatch.setattr(rank_log, "READ_BYTES", 1000)
    run = Run()
    run.node.data += format_line(1, "x" * 5000) + b"y" * 25_000
    run.log.forward()
    assert run.shown[0] == f"(rank-3) {'x' * 2000}… (3000 more characters)"
    assert len(run.log._partial_line) <= 11_000
    run.log.finish()
    assert len(run.shown) == 4


def test_a_look_is_bounded(monkeypatch):
    monkeypatch.setattr(rank_log, "MAX_POLL_BYTES", 5000)
    monkeypatch.setattr(rank_log, "READ_BYTES", 1000)
    run = Run()
    run.write(1, 1000)
    assert run.log.forward()
    assert run.log._offset == 5000
    run.log.finish()
    assert run.log._offset == len(run.node.data)
    assert not run.log.forward()


def test_the_end_that_is_kept_is_bounded():
    run = Run()
    run.write(1, 100)
    run.node.data += format_lines(200, ["z" * 60_000] * 40)
    run.log.forward()
    assert len(run.log._skipped_tail) <= rank_log.TAIL_BYTES
    run.log.finish()
    assert run.shown[-1].startswith("(rank-3) zzz")
