"""Reading a job's log over every way it can lie and move."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from prefect_bt.errors import SubstrateError
from prefect_bt.ledger.ledger import Ledger
from prefect_bt.ledger.records import JobRecord, Outcome
from prefect_bt.ledger.states import JobState
from prefect_bt.logs.follow import follow_lines
from prefect_bt.logs.job_reader import CHUNK_BYTES, JobLogs
from prefect_bt.logs.line_filter import JobLine, LineFilter
from prefect_bt.logs.line_format import format_line
from prefect_bt.object_keys import log_key
from prefect_bt.object_store import open_store
from tests.written_jobs import write_job


@dataclass
class Node:
    """A node with its log in memory; behaves like a handle of a real substrate."""

    attempt: int
    rank: int
    data: bytearray = field(default_factory=bytearray)
    broken: bool = False
    before: Callable[[], object] = lambda: None

    def log_size(self) -> int:
        return len(self.data)

    def read_log(self, *, offset: int, limit: int) -> bytes:
        self.before()
        if self.broken:
            raise SubstrateError("gone", substrate="fake", rank=self.rank)
        return bytes(self.data[offset : offset + limit])


class BusyLedger(Ledger):
    """What the reader looks at may change right before it is looked at."""

    meanwhile: Callable[[], object] = staticmethod(lambda: None)

    def get_state(self, job_id: str) -> JobState:
        self.meanwhile()
        return super().get_state(job_id)

    def list_outcomes(self, job_id: str) -> list[Outcome]:
        self.meanwhile()
        return super().list_outcomes(job_id)


class World:
    """One job, its store and its nodes, with verbs for what happens to them."""

    def __init__(self, folder: Path) -> None:
        self.ledger = Ledger(open_store(str(folder)))
        project = self.ledger.projects.ensure("p")
        job_id = self.ledger.reserve_job_id(project.id)
        self.record = JobRecord(job_id, "job-1", project.id, "p", 1.0, {})
        write_job(self.ledger, self.record)
        self.nodes: dict[tuple[int, int], Node] = {}
        self.unreachable = False
        self.meanwhile: Callable[[], object] = lambda: None
        """Called whenever the reader looks: the world does not wait for it."""

    def be_busy(self) -> None:
        self.meanwhile()

    def list_nodes(self, _: object) -> Sequence[Node]:
        self.meanwhile()
        if self.unreachable:
            return []
        found = list(self.nodes.values())
        self.meanwhile()
        return found

    def logs(self) -> JobLogs:
        seen = BusyLedger(self.ledger.store)
        seen.meanwhile = self.be_busy
        return JobLogs(seen, self.record, list_live=self.list_nodes)

    def begin(self, ranks: int = 1) -> int:
        attempt = self.ledger.begin_attempt(self.record.id)
        self.launch(attempt, ranks)
        return attempt

    def launch(self, attempt: int, ranks: int) -> None:
        for rank in range(ranks):
            self.nodes[attempt, rank] = Node(attempt, rank, before=self.be_busy)

    def write(self, at: int, text: str, *, rank: int = 0, attempt: int = 0) -> None:
        self.nodes[attempt, rank].data += format_line(at, text)

    def seal(self, attempt: int = 0) -> None:
        for (number, rank), node in self.nodes.items():
            if number == attempt:
                key = log_key(self.record.project_id, self.record.id, attempt, rank)
                self.ledger.store.put(key, bytes(node.data))

    def remove(self, attempt: int = 0) -> None:
        for (number, _), node in self.nodes.items():
            node.broken = node.broken or number == attempt
        self.nodes = {key: node for key, node in self.nodes.items() if key[0] != attempt}

    def end_attempt(self, attempt: int = 0) -> None:
        """As attempts.close_attempt does: sealed first, then the outcome."""
        self.seal(attempt)
        self.ledger.end_attempt(self.record.id, Outcome(attempt, JobState.FAILED))

    def end(self, state: JobState = JobState.FAILED) -> None:
        self.ledger.append_event(self.record.id, state)

    def follow(self, steps: Sequence[Callable[[], object]] = (), **options: object):
        """Follow, with one step of the world at every pause; fails when it goes on too long."""
        todo, pauses = list(steps), 0

        def sleep(seconds: float) -> None:
            nonlocal pauses
            pauses += 1
            assert pauses < 300, "follow_looks does not end"
            if todo:
                todo.pop(0)()

        query = options.pop("query", LineFilter())
        looks = follow_lines(self.logs(), query, sleep=sleep, **options)  # pyright: ignore
        return [line for line in looks if line is not None]


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "store")


def texts(lines: Sequence[JobLine]) -> list[str]:
    return [found.line.message for found in lines]


# -- reading what is there ------------------------------------------------------------------


def test_merges_ranks_by_time_and_keeps_attempts_in_order(world: World):
    world.begin(ranks=2)
    world.write(10, "a", rank=0)
    world.write(30, "c", rank=0)
    world.write(20, "b", rank=1)
    world.end_attempt()
    world.remove()
    world.begin(ranks=2)
    world.write(5, "clock went back", rank=1, attempt=1)
    found = list(world.logs().read_new(include_partial=True))
    assert texts(found) == ["a", "b", "c", "clock went back"]
    assert [line.attempt for line in found] == [0, 0, 0, 1]
    assert [line.line.replica for line in found] == ["rank-0", "rank-1", "rank-0", "rank-1"]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        (LineFilter(), ["0/0 loss", "0/1 loss", "1/0 acc", "1/1 acc"]),
        (LineFilter(ranks=frozenset({1})), ["0/1 loss", "1/1 acc"]),
        (LineFilter(attempts=frozenset({1})), ["1/0 acc", "1/1 acc"]),
        (LineFilter(since=100), ["1/0 acc", "1/1 acc"]),
        (LineFilter(pattern=re.compile("lo..$")), ["0/0 loss", "0/1 loss"]),
        (LineFilter(ranks=frozenset({7})), []),
        (LineFilter(attempts=frozenset({9})), []),
    ],
)
def test_filters(world: World, query: LineFilter, expected: list[str]):
    for attempt, word in enumerate(["loss", "acc"]):
        world.begin(ranks=2)
        for rank in range(2):
            text = f"{attempt}/{rank} {word}"
            world.write(100 * attempt + rank + 1, text, rank=rank, attempt=attempt)
        world.end_attempt(attempt)
    assert texts(list(world.logs().read_new(query, include_partial=True))) == expected


def test_lines_without_a_time_keep_their_place(world: World):
    world.begin(ranks=2)
    world.nodes[0, 0].data += b"10 first\nno stamp\n30 last\n"
    world.write(20, "between", rank=1)
    found = list(world.logs().read_new(include_partial=True))
    assert texts(found) == ["first", "no stamp", "between", "last"]
    late = LineFilter(since=5)
    assert "no stamp" in texts(list(world.logs().read_new(late, include_partial=True)))


def test_logs_larger_than_a_chunk_with_letters_on_the_border(world: World):
    world.begin(ranks=2)
    line = "é" * 1000
    for number in range(3 * CHUNK_BYTES // 2000):
        world.write(2 * number + 1, f"{number} {line}", rank=0)
        world.write(2 * number + 2, f"{number} {line}", rank=1)
    found = list(world.logs().read_new(include_partial=True))
    assert len(found) == 2 * (3 * CHUNK_BYTES // 2000)
    stamps = [f.line.timestamp for f in found]
    assert stamps == sorted(stamps)
    assert all(f.line.message.endswith(line) for f in found)


def test_an_unfinished_last_line_is_shown(world: World):
    world.begin()
    world.nodes[0, 0].data += b"1 whole\n2 cut"
    assert texts(list(world.logs().read_new(include_partial=True))) == ["whole", "cut"]


def test_without_a_substrate_the_sealed_logs_are_read(world: World):
    world.begin()
    world.write(1, "kept")
    world.end_attempt()
    world.unreachable = True
    assert texts(list(world.logs().read_new(include_partial=True))) == ["kept"]


# -- following ------------------------------------------------------------------------------


def test_ends_for_a_job_that_was_never_launched(world: World):
    world.end(JobState.DEPLOY_FAILED)
    assert world.follow() == []


def test_ends_for_a_job_that_died_before_it_printed(world: World):
    world.begin()
    assert world.follow([lambda: None, world.end_attempt, world.end, world.remove]) == []


def test_ends_for_a_silent_job(world: World):
    world.begin(ranks=2)
    quiet = [lambda: None] * 50
    assert world.follow([*quiet, world.end_attempt, world.end]) == []


def test_waits_through_a_queue_before_there_is_an_attempt(world: World):
    steps = [
        *[lambda: None] * 20,
        world.begin,
        lambda: world.write(1, "at last"),
        world.end_attempt,
        world.end,
    ]
    assert texts(world.follow(steps)) == ["at last"]


def test_a_log_sealed_and_removed_between_looks_is_read_on(world: World):
    world.begin()
    world.write(1, "one")

    def move() -> None:
        world.write(2, "two")
        world.end_attempt()
        world.remove()
        world.end()

    assert texts(world.follow([lambda: None, move])) == ["one", "two"]


def test_a_log_that_moves_after_it_was_found(world: World):
    """Between find and read_log the node is sealed and removed; its handle answers nothing."""
    world.begin()
    world.write(1, "one")
    node = world.nodes[0, 0]

    def break_handle() -> None:
        world.write(2, "two")
        world.end_attempt()
        node.broken = True

    steps = [break_handle, world.remove, world.end]
    assert texts(world.follow(steps)) == ["one", "two"]


def test_attempts_that_change_while_followed(world: World):
    world.begin()
    world.write(1, "first attempt")

    def again() -> None:
        world.write(2, "dying")
        world.end_attempt()
        world.remove()
        world.begin()
        world.write(3, "second attempt", attempt=1)

    def finish() -> None:
        world.write(4, "good", attempt=1)
        world.end_attempt(1)
        world.remove(1)
        world.end()

    found = world.follow([again, lambda: None, finish])
    assert texts(found) == ["first attempt", "dying", "second attempt", "good"]
    assert [line.attempt for line in found] == [0, 0, 1, 1]


def test_a_reopened_job_is_followed_on(world: World):
    world.begin()
    node = world.nodes[0, 0]
    node.data += b"1 one\n2 not sealed"

    def reopen() -> None:
        world.ledger.append_event(world.record.id, JobState.CREATED)
        node.data += b" yet\n"

    steps = [world.end, reopen, world.end_attempt, world.end]
    assert texts(world.follow(steps)) == ["one", "not sealed yet"]


def test_a_log_that_is_never_sealed_ends_after_a_while(world: World):
    world.begin()
    world.write(1, "one")
    assert texts(world.follow([world.end])) == ["one"]


def test_the_end_of_a_dead_job_may_be_written_by_refresh(world: World):
    world.begin()
    world.write(1, "one")
    looks: list[int] = []

    def refresh() -> None:
        looks.append(1)
        if len(looks) == 5:
            world.end_attempt()
            world.end()

    assert texts(world.follow(refresh=refresh)) == ["one"]


def test_half_lines_are_held_back_until_they_are_whole(world: World):
    world.begin()
    node = world.nodes[0, 0]
    node.data += "1 caf\u00e9".encode()[:-1]

    def finish() -> None:
        node.data += "1 caf\u00e9\n".encode()[-2:]

    assert texts(world.follow([finish, world.end_attempt, world.end])) == ["café"]


def test_losing_contact_does_not_end_the_following(world: World):
    world.begin()
    world.write(1, "one")
    lose = lambda: setattr(world, "unreachable", True)  # noqa: E731
    back = lambda: setattr(world, "unreachable", False)  # noqa: E731
    steps = [lose, lambda: world.write(2, "two"), back, world.end_attempt, world.end]
    assert texts(world.follow(steps)) == ["one", "two"]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(60))
def test_nothing_lost_nothing_twice_whatever_happens_when(world: World, seed: int):
    chance = random.Random(seed)
    written: list[str] = []
    clock = 0

    def write_some(attempt: int, ranks: int) -> None:
        nonlocal clock
        for _ in range(chance.randrange(4)):
            clock += 1
            rank = chance.randrange(ranks)
            text = f"{attempt}.{rank}.{clock}"
            world.write(clock, text, rank=rank, attempt=attempt)
            written.append(text)

    def script() -> list[Callable[[], object]]:
        steps: list[Callable[[], object]] = []
        for attempt in range(chance.randrange(1, 4)):
            ranks = chance.randrange(1, 4)
            steps.append(lambda: world.ledger.begin_attempt(world.record.id))
            steps.append(lambda a=attempt, r=ranks: world.launch(a, r))
            for _ in range(chance.randrange(6)):
                steps.append(lambda a=attempt, r=ranks: write_some(a, r))
            steps.append(lambda a=attempt: world.end_attempt(a))
            if chance.random() < 0.7:
                steps.append(lambda a=attempt: world.remove(a))
        return [*steps, world.end]

    todo = script()

    def some(most: int) -> None:
        for _ in range(min(len(todo), chance.randrange(most + 1))):
            todo.pop(0)()

    # At every pause, and while the reader is looking, something or nothing happens.
    world.meanwhile = lambda: some(chance.choice([0, 0, 0, 1, 1, 40]))
    found = texts(world.follow([lambda: some(4)] * 100))
    assert sorted(found) == sorted(written)
    for log in {text.rpartition(".")[0] for text in written}:
        mine = [text for text in found if text.startswith(f"{log}.")]
        assert mine == [text for text in written if text.startswith(f"{log}.")]
