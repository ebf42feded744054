"""A sealed log that is not what was sealed is shown as it is, and named once."""

from __future__ import annotations

from pathlib import Path

import pytest

from prefect_bt.ledger.records import Outcome
from prefect_bt.ledger.states import JobState
from prefect_bt.logs.follow import follow_lines
from prefect_bt.logs.job_reader import JobLogs
from prefect_bt.logs.line_filter import LineFilter
from prefect_bt.logs.log_archive import LogArchiver
from prefect_bt.logs.rank_reader import MAX_LINE_BYTES
from prefect_bt.object_keys import log_key
from tests.logs.test_job_reader import World, texts


class SealedWorld(World):
    """Its attempts are sealed as the product seals them."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.scratch = folder / "scratch"

    def end_attempt(self, attempt: int = 0) -> None:
        record = self.record
        sealer = LogArchiver(
            self.ledger.store,
            project_id=record.project_id,
            job_id=record.id,
            attempt=attempt,
            scratch=self.scratch,
        )
        logs = sealer.archive(list(self.nodes.values()))
        self.ledger.end_attempt(record.id, Outcome(attempt, JobState.FAILED, logs=logs))

    def key(self, rank: int = 0) -> str:
        return log_key(self.record.project_id, self.record.id, 0, rank)


@pytest.fixture
def world(tmp_path: Path) -> SealedWorld:
    world = SealedWorld(tmp_path / "store")
    world.begin(ranks=2)
    world.write(1, "one")
    world.write(2, "two")
    world.write(3, "of the other", rank=1)
    return world


def ended(world: SealedWorld) -> bytes:
    world.end_attempt()
    world.remove()
    world.end()
    return world.ledger.store.get(world.key())


def read(world: SealedWorld, query: LineFilter | None = None) -> tuple[list[str], list[str]]:
    logs = world.logs()
    return texts(list(logs.read_new(query or LineFilter(), include_partial=True))), logs.corruption


def test_what_was_sealed_is_not_complained_of(world: SealedWorld):
    ended(world)
    assert read(world) == (["one", "two", "of the other"], [])


def test_read_live_and_then_sealed(world: SealedWorld):
    logs = world.logs()
    assert texts(list(logs.read_new())) == ["one", "two", "of the other"]
    world.write(4, "more")
    ended(world)
    assert texts(list(logs.read_new())) == ["more"]
    assert logs.corruption == []


@pytest.mark.parametrize(
    ("change", "said", "seen"),
    [
        (lambda data: data[:6], "is cut: 6 bytes are there, 12 were sealed", ["one"]),
        (lambda data: b"", "is cut: 0 bytes are there, 12 were sealed", []),
        (lambda data: data + b"3 x\n", "is longer than it was: 16 bytes", ["one", "two", "x"]),
        (lambda data: data.replace(b"two", b"six"), "is damaged: its SHA-256", ["one", "six"]),
    ],
)
def test_a_changed_log_is_named_and_shown(world: SealedWorld, change, said: str, seen: list[str]):
    data = ended(world)
    world.ledger.store.put(world.key(), change(data))
    lines, damage = read(world)
    assert [line for line in lines if line != "of the other"] == seen
    assert len(damage) == 1
    assert damage[0].startswith(f"The log of rank 0 of attempt 0 {said}")
    assert read(world, LineFilter(ranks=frozenset({1}))) == (["of the other"], [])


def test_a_missing_log_is_named(world: SealedWorld):
    ended(world)
    world.ledger.store.delete(world.key())
    lines, damage = read(world)
    assert lines == ["of the other"]
    assert damage == ["The log of rank 0 of attempt 0 is gone: 12 bytes were archived."]


def test_followed_it_is_named_once(world: SealedWorld):
    data = ended(world)
    world.ledger.store.put(world.key(), data[:6])
    logs = JobLogs(world.ledger, world.record)
    looks = list(follow_lines(logs))
    assert [look.line.message for look in looks if look] == ["one", "of the other"]
    assert None in looks
    assert len(logs.corruption) == 1


def test_an_outcome_of_an_older_version_proves_nothing(world: SealedWorld):
    world.seal()
    world.ledger.end_attempt(world.record.id, Outcome(0, JobState.FAILED))
    world.ledger.store.put(world.key(), b"1 x\n")
    world.remove()
    assert read(world) == (["x", "of the other"], [])


def test_a_log_without_newlines_is_read_in_pieces(world: SealedWorld):
    world.nodes[0, 0].data[:] = b"x" * (2 * MAX_LINE_BYTES + 5)
    query = LineFilter(ranks=frozenset({0}))
    found = texts(list(world.logs().read_new(query, include_partial=True)))
    assert len(found) == 2
    assert sum(map(len, found)) == 2 * MAX_LINE_BYTES + 5


def test_a_rank_that_prints_without_end_hides_no_other(world: SealedWorld):
    """Each look at rank 0 finds more of it; rank 1 has written meanwhile."""
    endless, other = world.nodes[0, 0], world.nodes[0, 1]
    endless.before = lambda: endless.data.extend(b"5 noise\n" * 1000)
    logs = world.logs()
    list(logs.read_new(max_seconds=0.2))
    other.data += b"9 here\n"
    endless.before = lambda: None
    assert "here" in texts(list(logs.read_new()))
