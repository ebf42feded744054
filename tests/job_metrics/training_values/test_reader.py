"""Points of a node: from lines and $BT_METRICS_FILE, by time, thinned, no value twice."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from prefect_bt.job_metrics.node_metrics import TrainingPoint
from prefect_bt.job_metrics.training_values.reader import MAX_LINES, TrainingValuesReader


class Clock:
    now = 1_000_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "metrics.jsonl"


@pytest.fixture
def reader(clock: Clock, file: Path) -> TrainingValuesReader:
    return TrainingValuesReader([], file, clock=clock)


def steps(points: list[TrainingPoint]) -> list[int | None]:
    return [point.step for point in points]


def add(reader: TrainingValuesReader, clock: Clock, *lines: str, every: float = 2.0) -> None:
    for line in lines:
        clock.now += every
        reader.add_text(f"{line}\n", clock.now)


def test_the_newest_point_waits_for_the_rest_of_its_step(reader, clock):
    add(reader, clock, "step 1 loss 3.5", "step 2 loss 2.5")
    assert steps(reader.poll()) == [1]
    add(reader, clock, "step 2 val_loss 1.5", "step 3 loss 1.5", "step 4 loss 1.0")
    second, third = reader.poll()
    assert (second.step, second.values) == (2, {"loss": 2.5, "val_loss": 1.5})
    assert steps([third]) == [3]
    assert steps(reader.poll()) == [4]
    assert reader.poll(final=True) == []


def test_the_end_gives_all(reader, clock, file):
    file.write_text('{"step": 1, "a": 1.5}\n{"step": 2, "a": 0.5}')
    add(reader, clock, "step 1 loss 3.5")
    points = reader.poll(final=True)
    assert [(p.step, dict(p.values)) for p in points] == [
        (1, {"a": 1.5}),
        (2, {"a": 0.5}),
        (1, {"loss": 3.5}),
    ]
    assert reader.poll(final=True) == []


def test_a_fast_trainer_gives_a_point_a_second_and_the_last(reader, clock):
    add(reader, clock, *(f"step {n} loss 1.5" for n in range(1, 51)), every=0.1)
    assert steps(reader.poll(final=True)) == [1, 11, 21, 31, 41, 50]


def test_the_interval_grows_in_a_long_job(reader, clock):
    clock.now += 50_000
    add(reader, clock, *(f"step {n} loss 1.5" for n in range(1, 21)), every=1.0)
    assert steps(reader.poll()) == [1, 7, 13, 19]


def test_other_names_are_not_thinned(reader, clock):
    add(reader, clock, "step 1 loss 1.5", "Validation loss: 0.5", "step 2 loss 1.5", every=0.1)
    assert [list(p.values) for p in reader.poll(final=True)] == [
        ["loss"],
        ["Validation loss"],
        ["loss"],
    ]


def test_of_too_many_lines_the_newest_are_parsed(reader, clock):
    lines = [f"step {n} loss 1.5" for n in range(3 * MAX_LINES)]
    reader.add_text("\n".join(lines + ["nothing of it 7"] * MAX_LINES), clock.now)
    points = reader.poll(final=True)
    assert (points[0].step, points[-1].step) == (2 * MAX_LINES, 3 * MAX_LINES - 1)


def test_output_is_cut_into_lines_and_frames_and_redacted(clock):
    reader = TrainingValuesReader([], None, clock=clock, redact=lambda t: t.replace("key", "hid"))
    frames = [f" 1%|#  | {n}/240 [00:01<00:09]" for n in range(9)]
    dicts = ["{'loss': 1.5}\n", "step 3 loss 1.5\n", "step 9 key loss: 1.5"]
    for piece in ["\r".join(frames), "\r    \r", dicts[0][:5], dicts[0][5:] + dicts[1], dicts[2]]:
        clock.now += 2
        reader.add_text(piece, clock.now)
    reader.add_text("x" * 100_000, clock.now)
    given = [(p.step, dict(p.values)) for p in reader.poll(final=True)]
    assert given == [(8, {"loss": 1.5}), (3, {"loss": 1.5})]
    reader.add_text("\nstep 9 key loss: 1.5", clock.now)
    assert [p.values for p in reader.poll(final=True)] == [{"hid loss": 1.5}]


def test_a_name_has_one_source(reader, clock, file):
    add(reader, clock, "step 1 loss 1.5", "step 2 loss 1.5 lr 0.5", "step 3 loss 9.5")
    assert steps(reader.poll()) == [1, 2]
    clock.now += 2
    file.write_text("".join(f'{{"step": {n}, "loss": 2.5}}\n' for n in (1, 2, 4)))
    add(reader, clock, "step 5 loss 9.5 lr 0.5")
    given = [(p.step, dict(p.values)) for p in reader.poll(final=True)]
    assert given == [(3, {"loss": 9.5}), (4, {"loss": 2.5}), (5, {"lr": 0.5})]


def test_the_file_may_have_times_and_anything_else(reader, clock, file):
    then, clock.now = clock.now, clock.now + 60
    garbage = [
        b"",
        b"{",
        b"[1]",
        b"[[1, 2]]",
        b"7",
        b"\xff\xfe",
        b'{"step": 5}',
        b'{"a": "b"}',
        b"[" * 9000,
    ]
    garbage += [b'{"step": 1e999}', b'{"x": 1' * 16_384]
    good = [
        {"step": 1, "loss": 1.5, "time": then + 10},
        {"step": 2, "loss": 1.5, "timestamp": then + 20},
        {"step": 3, "my metric": 3, "time": 12.5},
        {"step": 4, "loss": math.nan, "time": then - 900},
    ]
    lines = [line for entry in good for line in (json.dumps(entry).encode(), *garbage)]
    file.write_bytes(b"\n".join(lines))
    points = [p for p in reader.poll(final=True) if p.step is not None]
    assert [(p.step, p.at - then) for p in points] == [(1, 10), (2, 20), (3, 45), (4, 60)]
    assert math.isnan(points[3].values["loss"])
    assert points[2].values == {"my metric": 3, "time": 12.5}


def test_a_complete_line_is_read_once(reader, clock, file):
    with file.open("a", buffering=1) as output:
        for piece, expected in [
            ('{"step": 1, "lo', []),
            ('ss": 1.5}\n{"step": 2, "loss": 1', []),
            (".5}\n", [1]),
            ("", [2]),
            ("", []),
        ]:
            clock.now += 5
            output.write(piece)
            output.flush()
            assert steps(reader.poll()) == expected


def replace(file: Path, text: str) -> None:
    new = file.with_suffix(".new")
    new.write_text(text)
    new.replace(file)


@pytest.mark.parametrize("write", [replace, Path.write_text])
def test_a_new_file_is_read_from_its_begin(reader, clock, file, write: Callable[..., object]):
    file.write_text('{"step": 1, "loss": 1.5}\n{"step": 2, "loss": 1.5}\n{"step": ')
    clock.now += 5
    assert steps(reader.poll()) == [1]
    clock.now += 5
    write(file, '{"step": 3, "loss": 1.5}\n')
    assert steps(reader.poll(final=True)) == [2, 3]


@pytest.mark.parametrize(
    "make",
    [
        lambda file: None,
        os.mkfifo,
        lambda file: file.mkdir(),
        lambda file: file.symlink_to("/dev/zero"),
        lambda file: (file.with_name("f").write_text('{"a": 1}\n'), file.symlink_to("f")),
    ],
)
def test_what_is_no_file_is_not_read(reader, file, make: Callable[[Path], object]):
    make(file)
    assert reader.poll() == []
    assert reader.poll(final=True) == []
