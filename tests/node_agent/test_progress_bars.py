"""Progress bars in a log: a frame a second and the last, whatever moves the cursor."""

from __future__ import annotations

import io
import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prefect_bt.node_agent import log_writer
from prefect_bt.node_agent.cursor_rows import MAX_ROWS
from tests.altered import altered
from tests.node_agent.test_log_writer import SECRET, Log
from tests.optional import needs


class Screen:
    """A log with a clock of its own, which goes on by `pause` seconds at each write."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch, pause: float = 0.001) -> None:
        self.log, self.now, self.pause = Log(folder, SECRET), 100.0, pause
        patch.setattr(log_writer, "time", altered(time, monotonic=lambda: self.now))

    def write(self, text: str) -> None:
        self.log.out.feed(text.encode())
        self.log.out.flush_partial_line()
        self.now += self.pause

    def end(self) -> list[str]:
        return self.log.end()


@pytest.fixture
def screen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Screen:
    return Screen(tmp_path, monkeypatch)


def test_a_bar_below_another_is_thinned_as_a_plain_bar(screen: Screen) -> None:
    for outer in range(3):
        screen.write(f"\router {outer}/3")
        for inner in range(400):
            screen.write(f"\n\rinner {inner}/400\x1b[A")
    screen.write("\n\n")
    lines = screen.end()
    assert lines[-1] == "inner 399/400"
    assert "outer 2/3" in lines
    assert len(lines) <= 7


@needs("tqdm")
@pytest.mark.parametrize("leave", [True, False])
@pytest.mark.parametrize("how", ["tqdm.write", "print", "print twice"])
@pytest.mark.parametrize("pieces", [1, 7, 10_000])
def test_bars_of_tqdm_at_three_positions(
    screen: Screen, leave: bool, how: str, pieces: int
) -> None:
    output = _run_tqdm(leave, how)
    chance = random.Random(pieces)
    screen.pause = 2.5 / (2 * len(output) / (pieces + 1) + 1)  # 2.5 seconds for all of it
    while output:
        size = chance.randint(1, pieces)
        screen.write(output[:size])
        output = output[size:]
    lines = screen.end()
    printed = [line for line in lines if line.startswith("printed")]
    per_step = 2 if how == "print twice" else 1
    assert printed == [f"printed {n}" for n in range(4 * per_step)]
    bars = [line.partition(":")[0] for line in lines if not line.startswith("printed") and line]
    assert set(bars) <= {"bar0", "bar1", "bar2"}
    # A frame a second of three bars, the first of each, the last of each that stays.
    assert len(bars) <= 3 * 3 + 3 + (20 * 4 + 4 + 1 if leave else 1)
    assert "bar0: 100%" in "\n".join(lines)
    if leave:
        assert sum("bar1: 100%" in line for line in lines) >= 4
        assert sum("bar2: 100%" in line for line in lines) >= 20


def _run_tqdm(leave: bool, how: str) -> str:
    from tqdm import tqdm  # pyright: ignore[reportMissingModuleSource]

    file, number = io.StringIO(), 0

    def bar(size: int, position: int, *, stays: bool = True) -> Iterator[int]:
        name = f"bar{position}"
        return iter(
            tqdm(
                range(size),
                name,
                file=file,
                position=position,
                leave=stays,
                mininterval=0,
                ncols=50,
            )
        )

    for _ in bar(4, 0):
        for _ in bar(5, 1, stays=leave):
            for _ in bar(40, 2, stays=leave):
                pass
        for _ in range(2 if how == "print twice" else 1):
            if how == "tqdm.write":
                tqdm.write(f"printed {number}", file=file)
            else:
                file.write(f"\r{'':50}\rprinted {number}\n")
            number += 1
    return file.getvalue()


def test_bars_of_rich(screen: Screen) -> None:
    from rich.console import Console
    from rich.progress import Progress

    class File(io.StringIO):
        def write(self, text: str) -> int:
            screen.write(text)
            return len(text)

    console = Console(file=File(), force_terminal=True, width=60, color_system=None)
    with Progress(console=console, auto_refresh=False) as progress:
        tasks = [progress.add_task(name, total=200) for name in ("loading", "training")]
        for step in range(200):
            for task in tasks:
                progress.advance(task)
            progress.refresh()
            if step % 50 == 0:
                console.print(f"printed {step}")
    lines = [line for line in screen.end() if line.strip() and "\x1b[?25h" not in line]
    assert [line for line in lines if "printed" in line] == [
        f"printed {step}" for step in (0, 50, 100, 150)
    ]
    assert [line.split()[0] for line in lines[-2:]] == ["loading", "training"]
    assert all("100%" in line for line in lines[-2:])
    assert len(lines) <= 12
    assert "\x1b[2K" not in "".join(lines)


@pytest.mark.parametrize("move", ["\x1b[2A", "\x1b[2F", "\x1b[A\x1b[A", "\x1b[1A\x1b[1F"])
def test_lines_that_are_drawn_again_are_thinned(screen: Screen, move: str) -> None:
    """Docker's and npm's lists: each line is written anew after the cursor was moved up."""
    for step in range(500):
        screen.write(f"{move if step else ''}\x1b[2Ka {step}\n\x1b[2Kb {step}\n")
    screen.write("all done\n")
    lines = screen.end()
    assert lines[-3:] == ["a 499", "b 499", "all done"]
    assert len(lines) <= 7


@pytest.mark.parametrize("begin", ["\r", "\x1b[1G", "\x1b[G", "\x1b[2K\x1b[1G", "\r\x1b[K"])
def test_frames_that_begin_in_another_way_are_thinned(screen: Screen, begin: str) -> None:
    for step in range(500):
        screen.write(f"{begin}step {step}")
    screen.write("\nend\n")
    lines = screen.end()
    assert lines[-2:] == ["step 499", "end"]
    assert len(lines) <= 4


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("\r100%\r    \rnext\n", ["next"]),
        ("\r100%\r    \r\n", ["100%"]),
        ("\r 99%\r\x1b[2K\n\nend\n", [" 99%", "", "end"]),
        ("\r 99%|\r        indented\n", ["        indented"]),
    ],
)
@pytest.mark.parametrize("size", [1, 3, 100])
def test_a_bar_that_erases_itself_leaves_no_blank_line(
    screen: Screen, text: str, lines: list[str], size: int
) -> None:
    for start in range(0, len(text), size):
        screen.write(text[start : start + size])
    assert screen.end() == lines


def test_lines_after_the_bars_are_written_at_once(screen: Screen) -> None:
    screen.write("\router 1/1\n\rinner 1/1\x1b[A\n")
    screen.now += 2
    screen.write("")
    screen.write("\nprinted\n\n")
    assert screen.log.lines() == ["outer 1/1", "inner 1/1", "", "printed", ""]


def test_a_secret_in_a_frame_is_masked(screen: Screen) -> None:
    screen.write(f"outer\n\rinner {SECRET} 1\x1b[A\n\rinner {SECRET[:9]}")
    screen.now += 2
    screen.write("")
    screen.write(f"{SECRET[9:]} 2\x1b[A")
    assert SECRET[:9] not in "".join(screen.end())


def test_rows_are_bounded(screen: Screen) -> None:
    for step in range(2000):
        screen.write(f"row {step}\x1b[9999A\n\n")
        assert len(screen.log.out._rows._frames) <= MAX_ROWS  # pyright: ignore[reportPrivateUsage]


TOKENS = ["a", "bar 1%", "\r", "\n", "\x1b[A", "\x1b[2A", "\x1b[1G", "\r   \r", "x" * 9]


@settings(max_examples=200, deadline=None)
@given(st.lists(st.sampled_from(TOKENS), max_size=40), st.integers(1, 9))
def test_frames_do_not_depend_on_how_the_output_is_cut(tokens: list[str], size: int) -> None:
    import tempfile

    text = "".join(tokens)

    def written(size: int) -> list[str]:
        with tempfile.TemporaryDirectory() as folder:
            log = Log(Path(folder))
            for start in range(0, len(text), size):
                log.out.feed(text[start : start + size].encode())
            return log.end()

    assert written(size) == written(max(1, len(text)))
