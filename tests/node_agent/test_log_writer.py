"""The way of a byte from the pipe to a line of the log."""

from __future__ import annotations

import base64
import json
import os
import time
from pathlib import Path
from urllib.parse import quote

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prefect_bt.credentials.redaction import MASK, Redactor
from prefect_bt.logs.line_format import parse_lines
from prefect_bt.node_agent import log_writer
from prefect_bt.node_agent.log_writer import LINE_LIMIT, LogFile, OutputLog
from tests.altered import altered

SECRET = "hf_AbCdEfGhIjKlMnOp"


class Log:
    def __init__(self, folder: Path, *secrets: str) -> None:
        self.path = folder / "log"
        self.path.unlink(missing_ok=True)
        self.file = LogFile(self.path, Redactor(secrets))
        self.out = OutputLog(self.file, secrets)

    def lines(self) -> list[str]:
        self.file.flush()
        return [line.message for line in parse_lines(self.path.read_bytes())]

    def end(self) -> list[str]:
        self.out.finish_line()
        return self.lines()


def test_lines_arrive_whole_whatever_the_pieces(tmp_path: Path) -> None:
    log = Log(tmp_path)
    for piece in (b"on", b"e\ntwo\nth", b"ree", b"\n", b"\n", b"four"):
        log.out.feed(piece)
    assert log.lines() == ["one", "two", "three", ""]
    assert log.end() == ["one", "two", "three", "", "four"]


def test_stamps_grow_and_never_repeat(tmp_path: Path) -> None:
    log = Log(tmp_path)
    for _ in range(3):
        log.out.feed(b"a\n" * 1000)
    log.file.flush()
    stamps = [line.timestamp for line in parse_lines(log.path.read_bytes())]
    assert stamps == sorted(set(stamps))
    assert abs(stamps[0] / 1e9 - time.time()) < 60


def test_bytes_that_are_no_text_are_kept_visible(tmp_path: Path) -> None:
    log = Log(tmp_path)
    text = "schön 🎉".encode()
    for byte in text + b"\xff\xfe\n":
        log.out.feed(bytes([byte]))
    assert log.lines() == ["schön 🎉\ufffd\ufffd"]


def test_frames_of_a_progress_bar_are_thinned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, now = Log(tmp_path), [100.0]
    monkeypatch.setattr(log_writer, "time", altered(time, monotonic=lambda: now[0]))
    for percent in range(101):
        log.out.feed(f"\r{percent}%|".encode())
        log.out.flush_partial_line()
        now[0] += 0.05
    log.out.feed(b"\r\ndone\r\n")
    lines = log.lines()
    assert lines[-1] == "done"
    assert set(lines[:-1]) <= {f"{percent}%|" for percent in range(101)}
    assert 3 <= len(lines) <= 10
    assert all("\r" not in line for line in lines)


def test_frames_that_end_with_a_return_are_seen(tmp_path: Path) -> None:
    log = Log(tmp_path)
    for percent in (b"1%\r", b"2%\r", b"3%\r"):
        log.out.feed(percent)
    assert log.end() == ["3%"]


def test_an_unfinished_line_is_seen_after_a_second(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, now = Log(tmp_path, SECRET), [100.0]
    monkeypatch.setattr(log_writer, "time", altered(time, monotonic=lambda: now[0]))
    log.out.feed(b"Loading " + SECRET[:6].encode())
    log.out.flush_partial_line()
    assert log.lines() == []
    now[0] += 1.1
    log.out.flush_partial_line()
    assert log.lines() == ["Loading "]
    log.out.feed(SECRET[6:].encode() + b" ok\n")
    assert log.lines() == ["Loading ", f"{MASK} ok"]


@pytest.mark.parametrize("shift", [-40, -19, -10, -1, 0, 1, 10, 40])
def test_a_long_line_is_split_but_never_within_a_secret(tmp_path: Path, shift: int) -> None:
    log = Log(tmp_path, SECRET)
    before = "x" * (LINE_LIMIT + shift)
    data = (before + SECRET + "y" * 3 * LINE_LIMIT + "\n").encode()
    for start in range(0, len(data), 10_000):
        log.out.feed(data[start : start + 10_000])
    lines = log.lines()
    assert len(lines) >= 4
    assert max(map(len, lines)) <= LINE_LIMIT + 10_000
    assert SECRET not in "".join(lines)
    assert "".join(lines).replace(MASK, SECRET) == data.decode().rstrip("\n")


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 30), min_size=1, max_size=12), st.integers(0, 5))
def test_a_secret_is_masked_however_it_is_cut(cuts: list[int], spelling: int) -> None:
    import tempfile

    raw = "pä$$w0rd/with+signs=&ü"
    spellings = [
        raw,
        quote(raw, safe=""),
        json.dumps(raw)[1:-1],
        base64.b64encode(raw.encode()).decode().rstrip("="),
        base64.b64encode(b"user:" + raw.encode()).decode(),
        repr(raw)[1:-1],
    ]
    with tempfile.TemporaryDirectory() as folder:
        log = Log(Path(folder), raw)
        data = f"before {spellings[spelling]} after\n".encode()
        while data:
            size = cuts[0] if len(cuts) == 1 else cuts.pop(0)
            log.out.feed(data[:size])
            data = data[size:]
        (line,) = log.lines()
    assert MASK in line
    assert spellings[spelling][4:-4] not in line


