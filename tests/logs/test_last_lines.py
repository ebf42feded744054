"""A log from its end: the same lines as from its beginning, without reading all of it."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from prefect_bt.logs import rank_reader
from prefect_bt.logs.follow import follow_lines
from prefect_bt.logs.job_reader import JobLogs
from prefect_bt.logs.levels import LevelDetector, LogLevel
from prefect_bt.logs.line_filter import LineFilter
from prefect_bt.logs.line_format import format_line, parse_lines
from prefect_bt.logs.rank_reader import find_line_end, iter_backwards
from prefect_bt.object_store import open_store
from tests.logs.test_job_reader import Node, World, texts


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(rank_reader, "BLOCK_BYTES", 64)
    monkeypatch.setattr(rank_reader, "CONTEXT_BYTES", 1024)


@pytest.mark.parametrize("seed", range(20))
def test_backwards_is_forwards_reversed(seed: int):
    chance = random.Random(seed)
    lines = [
        format_line(10**18 + n, f"{n} " + "x" * chance.choice([0, 1, 61, 62, 63, 64, 300]))
        for n in range(chance.randrange(60))
    ]
    data = b"".join(lines) + (b"" if chance.random() < 0.5 else b"1000000000000000099 no end")

    class Pieces(Node):
        def read_log(self, *, offset: int, limit: int) -> bytes:
            return super().read_log(offset=offset, limit=min(limit, chance.choice([1, 7, 1000])))

    log = Pieces(0, 3, bytearray(data))
    assert find_line_end(log, len(data)) == data.rfind(b"\n") + 1
    found = [one.line for one in iter_backwards(log, len(data))]
    assert found[::-1] == list(parse_lines(data, rank=3))


def test_levels_and_times_come_from_the_lines_before():
    said = ["start", "ERROR:a:b", *(f"  frame {n}" for n in range(20)), "end"]
    log = b"".join(format_line(10**18 + n, text) for n, text in enumerate(said)) + b"unstamped\n"
    found = list(iter_backwards(Node(0, 0, bytearray(log)), len(log), levels=True))[::-1]
    reader = LevelDetector()
    assert [one.level for one in found] == [reader.detect(text) for text in [*said, "unstamped"]]
    assert found[-1].at == 10**18 + len(said) - 1
    assert found[10].level is LogLevel.ERROR


def test_only_the_end_is_read(tmp_path: Path):
    world = World(tmp_path / "store")
    world.begin()
    for n in range(2000):
        world.write(n + 1, f"line {n}")
    node, read = world.nodes[0, 0], list[int]()
    whole = node.read_log

    def counted(*, offset: int, limit: int) -> bytes:
        data = whole(offset=offset, limit=limit)
        read.append(len(data))
        return data

    node.read_log = counted  # pyright: ignore[reportAttributeAccessIssue]
    found = world.logs().read_newest(LineFilter(), 3)
    assert texts(found) == ["line 1997", "line 1998", "line 1999"]
    assert sum(read) < 3000 < len(node.data)


def test_over_ranks_and_attempts_and_with_every_filter(tmp_path: Path):
    world, chance = World(tmp_path / "store"), random.Random(7)
    for attempt in range(3):
        world.begin(ranks=3)
        for n in range(60):
            at = 10**18 + 1000 * attempt + n
            text = chance.choice(["a", "WARNING:x:b", "Traceback (most recent call last):", "  f"])
            world.write(at, f"{text} {n}", rank=chance.randrange(3), attempt=attempt)
        if attempt < 2:
            world.end_attempt(attempt)
    for query in (
        LineFilter(),
        LineFilter(since=10**18 + 1030, until=10**18 + 2020),
        LineFilter(min_level=LogLevel.WARNING),
        LineFilter(ranks=[1], attempts=[0, 2], levels=True),
    ):
        everything = list(world.logs().read_new(query, include_partial=True))
        for limit in (1, 5, 59, 61, 500):
            assert world.logs().read_newest(query, limit) == everything[-limit:]


def test_following_goes_on_after_the_newest(tmp_path: Path):
    world = World(tmp_path / "store")
    world.begin()
    world.write(1, "of the first attempt")
    world.end_attempt(0)
    world.remove(0)
    attempt = world.begin()
    for n in range(10):
        world.write(10 + n, f"line {n}", attempt=attempt)
    world.nodes[attempt, 0].data += b"30 half"
    steps = [
        lambda: world.nodes[attempt, 0].data.extend(b" a line\n"),
        lambda: world.end_attempt(attempt),
        lambda: world.remove(attempt),
        world.end,
    ]
    found = world.follow(steps, limit=2)
    assert texts(found) == ["line 8", "line 9", "half a line"]


def test_an_empty_job_has_no_newest_line(tmp_path: Path):
    world = World(tmp_path / "store")
    logs = JobLogs(world.ledger, world.record)
    assert logs.read_newest(LineFilter(), 5) == []
    world.end()
    assert list(follow_lines(logs, limit=5)) == []
    assert open_store(str(tmp_path / "store"))
