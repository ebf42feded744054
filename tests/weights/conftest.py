"""A hub of our own, and a place to mirror to."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from prefect_bt.object_store import open_store
from prefect_bt.object_store.protocols import Store
from prefect_bt.planning.plan import WeightsPlan
from prefect_bt.weights import NodeCache, mirror_source
from prefect_bt.weights.sources import protocol
from prefect_bt.weights.sources.protocol import SourceRequest
from tests.checkpoints.buckets import Bucket, use
from tests.forked import Forked
from tests.s3_server import shared_s3

from . import arranged
from .arranged import LARGE, Arranged
from .hub_server import Hub, Repo, serving_hub

MIRRORING = Path(__file__).with_name("mirroring.py")
REPOSITORY = Path(__file__).parents[2]
TEMPLATE = "%s/{repo_id}/resolve/{revision}/{filename}"


@dataclass
class Place:
    """Mirrors in processes of its own, so that HF_ENDPOINT counts as it does for a user.

    They are forks, but for one that a test asks to be a `program`: Python from its start.
    """

    state_dir: Path
    environment: dict[str, str]
    printed: list[str] = field(default_factory=list)

    def start(self, source: str, **given: Any) -> Forked:
        return Forked(MIRRORING, [self._given(source, given)], self.environment)

    def program(self, source: str, **given: Any) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, str(MIRRORING), self._given(source, given)],
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def _given(self, source: str, given: dict[str, Any]) -> str:
        return json.dumps(
            {"source": source, "key": "k1", "state_dir": str(self.state_dir), **given}
        )

    def finish(self, process: Forked | subprocess.Popen[str]) -> dict[str, Any]:
        out, log = process.communicate(timeout=400)
        self.printed += [out, log]
        assert process.returncode == 0, log
        return json.loads(out)

    def mirror(self, source: str, **given: Any) -> Path:
        done = self.finish(self.start(source, **given))
        assert "folder" in done, done
        return Path(done["folder"])

    def refused(self, source: str, **given: Any) -> str:
        done = self.finish(self.start(source, **given))
        assert done.get("source") == source, done
        assert done["next"], done
        assert "\n" not in done["error"], done
        assert not [*(self.state_dir / "weights").glob("trees/*")]
        return done["error"]


@pytest.fixture
def s3() -> str:
    """The endpoint of a server of buckets."""
    return shared_s3()


@pytest.fixture(params=["disk", "memory", pytest.param("s3", marks=pytest.mark.integration)])
def store(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    if request.param == "memory":
        return open_store("memory://")
    return open_store(_url(request, tmp_path, monkeypatch))


@pytest.fixture(params=["disk", pytest.param("s3", marks=pytest.mark.integration)])
def url(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A store that several processes reach."""
    return _url(request, tmp_path, monkeypatch)


def _url(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "disk":
        return str(tmp_path / "store")
    endpoint: str = request.getfixturevalue("s3")
    use(monkeypatch, endpoint)
    return Bucket(endpoint).url


@pytest.fixture
def hub() -> Iterator[Hub]:
    with serving_hub() as hub:
        hub.repos["o/r"] = Repo()
        yield hub


@pytest.fixture
def here(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> Hub:
    """The hub is asked from this process."""
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", hub.url)
    monkeypatch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", TEMPLATE % hub.url)
    monkeypatch.setattr("huggingface_hub.hf_api.api.endpoint", hub.url)
    return hub


@pytest.fixture
def place(tmp_path: Path, hub: Hub) -> Place:
    kept = {k: v for k, v in os.environ.items() if not k.startswith("HF_")}
    environment = {
        **kept,
        "HF_ENDPOINT": hub.url,
        "HF_HOME": str(tmp_path / "hf-home"),
        "HF_TOKEN": "ambient-token-of-the-machine",
        "HF_HUB_DOWNLOAD_TIMEOUT": "1",
        "HF_HUB_ETAG_TIMEOUT": "1",
        "PYTHONPATH": str(REPOSITORY),
    }
    return Place(tmp_path / "state", environment)


@pytest.fixture
def start() -> Iterator[Callable[..., Forked]]:
    """Runs code in processes that are gone when the test is over."""
    running: list[Forked] = []

    def begin(code: str, *arguments: object) -> Forked:
        running.append(Forked(code, arguments))
        return running[-1]

    yield begin
    for process in running:
        process.kill()
        process.communicate()


def requested(source: str, token: str = "", **given: Any) -> SourceRequest:
    """The argument of a source."""
    return SourceRequest(WeightsPlan(source, "/w", "k1"), token, **given)


def mirror(plan: WeightsPlan, state_dir: Path, **given: Any) -> Path:
    """The published folder."""
    return mirror_source(plan, cache=NodeCache(state_dir / "weights"), **given).folder


def tree(folder: Path) -> dict[str, bytes]:
    """Every file below the folder."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.fixture
def source_here(monkeypatch: pytest.MonkeyPatch) -> Arranged:
    """Sources with `arranged://` have two files, and misbehave as the test says."""
    monkeypatch.setitem(protocol.SOURCES, "arranged", "tests.weights.arranged:ArrangedSource")
    now = Arranged(files={"large.bin": LARGE, "small.txt": b"small" * 100})
    monkeypatch.setattr(arranged, "NOW", now)
    return now
