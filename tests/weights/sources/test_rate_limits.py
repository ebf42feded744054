"""Waits that a server announces: no retry is used up, and the user sees the reason."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from email.utils import formatdate
from pathlib import Path
from typing import Any

import pytest

from prefect_bt.errors import WeightsError
from prefect_bt.planning.plan import WeightsPlan
from prefect_bt.text.progress import Progress
from prefect_bt.weights import worker_threads
from prefect_bt.weights.cache.node_cache import NodeCache
from prefect_bt.weights.download import downloader
from prefect_bt.weights.dry_run import plan_mirror
from prefect_bt.weights.sources.http_source import HttpFault
from prefect_bt.weights.sources.protocol import SourceRequest
from tests.weights.conftest import mirror, tree
from tests.weights.hub_server import Hub

pytest.importorskip("cryptography", reason="cryptography comes with moto[server]")
from tests.weights.file_server import Files, serving_files

DATE = "Sat, 28 Nov 2026 12:00:00 GMT"
LATER = "Sat, 28 Nov 2026 12:04:50 GMT"
FILES = {"config.json": b"{}", "model.safetensors": b"weights"}


@pytest.fixture(autouse=True)
def no_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(downloader, "RETRY_DELAYS", ())
    monkeypatch.setattr("prefect_bt.weights.mirror.RETRY_DELAYS", ())
    monkeypatch.setattr("prefect_bt.weights.dry_run.RETRY_DELAYS", ())
    monkeypatch.setattr(worker_threads.random, "random", lambda: 0.0)


@pytest.fixture
def busy(here: Hub) -> Iterator[Hub]:
    """A Hub that limits every request until 1.5 s after the first."""
    here.repos["o/r"].commit(FILES)
    here.bad.status, is_over = 429, threading.Event()

    def lift() -> None:
        while not here.asked and not is_over.wait(0.01):
            pass
        is_over.wait(1.5)
        here.bad.status = 0

    threading.Thread(target=lift, daemon=True).start()
    yield here
    is_over.set()


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"RateLimit": '"api";r=0;t=290'}, 290),
        ({"RateLimit": '"api" ; r = 0 ; t = 290'}, 290),
        ({"RateLimit": '"pages";r=7;t=300, "api";r=0;t=290'}, 290),
        ({"RateLimit": '"pages";r=0;t=20, "api";r=0;t=290'}, 290),
        ({"RateLimit": "limit=500, remaining=0, reset=290"}, 290),
        ({"RateLimit-Reset": "290", "RateLimit-Remaining": "0"}, 290),
        ({"RateLimit": '"api";r=5;t=290'}, 0),
        ({"RateLimit": "t"}, 0),
        ({"Retry-After": "290", "RateLimit": '"api";r=0;t=1'}, 290),
        ({"Retry-After": LATER, "Date": DATE}, 290),
        ({"Retry-After": DATE, "Date": LATER}, 0),
    ],
)
@pytest.mark.parametrize("status", [429, 503])
def test_the_announced_seconds(status: int, headers: dict[str, str], seconds: int) -> None:
    assert HttpFault("", status=status, headers=headers).retry_after == seconds


def test_a_date_without_that_of_the_server() -> None:
    headers = {"Retry-After": formatdate(time.time() + 290, usegmt=True)}
    assert HttpFault("", status=429, headers=headers).retry_after == pytest.approx(290, abs=5)


@pytest.mark.parametrize(
    "headers", [{"RateLimit": '"api";r=0;t=1'}, {"Retry-After": "1"}], ids=["RateLimit", "After"]
)
@pytest.mark.parametrize("secret", ["", "hf_token"])
def test_a_limit_of_the_hub_uses_up_no_retries(
    busy: Hub, tmp_path: Path, headers: dict[str, str], secret: str
) -> None:
    busy.bad.headers, notes = headers, list[str]()

    def note(progress: Progress) -> None:
        notes.append(progress.note)

    folder = mirror(WeightsPlan("hf://o/r", "/w", "k"), tmp_path, secret=secret, on_progress=note)
    assert tree(folder) == FILES
    hint = "" if secret else "; a token raises the limit"
    limited = f"waits 1 s: hf://o/r is rate-limited{hint} (the server answered 429)."
    assert {*notes} - {""} == {limited}
    assert sum(busy.asked.values()) < 12, "it asks when the wait is over, not before"


def test_a_limit_of_a_dry_run(busy: Hub, tmp_path: Path) -> None:
    busy.bad.headers, notes = {"Retry-After": "1"}, list[str]()
    request = SourceRequest(WeightsPlan("hf://o/r", "/w", "k"))
    planned = plan_mirror(request, NodeCache(tmp_path / "weights"), on_note=notes.append)
    assert planned.from_source == (2, 9)
    assert notes[0].startswith("waits 1 s: hf://o/r is rate-limited")


@pytest.mark.parametrize("status", [429, 503])
def test_a_busy_server_uses_up_no_retries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    with serving_files(tmp_path) as (served, certificate):
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        served.files["/model.bin"], served.retry_after = b"weights", "1"
        served.statuses, served.always_busy = [status] * 2, True
        notes = _mirror_with_notes(served, tmp_path)
    what = "rate-limited" if status == 429 else "busy"
    assert notes == [f"waits 1 s: {served.url}/model.bin is {what} (the server answered {status})."]


def _mirror_with_notes(served: Files, tmp_path: Path) -> list[str]:
    notes = dict[str, None]()

    def note(progress: Progress) -> None:
        notes[progress.note] = None

    plan = WeightsPlan(f"{served.url}/model.bin", "/w", "k")
    assert tree(mirror(plan, tmp_path / "state", on_progress=note)) == {"model.bin": b"weights"}
    return [*filter(None, notes)]


@pytest.mark.parametrize(("limit", "announced"), [(3600.0, "7200"), (0.5, "1"), (3600.0, "9" * 30)])
def test_a_wait_without_end_is_an_error(
    here: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: float, announced: str
) -> None:
    monkeypatch.setattr(worker_threads, "MAX_ANNOUNCED_WAIT", limit)
    here.bad.status, here.bad.headers = 429, {"Retry-After": announced}
    with pytest.raises(WeightsError, match="is rate-limited") as caught:
        mirror(WeightsPlan("hf://o/r", "/w", "k"), tmp_path)
    assert "network" not in str(caught.value)
    assert "Try again in " in caught.value.next_step


@pytest.mark.parametrize("given", [{"Retry-After": "290"}, {"RateLimit": '"api";r=0;t=290'}])
def test_a_stop_ends_the_wait(here: Hub, tmp_path: Path, given: dict[str, Any]) -> None:
    here.bad.status, here.bad.headers, stop = 429, given, threading.Event()

    def note(progress: Progress) -> None:
        if progress.note.startswith("waits 290 s"):
            stop.set()

    with pytest.raises(WeightsError, match="was stopped"):
        mirror(WeightsPlan("hf://o/r", "/w", "k"), tmp_path, on_progress=note, stop=stop)
