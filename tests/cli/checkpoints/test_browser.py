"""The explorer without a terminal: what keys do, and what is shown."""

from typing import get_args

import pytest
from prompt_toolkit.application import DummyApplication
from prompt_toolkit.application.current import set_app
from prompt_toolkit.layout.mouse_handlers import MouseHandlers
from prompt_toolkit.layout.screen import Char, Screen, WritePosition

from prefect_bt.checkpoints.committed.catalog import CommittedCheckpoint, list_checkpoints
from prefect_bt.cli.checkpoints.browser import Action, Explorer, Key, choose_view
from prefect_bt.cli.checkpoints.browser_terminal import make_layout
from prefect_bt.object_store import open_store
from prefect_bt.text.fuzzy_match import rank_matches
from tests.cli.conftest import ENDED, Shop

APPLICATION = DummyApplication()
"""Drawn in: without one each question for the application makes one, with all key bindings."""


@pytest.fixture
def found(tmp_path) -> list[CommittedCheckpoint]:
    shop = Shop(str(tmp_path / "store"))
    job = shop.job("tiny", *ENDED)
    files = ["config.json", "model.safetensors", "optim/rng.pt", "optim/state.pt"]
    shop.checkpoint(job, "v0-1/checkpoint-10", size=4096, at=1, type="full", files=files)
    shop.checkpoint(job, "v0-1/checkpoint-20", size=8192, at=2, type="full", files=files)
    shop.checkpoint(job, "adapter", size=17, at=3, type="lora", base_model="org/base")
    shop.checkpoint(job, ".", size=5, at=4, files=["notes.txt"])
    return list_checkpoints(open_store(shop.url), job.project_id, job.id)


def named(found: list[CommittedCheckpoint], name: str) -> CommittedCheckpoint:
    return next(one for one in found if one.checkpoint_id == name)


def shown(explorer: Explorer) -> list[str]:
    return [line.rstrip() for line in explorer.lines]


def first_words(explorer: Explorer) -> list[str]:
    return [line.split()[0] for line in explorer.lines]


def chosen(explorer: Explorer) -> str:
    return explorer.lines[explorer.cursor].split()[0]


def drawn(explorer: Explorer, *, width: int, height: int) -> dict[int, list[Char]]:
    """The cells of each row of a screen of this size."""
    screen = Screen()
    place = WritePosition(0, 0, width, height)
    container = make_layout(explorer).container
    with set_app(APPLICATION):
        container.write_to_screen(screen, MouseHandlers(), place, "", erase_bg=True, z_index=None)
    return {
        row: [cells[column] for column in sorted(cells)]
        for row, cells in screen.data_buffer.items()
    }


def press(explorer: Explorer, *keys: str) -> Action | None:
    """The answer to the last key; a text that is no key's name is typed."""
    answer = None
    for key in keys:
        answer = explorer.handle_key(key) if key in get_args(Key) else explorer.handle_text(key)
    return answer


def test_the_tree(found):
    explorer = Explorer("j", found, start=named(found, "."))
    assert [line.split()[:5] for line in shown(explorer)] == [
        ["v0-1/", "12.00", "KiB", "8", "files"],
        ["adapter/", "17", "bytes", "1", "file"],
        ["notes.txt", "5", "bytes"],
    ]
    assert "[" not in shown(explorer)[0], "v0-1 is no checkpoint"
    press(explorer, "enter")
    assert explorer.folder == "v0-1/"
    assert first_words(explorer) == ["checkpoint-10/", "checkpoint-20/"]
    press(explorer, "enter")
    assert first_words(explorer) == ["optim/", "config.json", "model.safetensors"]
    press(explorer, "enter")
    assert first_words(explorer) == ["rng.pt", "state.pt"]


def test_a_gangs_files_lie_under_their_ranks(tmp_path):
    shop = Shop(str(tmp_path))
    job = shop.job("tiny", *ENDED)
    for rank in (0, 1):
        shop.checkpoint(job, "checkpoint-10", size=4, at=rank, rank=rank, files=["a.pt"])
    explorer = Explorer("j", list_checkpoints(open_store(shop.url), job.project_id, job.id))
    press(explorer, "enter", "left")
    assert shown(explorer)[0].split() == ["checkpoint-10/", "8", "bytes", "2", "files"]
    press(explorer, "enter")
    assert first_words(explorer) == ["rank-0/", "rank-1/"]
    asked = press(explorer, "down", "enter", "enter")
    assert asked is not None and (asked.file.path, asked.file.rank) == ("checkpoint-10/a.pt", 1)


def test_picking_by_typing(found):
    explorer = Explorer("j", found)
    tens = ["v0-1/checkpoint-10", "v0-1/checkpoint-20"]
    assert first_words(explorer) == [*tens, "adapter", "."]
    press(explorer, "c", "k", "2", "0")
    assert first_words(explorer) == ["v0-1/checkpoint-20"]
    assert "ck20" in explorer.title
    press(explorer, "backspace", "backspace", "backspace", "backspace", "backspace")
    assert len(shown(explorer)) == 4
    press(explorer, "base")
    assert chosen(explorer) == "adapter", "the base model counts too"
    press(explorer, "q")
    assert shown(explorer) == [], "q is a letter while one types"
    assert press(explorer, "enter") is None and explorer.folder is None
    press(explorer, "c-u", "down", "enter")
    assert explorer.folder == "v0-1/checkpoint-20/"


