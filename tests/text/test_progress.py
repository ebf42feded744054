from __future__ import annotations

from prefect_bt.text.progress import Phase, Progress, RateWindow, StepFilter, format_progress


def test_a_transfer_as_text() -> None:
    progress = Progress(
        "x", items_done=3, items_total=10, bytes_done=30, bytes_total=120, rate=10.0
    )
    assert format_progress(progress) == "3 of 10 files, 30 B of 120 B (25 %), 10 B/s, 9 s left"
    assert format_progress(Progress("x", Phase.LISTING)) == "listing files"
    layers = Progress("x", Phase.DONE, items_done=1, items_total=1, unit="layer")
    assert format_progress(layers) == "done: 1 of 1 layer, 0 B of 0 B"


def test_steps_are_phases_tenths_and_the_end() -> None:
    steps = StepFilter()
    percents = [0, 5, 10, 19, 50, 55, 99, 100, 100]
    selected = [n for n in percents if steps.is_step(Progress("x", bytes_done=n, bytes_total=100))]
    assert selected == [0, 10, 50, 99, 100]
    assert steps.is_step(Progress("x", Phase.DONE))


def test_a_note_is_new_once() -> None:
    steps = StepFilter()
    notes = ["", "slow", "slow", "", "slow"]
    assert [steps.new_note(Progress("x", note=note)) for note in notes] == [
        "",
        "slow",
        "",
        "",
        "slow",
    ]


def test_the_rate_is_of_the_last_ten_seconds_and_never_negative() -> None:
    rates = RateWindow()
    assert rates.add(0.0, 0) == 0.0
    assert rates.add(10.0, 1000) == 100.0
    assert rates.add(25.0, 1000) == 0.0
    assert rates.add(26.0, 10) == 0.0
