"""Xet with the real hf_xet, against storage of our own: what it brings, and what is done without.

The process that fetches is a real one, and so are its ends.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from prefect_bt.weights.sources import xet
from prefect_bt.weights.sources.file_listing import ListedFile
from prefect_bt.weights.sources.hub import HubSource
from prefect_bt.weights.sources.protocol import TransientError
from tests.forked import Forked
from tests.weights.cas_server import XORB, Cas, serving_cas
from tests.weights.conftest import REPOSITORY, Place, tree
from tests.weights.hub_server import Hub, Repo

pytestmark = [pytest.mark.slow]

pytest.importorskip("hf_xet", reason="hf_xet comes with huggingface_hub")

SECRET = "hf_pl4ntedT0ken"
XET_FROM = 4 << 20
"""Smaller than the product's, so that files of a few megabytes come over Xet."""
DATA = os.urandom(XET_FROM + 1_250_000)
FILES = {"config.json": b"{}", "model.safetensors": DATA}
STALL = 4.0


@pytest.fixture
def cas(hub: Hub) -> Iterator[Cas]:
    """Where the hub says that its large file lies."""
    with serving_cas() as cas:
        hub.repos["o/r"] = Repo(token=SECRET, cas=cas.url, xet={"model.safetensors": cas.add(DATA)})
        hub.repos["o/r"].commit(FILES)
        yield cas


@pytest.fixture
def source(cas: Cas, hub: Hub, monkeypatch: pytest.MonkeyPatch) -> HubSource:
    monkeypatch.setattr("prefect_bt.weights.sources.hub.XET_MIN_BYTES", XET_FROM)
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", hub.url)
    monkeypatch.setattr("huggingface_hub.hf_api.api.endpoint", hub.url)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_XET", False)
    return HubSource("hf://o/r", SECRET, stall_timeout=20.0)


