"""Pulls that come to a halt, are stopped, or do not fit on the disk."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import docker
import pytest

from prefect_bt.errors import ImageError
from prefect_bt.registries.engine_client import EngineClient
from prefect_bt.registries.pull import pull_image
from prefect_bt.text.progress import Progress

from .conftest import WORKER, build, push
from .daemons import can_start, running_daemon
from .registry import Line, Registry, line_to, put_manifest

pytestmark = [pytest.mark.integration]

LAYER = 6_000_000


@pytest.fixture(scope="module")
def stored(engine: docker.APIClient, base_image: str, open_registry: Registry) -> str:
    """The repository of an image with a large and a small layer."""
    repository = f"team/large-{WORKER}"
    name = f"{open_registry.host}/{repository}:1"
    build(engine, name, LAYER, 1000)
    push(engine, name, open_registry)
    return repository


@pytest.fixture
def line(open_registry: Registry) -> Iterator[Line]:
    with line_to(open_registry) as line:
        yield line


@pytest.fixture
def patient_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A registry has ten minutes to say a digest, however soon a halt is noticed."""
    ask = EngineClient.inspect_distribution
    monkeypatch.setattr(
        EngineClient,
        "inspect_distribution",
        lambda calls, name, header, *, seconds: ask(calls, name, header, seconds=600),
    )


def test_a_halted_pull_is_repeated_and_reported(
    engine: docker.APIClient,
    stored: str,
    line: Line,
    patient_asks: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PREFECT_BT_STALL_SECONDS", "0.6")
    line.allowance, told = LAYER // 2, list[Progress]()
    with pytest.raises(ImageError) as caught:
        pull_image(engine, f"{line.host}/{stored}:1", on_progress=told.append)
    assert (caught.value.fault, caught.value.cause) == ("stalled", "image_pull_failed")
    assert "for 0.6 s, 3 times" in str(caught.value)
    assert "PREFECT_BT_STALL_SECONDS" in caught.value.next_step
    assert any("started again" in one.note for one in told)
    line.allowance = None
    monkeypatch.setenv("PREFECT_BT_STALL_SECONDS", "600")
    pulled = pull_image(engine, f"{line.host}/{stored}:1")
    assert pulled.notes == ()
    engine.remove_image(pulled.id, force=True)


def test_a_halt_that_ends_costs_a_try(
    engine: docker.APIClient,
    stored: str,
    line: Line,
    patient_asks: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PREFECT_BT_STALL_SECONDS", "0.6")
    # On a busy machine a pull that goes on may look halted, too.
    monkeypatch.setattr("prefect_bt.registries.pull.MAX_ATTEMPTS", 1000)
    line.allowance = LAYER // 2

    def mend(progress: Progress) -> None:
        if progress.note:
            line.allowance = None

    pulled = pull_image(engine, f"{line.host}/{stored}:1", on_progress=mend)
    assert "started again" in pulled.notes[0]
    engine.remove_image(pulled.id, force=True)


def test_a_registry_that_does_not_answer(
    engine: docker.APIClient, stored: str, line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PREFECT_BT_STALL_SECONDS", "0.3")
    line.allowance = 0
    with pytest.raises(ImageError, match=r"did not answer for 0\.3 s, 3 times") as caught:
        pull_image(engine, f"{line.host}/{stored}:1")
    assert caught.value.fault == "stalled"


@pytest.mark.parametrize("allowance", [0, LAYER // 2], ids=["while asking", "in a layer"])
def test_stopped_from_another_thread(
    engine: docker.APIClient,
    stored: str,
    line: Line,
    allowance: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PREFECT_BT_STALL_SECONDS", "600")
    line.allowance, stop, ended = allowance, threading.Event(), list[ImageError]()

    def bring() -> None:
        with pytest.raises(ImageError) as caught:
            pull_image(engine, f"{line.host}/{stored}:1", cancelled=stop)
        ended.append(caught.value)

    thread = threading.Thread(target=bring)
    thread.start()
    assert line.cut.wait(200)
    stop.set()
    thread.join(200)  # the patience is ten minutes
    assert [one.fault for one in ended] == ["stopped"]
    if allowance:
        # The Engine notices at the next byte of a layer that nobody wants it any more.
        line.allowance = None
        assert line.ended.wait(200)
        told = list[Progress]()
        pulled = pull_image(engine, f"{line.host}/{stored}:1", on_progress=told.append)
        assert told[-1].bytes_total >= LAYER, "the Engine went on with what nobody waited for"
        engine.remove_image(pulled.id, force=True)


def test_a_layer_that_does_not_fit(
    engine: docker.APIClient, stored: str, open_registry: Registry
) -> None:
    """On a daemon of its own, whose disk has a few megabytes."""
    if why := can_start():
        pytest.skip(f"no Docker Engine with a small disk: {why}")
    with running_daemon(disk="7m") as small:
        client = small.client()
        with pytest.raises(ImageError) as caught:
            pull_image(client, f"{open_registry.host}/{stored}:1")
        assert (caught.value.fault, caught.value.cause) == ("failed", "image_pull_failed")
        assert "no space left on device" in str(caught.value)
        assert "docker system df" in caught.value.next_step
        _refuses_a_list_for_others(client, open_registry)
        with line_to(open_registry) as line:
            line.allowance = LAYER // 4
            killing = threading.Thread(target=lambda: line.cut.wait(200) and small.kill())
            killing.start()
            with pytest.raises(ImageError) as caught:
                pull_image(client, f"{line.host}/{stored}:1")
            killing.join()
        assert caught.value.fault == "engine_unreachable"
        client.close()
    with pytest.raises(ImageError) as caught:
        pull_image(client, f"{open_registry.host}/{stored}:1")
    assert caught.value.fault == "engine_unreachable"


def _refuses_a_list_for_others(client: docker.APIClient, registry: Registry) -> None:
    kind = "application/vnd.docker.distribution.manifest.list.v2+json"
    manifest = {"schemaVersion": 2, "mediaType": kind, "manifests": []}
    put_manifest(registry, "team/large", "nobodys", manifest)
    with pytest.raises(ImageError) as caught:
        pull_image(client, f"{registry.host}/team/large:nobodys")
    assert (caught.value.fault, caught.value.cause) == ("failed", "image_pull_failed")
    assert "no matching manifest for" in str(caught.value)
