"""The explorer without a terminal: what keys do, and what is shown."""

from __future__ import annotations

from typing import get_args

import pytest
from rich.cells import cell_len

from prefect_bt.checkpoints.committed.catalog import CommittedCheckpoint, list_checkpoints
from prefect_bt.cli.checkpoints.browser import Action, Explorer, Key, choose_view, rank_matches
from prefect_bt.cli.checkpoints.browser_tree import build_tree
from prefect_bt.object_store import open_store
from tests.cli.conftest import ENDED, Shop


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


def shown(explorer: Explorer, *, width: int = 100, height: int = 20) -> list[str]:
    return [line.text.rstrip() for line in explorer.render_screen(width=width, height=height).lines]


def chosen(explorer: Explorer) -> str:
    view = explorer.render_screen(width=100, height=20)
    (line,) = [line.text for line in view.lines if line.is_selected]
    return line.split()[0]


def press(explorer: Explorer, *keys: str) -> Action | None:
    """The answer to the last key; a text that is no key's name is typed."""
    answer = None
    for key in keys:
        answer = explorer.handle_key(key) if key in get_args(Key) else explorer.handle_text(key)
    return answer


def test_the_tree(found):
    root = build_tree(found)
    assert (root.file_count, root.size) == (10, 4096 + 8192 + 17 + 5)
    assert list(root.folders) == ["v0-1", "adapter"] and list(root.files) == ["notes.txt"]
    v0 = root.folders["v0-1"]
    assert (v0.file_count, v0.size, v0.checkpoint, v0.path) == (8, 12288, None, "v0-1")
    ten = v0.folders["checkpoint-10"]
    assert ten.checkpoint is named(found, "v0-1/checkpoint-10")
    assert (ten.path, ten.parent) == ("v0-1/checkpoint-10", v0)
    assert list(ten.files) == ["config.json", "model.safetensors"]
    assert list(ten.folders["optim"].files) == ["rng.pt", "state.pt"]


def test_a_gangs_files_lie_under_their_ranks(tmp_path):
    shop = Shop(str(tmp_path))
    job = shop.job("tiny", *ENDED)
    for rank in (0, 1):
        shop.checkpoint(job, "checkpoint-10", size=4, at=rank, rank=rank, files=["a.pt"])
    root = build_tree(list_checkpoints(open_store(shop.url), job.project_id, job.id))
    ten = root.folders["checkpoint-10"]
    assert ten.checkpoint is not None and ten.size == 8
    assert list(ten.folders) == ["rank-0", "rank-1"]
    assert ten.folders["rank-1"].files["a.pt"].rank == 1


def test_picking_by_typing(found):
    explorer = Explorer("j", found)
    assert [line.split()[0] for line in shown(explorer)] == [
        "v0-1/checkpoint-10",
        "v0-1/checkpoint-20",
        "adapter",
        ".",
    ]
    press(explorer, "c", "k", "2", "0")
    assert [line.split()[0] for line in shown(explorer)] == ["v0-1/checkpoint-20"]
    assert "ck20" in explorer.render_screen(width=80, height=9).title
    press(explorer, "backspace", "backspace", "backspace", "backspace", "backspace")
    assert len(shown(explorer)) == 4
    press(explorer, "base")
    assert chosen(explorer) == "adapter", "the base model counts too"
    press(explorer, "q")
    assert shown(explorer) == [], "q is a letter while one types"
    assert press(explorer, "enter") is None and explorer.is_picking
    press(explorer, "c-u", "down", "enter")
    assert not explorer.is_picking
    assert explorer.current_folder.path == "v0-1/checkpoint-20"


def test_walking(found):
    explorer = Explorer("j", found)
    press(explorer, "right")
    lines = shown(explorer)
    assert lines[0].split() == ["optim/", "2.00", "KiB", "2", "files"]
    assert lines[1].split() == ["config.json", "1.00", "KiB"]
    press(explorer, "right")
    assert explorer.current_folder.path == "v0-1/checkpoint-10/optim"
    press(explorer, "left")
    assert chosen(explorer) == "optim/", "back where one came from"
    press(explorer, "left")
    assert explorer.current_folder.path == "v0-1"
    assert shown(explorer)[0].endswith("4 files  [full]")
    press(explorer, "left")
    assert [line.split()[0] for line in shown(explorer)] == ["v0-1/", "adapter/", "notes.txt"]
    assert shown(explorer)[1].endswith("1 file   [lora · org/base]")
    press(explorer, "left")
    assert explorer.is_picking and chosen(explorer) == "v0-1/checkpoint-10"
    press(explorer, "left")
    assert explorer.is_picking


def test_the_root_checkpoint_is_the_root(found):
    explorer = Explorer("j", found, start=named(found, "."))
    assert not explorer.is_picking and explorer.current_folder.parent is None
    assert "job j" in explorer.render_screen(width=80, height=9).title


def test_what_is_asked_for(found):
    explorer = Explorer("j", found, start=named(found, "v0-1/checkpoint-10"))
    assert press(explorer, "down", "right") == Action(
        "url", explorer.current_folder.files["config.json"]
    )
    assert press(explorer, "enter") == Action("open", explorer.current_folder.files["config.json"])
    assert press(explorer, "end", "enter") == Action(
        "open", explorer.current_folder.files["model.safetensors"]
    )
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


@pytest.mark.parametrize("height", [1, 2, 3, 4, 5, 60])
def test_any_height_shows_the_cursor(found, height: int):
    explorer = Explorer("j", found)
    for _ in range(6):
        view = explorer.render_screen(width=30, height=height)
        assert len(view.lines) <= max(1, height)
        assert sum(line.is_selected for line in view.lines) == 1
        explorer.handle_key("down")


@pytest.mark.parametrize("width", [1, 8, 30, 200])
def test_nothing_is_wider_than_the_screen(tmp_path, width: int):
    shop = Shop(str(tmp_path))
    job = shop.job("tiny", *ENDED)
    shop.checkpoint(job, "名前" * 13, size=3, at=1, type="full", base_model="b" * 90)
    explorer = Explorer("j", list_checkpoints(open_store(shop.url), job.project_id, job.id))
    for _ in range(2):
        view = explorer.render_screen(width=width, height=9)
        assert all(cell_len(line.text) <= width for line in view.lines)
        assert cell_len(view.title) <= width and cell_len(view.hint) <= width
        explorer.handle_key("enter")


def test_names_do_not_steer_the_terminal(tmp_path):
    shop = Shop(str(tmp_path))
    job = shop.job("tiny", *ENDED)
    name = "evil\x1b[2J\n\x07"
    shop.checkpoint(job, name, size=3, at=1, files=["\x1b]52;c;xx\x07.txt"])
    explorer = Explorer("j", list_checkpoints(open_store(shop.url), job.project_id, job.id))
    for _ in range(2):
        view = explorer.render_screen(width=100, height=9)
        assert all(text.isprintable() for text in (view.title, view.hint, view.lines[0].text))
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