@pytest.fixture
def impatient(source: HubSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> HubSource:
    """Gives up a start that is silent for STALL seconds, once a block of `whole` is here."""
    follow, whole = xet._ProcessWatcher.wait, tmp_path / "whole"

    def follow_once_begun(*given: Any) -> bool:
        deadline = time.monotonic() + 200
        while not (whole.exists() and whole.stat().st_size >= XORB):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        return follow(*given)

    monkeypatch.setattr(xet._ProcessWatcher, "wait", follow_once_begun)
    return HubSource("hf://o/r", SECRET, stall_timeout=STALL)


def large(source: HubSource) -> ListedFile:
    [file] = [file for file in source.list_files().files if file.path == "model.safetensors"]
    return file


def of_us() -> list[psutil.Process]:
    """List the running processes that download over Xet; children of other tests may have ended."""
    found = list[psutil.Process]()
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # A zombie, too: the process of another test
            if xet.__name__ in process.cmdline():
                found.append(process)
    return found


# -- what it brings -------------------------------------------------------------------------


def test_a_file_over_xet(source: HubSource, cas: Cas, tmp_path: Path) -> None:
    target, ticks = tmp_path / "whole", list[int]()
    assert source.download_file(large(source), target, ticks.append) is True
    assert target.read_bytes() == DATA
    assert sum(ticks) == len(DATA)
    assert [*tmp_path.iterdir()] == [target], "nothing of hf_xet's stays"
    assert not of_us()
    assert cas.tokens == {"Bearer xet-token"}, "and not the Hub's"


def test_what_is_here_is_not_fetched_again(source: HubSource, cas: Cas, tmp_path: Path) -> None:
    target = tmp_path / "whole"
    target.write_bytes(DATA[: 4 * XORB])
    assert source.download_file(large(source), target)
    assert target.read_bytes() == DATA
    assert cas.blocks <= 2
    cas.hang = True
    assert source.download_file(large(source), target), "it was whole"
    target.write_bytes(DATA + b"more")
    cas.hang = False
    assert source.download_file(large(source), target)
    assert target.read_bytes() == DATA


@pytest.mark.soak
def test_bytes_that_come_slowly_are_waited_for(source: HubSource, cas: Cas, tmp_path: Path) -> None:
    """The block that is missing is not whole within the time that a stall takes.

    Eight pieces of it come in that time; only two stalls of this machine would give Xet up.
    """
    stall = 6.0
    slow = HubSource("hf://o/r", SECRET, stall_timeout=stall)
    cas.pause = 2 * stall / (XORB >> 16)
    target = tmp_path / "whole"
    target.write_bytes(DATA[: 4 * XORB])
    assert slow.download_file(large(slow), target)
    assert target.read_bytes() == DATA


def test_the_second_start_goes_on_where_the_first_hung(
    impatient: HubSource, cas: Cas, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cas.hang_at, cas.hangs = 2, 1000
    follow = xet._ProcessWatcher.wait

    def follow_first(watch: Any, process: Any, stall: float, given_up: Any) -> bool:
        """Nothing hangs after the first start, and the second has a minute between two bytes."""
        try:
            return follow(watch, process, stall if cas.hangs else 60.0, given_up)
        finally:
            cas.hangs = 0

    monkeypatch.setattr(xet._ProcessWatcher, "wait", follow_first)
    target, ticks = tmp_path / "whole", list[int]()
    assert impatient.download_file(large(impatient), target, ticks.append)
    assert target.read_bytes() == DATA
    assert sum(ticks) == len(DATA)
    assert len([path for path in cas.asked if path.startswith("/v1/")]) == 2


def test_what_is_not_fetched_so(
    source: HubSource, cas: Cas, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "whole"
    file = large(source)
    assert not source.download_file(ListedFile("config.json", 2, xet_hash="a" * 64), target), (
        "too small"
    )
    assert not source.download_file(ListedFile("model.safetensors", len(DATA)), target), (
        "not offered"
    )
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_XET", True)
    assert not source.download_file(file, target)
    assert not target.exists()
    assert not cas.asked


# -- what it does not ------------------------------------------------------------------------


def test_an_error_gives_it_up_for_good(source: HubSource, cas: Cas, tmp_path: Path) -> None:
    file = large(source)
    cas.status = 404
    ticks = list[int]()
    with pytest.raises(TransientError) as caught:
        source.download_file(file, tmp_path / "whole", ticks.append)
    assert "hf://o/r: model.safetensors: Xet failed (" in str(caught.value)
    assert "going on over plain HTTP" in str(caught.value)
    assert SECRET not in str(caught.value)
    cas.status = 0
    asked = len(cas.asked)
    assert source.download_file(file, tmp_path / "other") is False, "not tried again"
    assert len(cas.asked) == asked
    assert not of_us()


def test_a_hang_in_the_middle_takes_back_what_it_told(
    impatient: HubSource, cas: Cas, tmp_path: Path
) -> None:
    file = large(impatient)
    cas.hang_at, cas.hangs = 2, 1000
    ticks = list[int]()
    with pytest.raises(
        TransientError, match=f"Xet sent no byte for {STALL:g} s twice; going on over plain"
    ):
        impatient.download_file(file, tmp_path / "whole", ticks.append)
    assert sum(ticks) == 0
    assert max(ticks) > 0
    assert not of_us()


def test_one_that_is_killed_ends_the_others(source: HubSource, cas: Cas, tmp_path: Path) -> None:
    file = large(source)
    cas.hang = True
    with ThreadPoolExecutor(2) as pool:
        tasks = [pool.submit(source.download_file, file, tmp_path / f"whole-{n}") for n in range(2)]
        deadline = time.monotonic() + 200
        while len(cas.asked) < 2:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        one, _ = of_us()
        one.kill()
        told = sorted(str(task.exception()) for task in tasks)
    assert "Xet failed (ended with code -9 after 0 of" in told[0]
    assert "Xet failed for another file" in told[1]
    assert not of_us()


def test_who_watches_may_end_it(source: HubSource, cas: Cas, tmp_path: Path) -> None:
    file = large(source)
    cas.hang = True

    def stop(_: int) -> None:
        raise RuntimeError("stopped")

    with pytest.raises(RuntimeError, match="stopped"):
        source.download_file(file, tmp_path / "whole", stop)
    assert not of_us()


def test_it_ends_with_the_process_that_started_it(
    source: HubSource, cas: Cas, hub: Hub, tmp_path: Path
) -> None:
    commit = source.list_files().revision
    name = hub.repos["o/r"].xet["model.safetensors"]
    cas.hang = True
    text = (
        "from pathlib import Path; from prefect_bt.weights.sources import hub;"
        "from prefect_bt.weights.sources.file_listing import ListedFile;"
        f"hub.XET_MIN_BYTES = {XET_FROM};"
        f"hub.HubSource('hf://o/r@{commit}', '{SECRET}').download_file("
        f"ListedFile('model.safetensors', {len(DATA)}, xet_hash='{name}'),"
        f"Path('{tmp_path}/whole'))"
    )
    environment = {**os.environ, "HF_ENDPOINT": hub.url, "PYTHONPATH": str(REPOSITORY)}
    process = Forked(text, environment=environment)
    deadline = time.monotonic() + 200
    while not cas.asked:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    [child] = of_us()
    assert SECRET not in " ".join(child.cmdline())
    process.send_signal(signal.SIGKILL)
    process.wait()
    child.wait(120)
    assert not child.is_running()


# -- as a job has it ------------------------------------------------------------------------


def test_a_mirror_over_xet(cas: Cas, hub: Hub, place: Place) -> None:
    assert tree(place.mirror("hf://o/r", token=SECRET, xet_from=XET_FROM, stall=20)) == FILES
    assert hub.bodies("model.safetensors") == 0
    assert SECRET not in "".join(place.printed)
    assert not Path(place.environment["HF_HOME"]).exists()


# What the source alone tells of the others is above.
@pytest.mark.parametrize(
    "fault",
    [
        *(pytest.param(one, marks=pytest.mark.soak) for one in ("hang", "500", "404")),
        "half",
        "damaged",
    ],
)
def test_a_mirror_in_spite_of_xet(cas: Cas, hub: Hub, place: Place, fault: str) -> None:
    cas.hang = fault == "hang"
    cas.status = int(fault) if fault.isdecimal() else 0
    cas.hang_at, cas.hangs = (2, 1000) if fault == "half" else (0, 0)
    if fault == "damaged":
        [name] = cas.files
        cas.files[name] = DATA[:-1] + bytes([DATA[-1] ^ 1])
    done = place.finish(place.start("hf://o/r", token=SECRET, xet_from=XET_FROM, stall=STALL))
    assert tree(Path(done["folder"])) == FILES
    by_xet = 2 * XORB if fault == "half" else 0  # which is not fetched again
    assert hub.settled_sent("model.safetensors") == len(DATA) - by_xet
    told = "arrived damaged" if fault == "damaged" else "going on over plain HTTP"
    assert any(told in note for note in done["notes"]), done["notes"]
    assert not list((place.state_dir / "weights").glob("parts/*/*"))


def test_a_mirror_killed_in_the_middle_of_xet(cas: Cas, hub: Hub, place: Place) -> None:
    cas.hang_at, cas.hangs = 3, 1000
    process = place.start("hf://o/r", token=SECRET, xet_from=XET_FROM, stall=60)
    weights = place.state_dir / "weights"
    deadline = time.monotonic() + 200
    while not any(p.stat().st_size for p in weights.glob("parts/*/whole")):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    here = sum(p.stat().st_size for p in weights.glob("parts/*/whole"))
    assert here >= XORB
    cas.hangs, cas.blocks = 0, 0
    assert tree(place.mirror("hf://o/r", token=SECRET, xet_from=XET_FROM, stall=20)) == FILES
    assert cas.blocks <= -(-(len(DATA) - here) // XORB) + 1, "it went on where that had come to"
    assert hub.bodies("model.safetensors") == 0