def test_memory_is_bounded_by_the_longest_line(tmp_path: Path) -> None:
    log = Log(tmp_path)
    for _ in range(64):
        log.out.feed(b"z" * 100_000)
    assert len(log.out._partial) <= LINE_LIMIT + 100_000
    log.end()
    assert log.path.stat().st_size > 6_400_000


def test_a_full_disk_loses_lines_and_counts_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = Log(tmp_path)

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(log_writer, "os", altered(os, write=full))
    log.out.feed(b"a\nb\n")
    log.file.flush()
    monkeypatch.undo()
    log.out.feed(b"c\n")
    assert log.lines() == ["c", "[prefect-bt] 2 log lines could not be written: the disk was full"]


def test_a_line_that_was_cut_by_a_full_disk_does_not_swallow_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, room = Log(tmp_path), [25]

    def small(descriptor: int, data: bytes) -> int:
        if not room[0]:
            raise OSError(28, "No space left on device")
        written = os.write(descriptor, data[: room[0]])
        room[0] -= written
        return written

    monkeypatch.setattr(log_writer, "os", altered(os, write=small))
    log.out.feed(b"a long line, cut\nb\n")
    log.file.flush()
    monkeypatch.undo()
    log.out.feed(b"c\n")
    assert log.lines() == [
        "a lon",
        "c",
        "[prefect-bt] 2 log lines could not be written: the disk was full",
    ]


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["x", SECRET, SECRET[:9], SECRET[9:], "\n", "\r", "hf_", "é", "yy"]),
            st.integers(0, 4),
            st.booleans(),
        ),
        max_size=40,
    )
)
def test_no_part_of_a_secret_is_let_through_by_a_cut(pieces: list[tuple[str, int, bool]]) -> None:
    """Long lines are split, unfinished ones shown: wherever that is, every secret is masked."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(log_writer, "LINE_LIMIT", 24)
        patch.setattr(log_writer, "PARTIAL_SECONDS", -1.0)
        log = Log(Path(folder), SECRET)
        sent = ""
        for text, times, pause in pieces:
            sent += text * times
            log.out.feed((text * times).encode())
            if pause:
                log.out.flush_partial_line()
        shown = log.end()
    assert not [line for line in shown if SECRET in line]
    if "\r" not in sent:
        assert "".join(shown) == sent.replace(SECRET, MASK).replace("\n", "")


def test_a_secret_longer_than_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_writer, "LINE_LIMIT", 100)
    secret = "0123456789" * 1000
    log = Log(tmp_path, secret)
    data = ("a" * 250 + secret + "b" * 250 + "\n").encode()
    for start in range(0, len(data), 64):
        log.out.feed(data[start : start + 64])
        log.out.flush_partial_line()
    assert "".join(log.lines()) == "a" * 250 + MASK + "b" * 250


@pytest.mark.parametrize("flush", ["a chunk", "a long line", "an unfinished line"])
def test_values_that_overlap_are_masked_wherever_they_are_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flush: str
) -> None:
    chain = "admin:hunterTAIL99@QQWWEERRTTYY/path"
    secrets = (chain[:18], chain[12:31], chain[26:])
    if flush == "a long line":
        monkeypatch.setattr(log_writer, "LINE_LIMIT", 8)
    monkeypatch.setattr(log_writer, "PARTIAL_SECONDS", -1.0 if "unfinished" in flush else 1.0)
    for cut in range(1, len(chain)):
        log = Log(tmp_path, *secrets)
        for piece in (f"before {chain[:cut]}", f"{chain[cut:]} after\n"):
            log.out.feed(piece.encode())
            log.out.flush_partial_line()
        assert "".join(log.lines()) == f"before {MASK} after"


def test_a_line_of_values_that_overlap_without_end_is_masked_in_bounded_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_writer, "LINE_LIMIT", 64)
    monkeypatch.setattr(log_writer, "CHAIN_LIMIT", 512)
    log = Log(tmp_path, "aaaa")
    for _ in range(100):
        log.out.feed(b"a" * 100)
        assert len(log.out._partial) <= 1200
    log.out.feed(b"a, and more\nnext line\n")
    assert log.lines() == [MASK, "next line"]


@pytest.mark.parametrize("size", [1, 3, 4096])
def test_anything_may_come(tmp_path: Path, size: int) -> None:
    import random

    data = random.Random(1).randbytes(8192) + "✓".encode()[:2]
    log = Log(tmp_path, SECRET)
    for start in range(0, len(data), size):
        log.out.feed(data[start : start + size])
    lines = log.end()
    assert lines[-1].endswith("\ufffd")
    expected = data.decode(errors="replace").split("\n")
    assert len(lines) == len(expected)
