"""Values in event files and trainer states: as files grow, vanish, are replaced or are no files."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from tensorboardX import SummaryWriter

from prefect_bt.job_metrics.node_metrics import TrainingPoint
from prefect_bt.job_metrics.training_values.event_files import parse_records
from prefect_bt.job_metrics.training_values.reader import TrainingValuesReader
from prefect_bt.job_metrics.training_values.value_files import MAX_FILES

START = 1_000_000_000.0


class Clock:
    now = START

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def reader(clock: Clock, tmp_path: Path) -> TrainingValuesReader:
    return TrainingValuesReader([tmp_path, tmp_path / "missing"], None, clock=clock)


def write_events(folder: Path, steps: range, *, begin: float = START, large: bool = False) -> Path:
    with SummaryWriter(str(folder)) as writer:
        for step in steps:
            at = begin + 10 * step
            writer.add_scalar("train/loss", 1.5 + step, step, walltime=at)
            writer.add_scalar("lr", 0.5, step, walltime=at)
            if large and step == 1:
                for tag in ("a", "b"):
                    writer.add_text(tag, "x" * 1_100_000, step, walltime=at)
    return next(folder.glob("*.tfevents.*"))


def seen(points: list[TrainingPoint]) -> list[tuple[int | None, float, dict[str, float]]]:
    return [(p.step, p.at - START, dict(p.values)) for p in points]


def test_the_scalars_of_a_step_are_a_point(reader, clock, tmp_path):
    write_events(tmp_path / "runs" / "first", range(1, 4))
    clock.now += 40
    assert seen(reader.poll(final=True)) == [
        (step, 10 * step, {"train/loss": 1.5 + step, "lr": 0.5}) for step in (1, 2, 3)
    ]
    assert reader.poll(final=True) == []


def test_an_evaluation_in_a_folder_of_its_own_has_other_names(reader, clock, tmp_path):
    """Keras writes `epoch_loss` to `train/` and to `validation/`."""
    for folder, steps in (("train", range(2)), ("validation", range(1, 2))):
        write_events(tmp_path / folder, steps)
    clock.now += 40
    values = {name for _, _, values in seen(reader.poll(final=True)) for name in values}
    assert values == {"train/loss", "lr", "validation/train/loss", "validation/lr"}


def test_a_file_that_ends_anywhere_is_read_on_when_it_grows(tmp_path):
    data = write_events(tmp_path, range(4)).read_bytes()
    whole, end = parse_records(data)
    assert [point.step for point in whole] == [0, 0, 1, 1, 2, 2, 3, 3]
    assert end == len(data)
    for size in range(len(data)):
        first, position = parse_records(data[:size])
        assert first + parse_records(data[position:])[0] == whole


def test_records_of_images_and_texts_are_passed_over(reader, clock, tmp_path):
    write_events(tmp_path, range(3), large=True)
    clock.now += 40
    assert [step for step, _, _ in seen(reader.poll(final=True))] == [0, 1, 2]


def frame(data: bytes, length: int | None = None) -> bytes:
    return struct.pack("<QI", len(data) if length is None else length, 0) + data + b"\0" * 4


def event(value: bytes) -> bytes:
    summary = b"\x0a" + bytes([len(value)]) + value
    return frame(
        b"\x09" + struct.pack("<d", START) + b"\x10\x07\x2a" + bytes([len(summary)]) + summary
    )


TENSORS = {
    b"\x08\x01\x2d" + struct.pack("<f", 2.5): 2.5,  # one float
    b"\x08\x01\x2a\x04" + struct.pack("<f", 2.5): 2.5,  # packed floats
    b"\x08\x01\x22\x04" + struct.pack("<f", 2.5): 2.5,  # content
    b"\x08\x02\x22\x08" + struct.pack("<d", 2.5): 2.5,  # content of doubles
    b"\x08\x02\x31" + struct.pack("<d", 2.5): 2.5,
    b"\x08\x01\x22\x08" + struct.pack("<ff", 2.5, 2.5): None,
    b"\x08\x07\x22\x04text": None,
    b"\x08\x01": None,
}


@pytest.mark.parametrize(("tensor", "expected"), TENSORS.items())
def test_a_tensor_of_one_number_is_a_scalar(tensor: bytes, expected: float | None):
    points, _ = parse_records(event(b"\x0a\x01a\x42" + bytes([len(tensor)]) + tensor))
    assert [p.values for p in points] == ([] if expected is None else [{"a": expected}])


GARBAGE = {
    "no record": b"garbage that is long enough",
    "a length without end": frame(b"", 1 << 63),
    "a field without end": frame(b"\x2a\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"),
    "a field that is cut": frame(b"\x09\x00"),
    "a number without end": frame(b"\x10\xff"),
    "a type of field that does not exist": frame(b"\x0f"),
    "a tag that is no text": event(b"\x0a\x02\xff\xfe\x15\x00\x00\x00\x00"),
}


@pytest.mark.parametrize("garbage", GARBAGE.values(), ids=GARBAGE)
def test_garbage_gives_no_value_and_no_error(tmp_path, reader, clock, garbage: bytes):
    path = write_events(tmp_path, range(1, 2))
    with path.open("ab") as file:
        file.write(garbage)
    assert [step for step, _, _ in seen(reader.poll(final=True))] == [1]
    clock.now += 99
    write_events(tmp_path / "next", range(5, 6))
    assert [step for step, _, _ in seen(reader.poll(final=True))] == [5]


def test_events_from_before_the_attempt_are_not_read(reader, clock, tmp_path):
    path = write_events(tmp_path, range(1, 3), begin=START - 15)
    os.utime(write_events(tmp_path / "old", range(9, 12)), (START - 9, START - 9))
    assert [step for step, _, _ in seen(reader.poll(final=True))] == [2]
    assert path.exists()


def write_state(folder: Path, name: str, last: int, at: float, *, every: int = 10) -> Path:
    history = [{"loss": 1.5, "epoch": 0.5, "step": n} for n in range(every, last + 1, every)]
    path = folder / name / "trainer_state.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"global_step": last, "log_history": [*history, {"step": last}, 7]}))
    os.utime(path, (at, at))
    return path


def test_a_trainer_state_gives_the_steps_since_the_last_one(reader, clock, tmp_path):
    write_state(tmp_path, "checkpoint-20", 20, START - 60)
    assert reader.poll() == []
    clock.now += 60
    write_state(tmp_path, "checkpoint-40", 40, START + 40)
    write_state(tmp_path, "checkpoint-60", 60, START + 60)
    assert [(step, at) for step, at, _ in seen(reader.poll(final=True))] == [
        (30, 20),
        (40, 40),
        (50, 50),
        (60, 60),
    ]


def test_values_of_a_trainer_state_have_the_times_of_the_lines_of_their_steps(
    reader, clock, tmp_path
):
    for step in (10, 20):
        clock.now += step
        reader.add_text(f"step {step} lr 0.5\n", clock.now)
    write_state(tmp_path, "checkpoint-30", 30, START + 60)
    clock.now += 60
    values = [(step, at) for step, at, v in seen(reader.poll(final=True)) if "loss" in v]
    assert values == [(10, 10), (20, 30), (30, 60)]


def test_values_of_the_log_are_not_repeated_from_the_files(reader, clock, tmp_path):
    clock.now += 30
    reader.add_text("step 10 loss 1.5\nstep 19 loss 1.5\n", clock.now)
    write_state(tmp_path, "checkpoint-20", 20, START + 20)
    values = [values for _, _, values in seen(reader.poll(final=True))]
    assert [v for v in values if "loss" in v] == [{"loss": 1.5}, {"loss": 1.5}]
    assert [v for v in values if "loss" not in v] == [{"epoch": 0.5}, {"epoch": 0.5}]


def make_unreadable(path: Path) -> None:
    path.chmod(0)


def make_link(path: Path) -> None:
    data = path.read_bytes()
    path.unlink()
    path.with_name("target").write_bytes(data)
    path.symlink_to("target")


def make_folder_link(path: Path) -> None:
    path.parent.rename(path.parents[2] / "elsewhere")
    path.parent.symlink_to(path.parents[2] / "elsewhere")


def write_garbage(*contents: bytes) -> list[Callable[[Path], object]]:
    return [lambda path, content=content: path.write_bytes(content) for content in contents]


@pytest.mark.parametrize(
    "change",
    [
        lambda path: path.unlink(),
        lambda path: (path.unlink(), path.mkdir()),
        lambda path: (path.unlink(), os.mkfifo(path)),
        make_unreadable,
        make_link,
        make_folder_link,
        *write_garbage(b"", b"{", b"[" * 9999, b"\xff", b"[]", b'{"log_history": {"step": 1}}'),
        *write_garbage(b'{"log_history": [[], {"step": "x"}, {"step": 1e999, "a": []}]}'),
    ],
)
@pytest.mark.parametrize("kind", ["events", "state"])
def test_what_is_no_readable_file_gives_nothing(tmp_path, clock, change: Callable, kind: str):
    if change is make_unreadable and os.geteuid() == 0:
        pytest.skip("root reads every file")
    folder = tmp_path / "outer" / "root"
    reader = TrainingValuesReader([folder], None, clock=clock)
    path = (
        write_events(folder / "runs", range(1, 3))
        if kind == "events"
        else write_state(folder, "checkpoint-20", 20, START + 5)
    )
    change(path)
    clock.now += 60
    assert reader.poll(final=True) == []


def test_a_replaced_file_is_read_from_its_begin(reader, clock, tmp_path):
    path = write_events(tmp_path / "a", range(1, 3))
    assert len(reader.poll(final=True)) == 2
    write_events(tmp_path / "b", range(5, 9)).replace(path)
    clock.now += 60
    assert [step for step, _, _ in seen(reader.poll(final=True))] == [5, 6, 7, 8]


def test_many_files_and_deep_folders_are_bounded(reader, clock, tmp_path):
    for number in range(MAX_FILES + 9):
        write_state(tmp_path, f"checkpoint-{number:03}", 10 + 10 * number, START + 5 * number)
    write_events(tmp_path / "a/b/c/d/e", range(1, 3))
    clock.now += 999
    assert len(reader.poll(final=True)) == MAX_FILES + 9


def test_folders_are_walked_at_most_every_ten_seconds(reader, clock, tmp_path):
    assert reader.poll() == []
    write_state(tmp_path, "checkpoint-20", 20, START + 5)
    clock.now += 5
    assert reader.poll() == []
    clock.now += 5
    assert len(reader.poll()) == 1