def test_walking(found):
    explorer = Explorer("j", found)
    press(explorer, "right")
    lines = shown(explorer)
    assert lines[0].split() == ["optim/", "2.00", "KiB", "2", "files"]
    assert lines[1].split() == ["config.json", "1.00", "KiB"]
    press(explorer, "right")
    assert explorer.folder == "v0-1/checkpoint-10/optim/"
    press(explorer, "left")
    assert chosen(explorer) == "optim/", "back where one came from"
    press(explorer, "left")
    assert explorer.folder == "v0-1/"
    assert shown(explorer)[0].endswith("4 files  [full]")
    press(explorer, "left")
    assert first_words(explorer) == ["v0-1/", "adapter/", "notes.txt"]
    assert shown(explorer)[1].endswith("1 file   [lora · org/base]")
    press(explorer, "left")
    assert explorer.folder is None and chosen(explorer) == "v0-1/checkpoint-10"
    press(explorer, "left")
    assert explorer.folder is None


def test_the_root_checkpoint_is_the_root(found):
    explorer = Explorer("j", found, start=named(found, "."))
    assert explorer.folder == ""
    assert "job j" in explorer.title


def test_actions_of_keys(found):
    explorer = Explorer("j", found, start=named(found, "v0-1/checkpoint-10"))
    files = {file.path: file for file in named(found, "v0-1/checkpoint-10").files()}
    config = files["v0-1/checkpoint-10/config.json"]
    assert press(explorer, "down", "right") == Action("url", config)
    assert press(explorer, "enter") == Action("open", config)
    model = files["v0-1/checkpoint-10/model.safetensors"]
    assert press(explorer, "end", "enter") == Action("open", model)
    assert press(explorer, "x") is None
    assert press(explorer, "q") == Action("leave")
    assert press(explorer, "escape") == Action("leave")
    assert press(Explorer("j", found), "a", "escape") == Action("leave")


def test_the_cursor_stays_inside(found):
    explorer = Explorer("j", found)
    press(explorer, "up", "up")
    assert chosen(explorer) == "v0-1/checkpoint-10"
    press(explorer, *["down"] * 9)
    assert chosen(explorer) == "."
    press(explorer, "home")
    assert chosen(explorer) == "v0-1/checkpoint-10"
    press(explorer, "pagedown")
    assert chosen(explorer) == "."
    press(explorer, "pageup")
    assert chosen(explorer) == "v0-1/checkpoint-10"
    press(explorer, "end", "adap")
    assert chosen(explorer) == "adapter"


@pytest.mark.parametrize("height", [3, 4, 5, 60])
def test_any_height_shows_the_cursor(found, height: int):
    explorer = Explorer("j", found)
    for _ in range(6):
        rows = drawn(explorer, width=30, height=height)
        assert max(rows) < height
        (selected,) = [row for row in rows.values() if "reverse" in row[0].style]
        assert "".join(cell.char for cell in selected).startswith(chosen(explorer))
        explorer.handle_key("down")


@pytest.mark.parametrize("width", [2, 8, 30, 200])
def test_nothing_is_wider_than_the_screen(tmp_path, width: int):
    shop = Shop(str(tmp_path))
    job = shop.job("tiny", *ENDED)
    shop.checkpoint(job, "名前" * 13, size=3, at=1, type="full", base_model="b" * 90)
    explorer = Explorer("j", list_checkpoints(open_store(shop.url), job.project_id, job.id))
    for _ in range(2):
        rows = drawn(explorer, width=width, height=9)
        assert len(rows) == 9 and all(len(row) <= width for row in rows.values())
        explorer.handle_key("enter")


def test_names_do_not_steer_the_terminal(tmp_path):
    shop = Shop(str(tmp_path))
    job = shop.job("tiny", *ENDED)
    name = "evil\x1b[2J\n\x07"
    shop.checkpoint(job, name, size=3, at=1, files=["\x1b]52;c;xx\x07.txt"])
    explorer = Explorer("j", list_checkpoints(open_store(shop.url), job.project_id, job.id))
    for _ in range(2):
        assert all(text.isprintable() for text in (explorer.title, *explorer.lines))
        explorer.handle_key("enter")


def test_matching():
    names = ["checkpoint-10", "checkpoint-100", "final", "c-h-e-1-0"]
    assert rank_matches("", names) == [0, 1, 2, 3]
    assert rank_matches("10", names) == [0, 1, 3]
    assert rank_matches("CHE10", names) == [3, 0, 1]
    assert rank_matches("che 100", names) == [1]
    assert rank_matches("xyz", names) == []
    assert rank_matches("  ", names) == [0, 1, 2, 3]
    assert rank_matches("^]-b", ["a^x]--B"]) == [0]
    assert rank_matches("a" * 20 + "b", ["a" * 200]) == [], "in a moment"


def test_which_files_are_shown_how():
    assert choose_view("a/model.safetensors", 10**12) == "tensors"
    assert choose_view("a/model.bin", 1_000_000) == "url"
    assert choose_view("a/config.json", 999_999) == "text"
    assert choose_view("empty", 0) == "text"
