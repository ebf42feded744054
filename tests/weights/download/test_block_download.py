"""Which requests bring a large file: few, even ones, and none for what is here."""

from __future__ import annotations

import itertools
import json
import math
import os
import signal
import time
from pathlib import Path

import pytest

from prefect_bt.weights import NodeCache
from prefect_bt.weights.cache.digest_index import file_identity
from prefect_bt.weights.cache.partial_file import PartialFolder, partial_file_id
from prefect_bt.weights.sources.file_listing import ListedFile
from tests.forked import Forked
from tests.weights.ranged import BLOCK, Ranges, serving_ranges

SCRIPT = Path(__file__).parents[1] / "ranged.py"

pytestmark = pytest.mark.slow


def start(ranges: Ranges, root: Path, block: int = BLOCK) -> Forked:
    return Forked(SCRIPT, [json.dumps({"url": ranges.url, "root": str(root), "block": block})])


def spans(ranges: Ranges, path: str = "model.bin") -> list[tuple[int, int]]:
    return sorted((begin, end) for name, begin, end in ranges.asked if name == path)


def joined(asked: list[tuple[int, int]]) -> bool:
    """Whether they lie end to end."""
    return all(a[1] == b[0] for a, b in itertools.pairwise(asked))


@pytest.mark.parametrize(
    ("blocks", "requests"), [(1, 1), (3, 3), (8, 8), (9, 5), (20, 7), (80, 10)]
)
def test_as_few_requests_as_keep_all_connections_at_work(
    tmp_path: Path, blocks: int, requests: int
) -> None:
    """At most eight blocks each; the last block is not a whole one."""
    source = tmp_path / "source"
    source.mkdir()
    block = 1 << 17
    size = blocks * block - 5
    with (source / "model.bin").open("wb") as file:
        file.truncate(size)
    with serving_ranges(source) as ranges:
        assert start(ranges, tmp_path / "weights", block).wait(100) == 0
        asked = spans(ranges)
    assert len(asked) == requests
    assert joined(asked)
    assert (asked[0][0], asked[-1][1]) == (0, size)


def test_what_is_here_ends_a_request(tmp_path: Path) -> None:
    """Killed once most of each run is here: only the rest is asked for, no hole is left."""
    source, root = tmp_path / "source", tmp_path / "weights"
    source.mkdir()
    data = os.urandom(20 * BLOCK)  # in seven requests
    (source / "model.bin").write_bytes(data)
    with serving_ranges(source) as ranges:
        [row] = ranges.listing()
        file = ListedFile(**row)
        part = PartialFolder(
            NodeCache(root).partial_path(partial_file_id(file_identity(ranges.url, file)))
        )
        # What has come may be a little less than what was sent: the map is told by the MiB.
        ranges.pause, ranges.hold = 0.01, 0.75 * len(data)
        first = start(ranges, root)
        while part.received_bytes() < 0.55 * len(data) or len(ranges.asked) < 7:
            assert first.poll() is None
            time.sleep(0.01)
        first.send_signal(signal.SIGKILL)
        first.wait()
        had, before = part.received_bytes(), len(ranges.asked)
        ranges.pause, ranges.hold = 0.0, math.inf
        assert start(ranges, root).wait(100) == 0
        again = sorted((begin, end) for _, begin, end in ranges.asked[before:])
    assert sum(end - begin for begin, end in again) == len(data) - had
    assert all(a[1] <= b[0] for a, b in itertools.pairwise(again))
    (folder,) = root.glob("trees/*/files")
    assert (folder / "model.bin").read_bytes() == data
