"""Layers and bytes, from the events of a real pull (Engine 20.10.24)."""

from __future__ import annotations

from prefect_bt.registries.engine_client import LayerProgress

EVENTS = [
    {"status": "Pulling from team/train", "id": "1"},
    {"status": "Already exists", "progressDetail": {}, "id": "131f5717507f"},
    {"status": "Pulling fs layer", "progressDetail": {}, "id": "899816a86b34"},
    {"status": "Pulling fs layer", "progressDetail": {}, "id": "579bf374366d"},
    {"status": "Waiting", "progressDetail": {}, "id": "579bf374366d"},
    {
        "status": "Downloading",
        "progressDetail": {"current": 100, "total": 1000},
        "id": "899816a86b34",
    },
]


def layers(*more: dict[str, object]) -> LayerProgress:
    made = LayerProgress("x:1")
    for event in (*EVENTS, *more):
        made.update(event)
    return made


def event(status: str, layer: str = "899816a86b34", **detail: int) -> dict[str, object]:
    return {"status": status, "progressDetail": detail, "id": layer}


def test_present_layers_count_as_done_and_the_tag_is_no_layer() -> None:
    seen = layers().snapshot(0.0)
    assert (seen.items_done, seen.items_total) == (1, 3)
    assert (seen.bytes_done, seen.bytes_total) == (100, 1000)
    assert seen.rate == 0.0
    assert seen.seconds_left is None


def test_a_complete_layer_is_whole_whatever_was_reported_last() -> None:
    made = layers(event("Verifying Checksum"))
    assert made.snapshot(0.0).bytes_done == 1000
    made.update(event("Extracting", current=10, total=1000))
    assert made.snapshot(0.0).bytes_done == 1000, "extracting starts no new count"
    made.update(event("Pull complete"))
    assert made.snapshot(0.0).items_done == 2


def test_the_rate_is_of_bytes_that_came_and_never_below_nothing() -> None:
    made = layers()
    made.snapshot(100.0)
    made.update(event("Downloading", current=900, total=1000))
    seen = made.snapshot(102.0)
    assert seen.rate == 400.0
    assert seen.seconds_left == 0.25
    made.update(event("Retrying in 5 seconds"))
    seen = made.snapshot(103.0)
    assert (seen.bytes_done, seen.rate) == (0, 0.0)


def test_local_is_when_nothing_more_is_to_come() -> None:
    assert not LayerProgress("x").is_local_work
    made = layers(event("Download complete"))
    assert not made.is_local_work, "another layer waits"
    made.update(event("Download complete", "579bf374366d"))
    assert made.is_local_work
    made.update(event("Extracting", current=1, total=2))
    assert made.is_local_work
    made.update(event("Retrying in 1 second", "579bf374366d"))
    assert not made.is_local_work


def test_what_it_does_not_know_is_passed_over() -> None:
    made = layers(
        {"status": "Digest: sha256:1"},
        {"id": "abc"},
        {"status": "Downloading", "id": "abc", "progressDetail": None},
        {"status": "Downloading", "id": "abc", "progressDetail": {"current": None}},
        {},
    )
    assert made.snapshot(0.0).items_total == 4
    assert made.snapshot(0.0).bytes_done == 100
