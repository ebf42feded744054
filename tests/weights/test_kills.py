"""kill -9 at any moment: nothing wrong is ever visible, nothing that arrived is asked for again.

In the gate at placed moments; `make soak` kills at random ones.
"""

from __future__ import annotations

import hashlib
import json
import math
import random
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from prefect_bt.weights.cache.digest_index import file_identity
from prefect_bt.weights.cache.node_cache import NodeCache
from prefect_bt.weights.cache.partial_file import partial_file_id
from prefect_bt.weights.sources.file_listing import ListedFile
from tests.conftest import Soak
from tests.forked import Forked

from .conftest import tree
from .ranged import BLOCK, GRANULE, PIECE, Ranges, serving_ranges

SCRIPT = Path(__file__).with_name("ranged.py")
SMALL = 40

pytestmark = pytest.mark.timeout(600)


def make_source(folder: Path, seed: int, *, blocks: int = 17) -> None:
    chance = random.Random(seed)
    (folder / "sub").mkdir(parents=True)
    for name, size in (("model-1.bin", blocks * BLOCK + 12_345), ("sub/model-2.bin", BLOCK + 1)):
        (folder / name).write_bytes(chance.randbytes(size))
    (folder / "sub" / "same.bin").write_bytes((folder / "model-1.bin").read_bytes())
    for n in range(SMALL):
        (folder / "sub" / f"{n}.json").write_bytes(chance.randbytes(chance.randrange(200_000)))


def start(ranges: Ranges, root: Path) -> Forked:
    process = Forked(SCRIPT, [json.dumps({"url": ranges.url, "root": str(root)})])
    assert process.stdout.readline() == "ready\n"
    return process


def arrived(ranges: Ranges, root: Path) -> dict[str, list[tuple[int, int]]]:
    """Which bytes of the source's files this machine has, as the maps and journals say."""
    cache, found = NodeCache(root), dict[str, list[tuple[int, int]]]()
    for row in ranges.listing():
        file = ListedFile(
            row["path"], row["size"], sha256=row["sha256"], version_tag=row["version_tag"]
        )
        folder = cache.partial_path(partial_file_id(file_identity(ranges.url, file)))
        if (folder / "map").exists():
            here = [n for n, mark in enumerate((folder / "map").read_bytes()) if mark]
            found[file.path] = [(n * GRANULE, (n + 1) * GRANULE) for n in here]
    for journal in root.glob("fills/*/journal"):
        sizes = {row["path"]: row["size"] for row in ranges.listing()}
        for line in filter(None, journal.read_text().splitlines()):
            path = json.loads(line)["id"]
            found[path] = [(0, sizes[path])]
    return found


def asked_again(
    asked: list[tuple[str, int, int]], before: dict[str, list[tuple[int, int]]]
) -> dict[str, int]:
    """Bytes that were here and were asked for once more."""
    twice: dict[str, int] = {}
    for name, begin, end in asked:
        for has, until in before.get(name, []):
            overlap = min(end, until) - max(begin, has)
            if overlap > 0:
                twice[name] = twice.get(name, 0) + overlap
    return twice


def check_after_a_kill(ranges: Ranges, root: Path, before: Any, since: int) -> None:
    """A file that was half here cannot become anything but itself, and is not lost."""
    assert asked_again(ranges.asked[since:], before) == {}
    for published in root.glob("trees/*/files"):
        assert tree(published) == tree(ranges.folder)
    for blob in root.glob("blobs/*/*"):
        assert hashlib.sha256(blob.read_bytes()).hexdigest() == blob.name


def check_the_end(ranges: Ranges, root: Path) -> None:
    out, log = start(ranges, root).communicate(timeout=200)
    assert out, log
    assert tree(Path(json.loads(out)["folder"])) == tree(ranges.folder)
    assert not [*root.glob("fills/*"), *root.glob("parts/*")]


@pytest.mark.slow
@pytest.mark.parametrize("tells_digests", [True, False], ids=["sha256", "etag"])
def test_killed_while_it_fetches(tmp_path: Path, tells_digests: bool) -> None:
    """At the first byte, among the small files, in the middle, and near the end."""
    make_source(tmp_path / "source", 7, blocks=6)
    root = tmp_path / "state" / "weights"
    with serving_ranges(tmp_path / "source") as ranges:
        ranges.tells_digests = tells_digests
        size = sum(row["size"] for row in ranges.listing())
        for reached in (0.0, 0.1, 0.3, 0.5):  # of two large files that are the same one is fetched
            ranges.hold = reached * size + 1
            before, since = arrived(ranges, root), len(ranges.asked)
            process = start(ranges, root)
            while ranges.total < ranges.hold:
                assert process.poll() is None
                time.sleep(0.005)
            process.kill()
            process.wait()
            check_after_a_kill(ranges, root, before, since)
        ranges.hold = math.inf
        check_the_end(ranges, root)


@pytest.mark.soak
@pytest.mark.parametrize("tells_digests", [True, False], ids=["sha256", "etag"])
def test_killed_at_random(tmp_path: Path, soak: Soak, tells_digests: bool) -> None:
    make_source(tmp_path / "source", 7)
    root, kills, turn = tmp_path / "state" / "weights", 0, 0
    with serving_ranges(tmp_path / "source") as ranges:
        ranges.tells_digests = tells_digests
        ranges.pause = 0.0005
        while kills < 8 * soak.length:
            before = arrived(ranges, root)
            process, since = start(ranges, root), len(ranges.asked)
            try:
                out, _ = process.communicate(timeout=soak.random.uniform(0.02, 0.7))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                kills += 1
            else:
                assert process.returncode == 0
                assert tree(Path(json.loads(out)["folder"])) == tree(tmp_path / "source")
                turn += 1
                root = tmp_path / f"state-{turn}" / "weights"  # and once more from nothing
                continue
            check_after_a_kill(ranges, root, before, since)
        ranges.pause = 0.0
        check_the_end(ranges, root)


@pytest.mark.soak
def test_what_a_kill_costs(tmp_path: Path, soak: Soak) -> None:
    """Over all kills together, no more is sent than the pieces on their way at each."""
    make_source(tmp_path / "source", 8)
    rows = Ranges(tmp_path / "source").listing()
    size = sum(row["size"] for row in rows)
    same = next(row["size"] for row in rows if row["path"] == "sub/same.bin")
    root, kills = tmp_path / "state" / "weights", 0
    with serving_ranges(tmp_path / "source") as ranges:
        ranges.pause = 0.05
        done: dict[str, Any] = {}
        while not done:
            process = start(ranges, root)
            try:
                out, _ = process.communicate(timeout=soak.random.uniform(0.3, 0.9))
                done = json.loads(out)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                kills += 1
                ranges.pause = 0.05 if kills < 6 else 0.0
        time.sleep(0.2)
        sent = sum(ranges.sent.values())
    assert kills >= 3
    # 8 blocks or 16 small files at a time; what the sockets hold counts as sent.
    on_the_way = 16 * (PIECE + (5 << 20))
    assert sent <= size - same + kills * on_the_way
    assert sent <= 1.6 * size
