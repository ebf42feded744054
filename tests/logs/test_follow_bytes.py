"""Follow a log of any bytes, in pieces of any size, while it moves into the store."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from prefect_bt.logs import job_reader
from prefect_bt.logs.line_format import parse_lines
from tests.logs.test_job_reader import World, texts

LINES = [
    b"plain",
    "caf\u00e9 \U0001f389 \u2028 inside".encode(),
    b"\x00 a NUL \x00",
    b"\xff\xfe not UTF-8 \xc3",
    b"a\rframe",
    b"",
    b"x" * (1 << 20),
]


def make_log(chance: random.Random) -> bytes:
    """Return stored lines: numbered, so that a lost or repeated one is noticed."""
    chosen = [chance.choice(LINES) for _ in range(40)]
    return b"".join(b"%d %d %b\n" % (at + 1, at, text) for at, text in enumerate(chosen))


def cut_in_pieces(data: bytes, chance: random.Random, count: int) -> list[bytes]:
    ends = sorted(chance.sample(range(len(data)), count))
    return [data[start:end] for start, end in zip([0, *ends], [*ends, len(data)], strict=True)]


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("limit", [None, 3])
def test_no_line_is_lost_or_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, limit: int | None
):
    chance, world = random.Random(seed), World(tmp_path / "store")
    monkeypatch.setattr(job_reader, "MIN_CHUNK_BYTES", chance.choice([1000, 4099, 1 << 16]))
    monkeypatch.setattr(job_reader, "CHUNK_BYTES", job_reader.MIN_CHUNK_BYTES)
    world.begin()
    node, data = world.nodes[0, 0], make_log(chance)
    first, *pieces = cut_in_pieces(data, chance, 12)
    node.data += first
    steps: list[Callable[[], object]] = [
        lambda piece=piece: node.data.extend(piece) for piece in pieces
    ]

    def move() -> None:
        world.end_attempt()
        world.remove()

    steps[-1] = lambda: (node.data.extend(pieces[-1]), move())
    expected = [line.message for line in parse_lines(data)]
    if limit is not None:
        shown = [line.message for line in parse_lines(first[: first.rfind(b"\n") + 1])]
        expected = expected[max(0, len(shown) - limit) :]
    assert texts(world.follow([*steps, world.end], limit=limit)) == expected
