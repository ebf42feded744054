"""The file of a node: what is written is read, at every length of the file."""

import errno
import math
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prefect_bt.job_metrics import node_metrics
from prefect_bt.job_metrics.node_metrics import (
    GpuFacts,
    MetricsDecoder,
    MetricsWriter,
    NodeEvent,
    NodeFacts,
    NodeMetrics,
    TrainingPoint,
    column_units,
    decode_metrics,
)

FACTS = NodeFacts(8, 64 << 30, 5.0, (GpuFacts(3, "H100", 80 << 30),))


def write(path: Path, samples: int, *, start: int = 0) -> list[dict[str, float | None]]:
    """Write samples with some values missing, a point and an event after each."""
    writer = MetricsWriter(path, FACTS)
    written = list[dict[str, float | None]]()
    for number in range(start, start + samples):
        values: dict[str, float | None] = {
            name: round(unit * (number * 7 % 5 + place), 2)
            for place, (name, unit) in enumerate(column_units(FACTS).items())
        }
        values["gpu3_power"] = None if number % 3 == 0 else 300.0 + number
        writer.write_sample(1e9 + 5 * number, values)
        writer.write_point(TrainingPoint(1e9 + number, number, {"train/loss": 1 / (number + 1)}))
        writer.write_event(NodeEvent(1e9 + number, "xid", f"GPU 3 reported Xid error {number}"))
        writer.flush()
        written.append(values)
    writer.close()
    return written


def assert_prefix(node: NodeMetrics, written: list[dict[str, float | None]]) -> None:
    for name in column_units(FACTS):
        for got, values in zip(node.columns.get(name, []), written, strict=False):
            expected = values[name]
            assert math.isnan(got) if expected is None else got == pytest.approx(expected)


def test_every_beginning_of_the_file_is_readable(tmp_path: Path) -> None:
    written = write(tmp_path / "metrics", 12)
    data = (tmp_path / "metrics").read_bytes()
    seen = 0
    for cut in range(len(data) + 1):
        node = decode_metrics(data[:cut], attempt=1, rank=2)
        assert len(node.times) >= seen, "a longer file has no fewer samples"
        seen = len(node.times)
        assert_prefix(node, written)
    node = decode_metrics(data, attempt=1, rank=2)
    assert (node.facts, len(node.times), len(node.training)) == (FACTS, 12, 12)
    assert node.last("gpu3_power") == 311
    assert node.gpu_columns("utilization") == {"3": node.columns["gpu3_utilization"]}
    assert node.training[-1] == TrainingPoint(1e9 + 11, 11, {"train/loss": 1 / 12})
    assert node.events[-1].text == "GPU 3 reported Xid error 11"


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(1, 200), min_size=1))
def test_pieces_of_any_size_give_the_same(sizes: list[int]) -> None:
    data = _STORED
    decoder, offset, turn = MetricsDecoder(NodeMetrics(0, 0)), 0, 0
    while offset < len(data):
        decoder.feed(data[offset : offset + sizes[turn % len(sizes)]])
        offset, turn = decoder.offset, turn + 1
    assert decoder.node == decode_metrics(data, attempt=0, rank=0)


@settings(max_examples=100, deadline=None)
@given(position=st.integers(0, 500), byte=st.binary(min_size=1, max_size=30))
def test_damage_ends_the_series_and_raises_nothing(position: int, byte: bytes) -> None:
    data = _STORED[:position] + byte + _STORED[position + len(byte) :]
    node = decode_metrics(data, attempt=0, rank=0)
    assert {len(values) for values in node.columns.values()} <= {len(node.times)}


def test_a_second_writer_appends_to_the_file_of_the_first(tmp_path: Path) -> None:
    path = tmp_path / "metrics"
    written = write(path, 3) + write(path, 4, start=3)
    node = decode_metrics(path.read_bytes(), attempt=0, rank=0)
    assert len(node.times) == 7
    assert_prefix(node, written)


def test_a_full_disk_delays_entries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, is_full = tmp_path / "metrics", False
    real: Callable[[int, bytes], int] = os.write

    def limited(descriptor: int, data: bytes) -> int:
        if is_full:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(descriptor, data[:7])

    monkeypatch.setattr(node_metrics.os, "write", limited)
    monkeypatch.setattr(node_metrics, "MAX_PENDING_BYTES", 500)
    writer = MetricsWriter(path, FACTS)
    for number in range(300):
        is_full = 20 < number < 280
        writer.write_sample(1e9 + number, {"memory": float(number << 20)})
        writer.flush()
    writer.close()
    node = decode_metrics(path.read_bytes(), attempt=0, rank=0)
    memory = [value / (1 << 20) for value in node.columns["memory"]]
    assert memory[:30] == list(range(30)), "kept until there was room"
    assert len(memory) < 290, "the memory of the agent is bounded"
    assert memory[-10:] == list(range(290, 300)), "and it goes on"
    assert [round(at - 1e9) for at in node.times] == memory


def test_a_window_is_kept() -> None:
    node = decode_metrics(_STORED, attempt=0, rank=0)
    node.keep_since(1e9 + 25, points=7)
    assert node.times[0] == 1e9 + 25
    assert {len(values) for values in node.columns.values()} == {len(node.times)}
    assert [point.step for point in node.training] == list(range(33, 40))


def _store() -> bytes:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder) / "metrics", 40)
        return (Path(folder) / "metrics").read_bytes()


_STORED = _store()
