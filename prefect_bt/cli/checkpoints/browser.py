"""The explorer of a job's checkpoints: what each key does, and what the screen shows. Pure.

The user picks a checkpoint by typing letters of its name, then opens its folders and files.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime
from itertools import zip_longest
from typing import Final, Literal, NamedTuple

from rich.cells import cell_len, set_cell_size

from prefect_bt.checkpoints.committed.catalog import CheckpointFile, CommittedCheckpoint
from prefect_bt.cli.checkpoints.browser_tree import FolderNode, build_tree
from prefect_bt.cli.ui.terminal import format_count
from prefect_bt.text.control_characters import escape_controls
from prefect_bt.workspace.limits import format_bytes

Key = Literal[
    "up", "down", "pageup", "pagedown", "home", "end",
    "left", "right", "enter", "escape", "backspace", "c-u",
]  # fmt: skip

_TEXT_LIMIT: Final = 1_000_000
_GAP: Final = "  "
_PICKER_HINT: Final = "type to filter · enter, → open · esc quit"
_FOLDER_HINT: Final = "← back · → open, URL · enter show · q quit"
_LINE_CONTROLS: Final = {ord("\t"): "␉", ord("\n"): "␊"}


class Action(NamedTuple):
    """What the terminal does next: leave, or show the URL or the content of `file`."""

    kind: Literal["leave", "url", "open"]
    file: CheckpointFile | None = None


class Line(NamedTuple):
    text: str
    is_selected: bool


class Screen(NamedTuple):
    """The text of a screen. `hint` explains the keys."""

    title: str
    lines: list[Line]
    hint: str


def choose_view(path: str, size: int) -> Literal["tensors", "text", "url"]:
    """Return what to show of a file of `size` bytes; of a large file only the URL."""
    if path.endswith(".safetensors"):
        return "tensors"
    return "text" if size < _TEXT_LIMIT else "url"


class Explorer:
    """The state of the explorer: the picker of checkpoints, or the folder `current_folder`."""

    def __init__(
        self,
        job_id: str,
        checkpoints: Sequence[CommittedCheckpoint],
        *,
        start: CommittedCheckpoint | None = None,
    ) -> None:
        self._job_id, self._all = job_id, list(checkpoints)
        self.root = self.current_folder = build_tree(self._all)
        self.is_picking, self._picked = True, start or self._all[0]
        self._filter("")
        if start:
            self._open_checkpoint(start)

    def handle_key(self, key: Key) -> Action | None:
        """Handle one key. Return None if only the screen changes."""
        last = len(self._items) - 1
        moves = {"up": -1, "down": 1, "pageup": -10, "pagedown": 10, "home": -last, "end": last}
        if key in moves:
            self._cursor = max(0, min(self._cursor + moves[key], last))
        elif key == "escape":
            return Action("leave")
        elif key in {"enter", "right"}:
            return self._open_selected(show_content=key == "enter")
        elif self.is_picking and key != "left":
            self._filter(self._query[:-1] if key == "backspace" else "")
        elif not self.is_picking and key != "c-u":
            self._open_parent()
        return None

    def handle_text(self, text: str) -> Action | None:
        """Add typed text to the filter of the picker; in a folder, `q` leaves."""
        if self.is_picking:
            self._filter(self._query + text)
            return None
        return Action("leave") if text == "q" else None

    def render_screen(self, *, width: int, height: int) -> Screen:
        """Return the lines around the cursor that fit; a screen of a few rows has no title."""
        room = max(1, height - 2)
        first = max(0, min(self._cursor - room // 2, len(self._items) - room))
        texts = _align([_row(item) for item in self._items[first : first + room]])
        selected = self._cursor - first
        lines = [Line(_cut(text, width), number == selected) for number, text in enumerate(texts)]
        hint = _PICKER_HINT if self.is_picking else _FOLDER_HINT
        return Screen(_cut(self._title(), width), lines, _cut(hint, width))

    def _title(self) -> str:
        if self.is_picking:
            count = f"{len(self._items)}/{len(self._all)}"
            return f"Checkpoints of job {self._job_id} ({count})  > {self._query}"
        where = f"job {self._job_id}/{self.current_folder.path}".rstrip("/")
        return f"{where}{_GAP}{_label(self.current_folder.checkpoint)}"

    def _filter(self, query: str) -> None:
        self._query, self._cursor = query, 0
        found = rank_matches(query, [f"{one.checkpoint_id} {_label(one)}" for one in self._all])
        # The letters of an ID are random: only its beginning is compared.
        typed = query.strip().casefold()
        found += [n for n, one in enumerate(self._all) if typed and one.id.startswith(typed)]
        self._items: list[_Item] = [self._all[index] for index in dict.fromkeys(found)]

    def _open_selected(self, *, show_content: bool) -> Action | None:
        if not self._items:
            return None
        item = self._items[self._cursor]
        if isinstance(item, CheckpointFile):
            return Action("open" if show_content else "url", item)
        if isinstance(item, FolderNode):
            self._open_folder(item)
        else:
            self._open_checkpoint(item)
        return None

    def _open_checkpoint(self, checkpoint: CommittedCheckpoint) -> None:
        self.is_picking, self._picked = False, checkpoint
        self._open_folder(self.root.ensure_folder(checkpoint.checkpoint_id))

    def _open_folder(self, folder: FolderNode) -> None:
        self.current_folder, self._cursor = folder, 0
        self._items = [*folder.folders.values(), *folder.files.values()]

    def _open_parent(self) -> None:
        """Open the folder above, or the picker above the top folder."""
        left: _Item = self.current_folder
        if left.parent is None:
            left, self.is_picking = self._picked, True
            self._filter("")
        else:
            self._open_folder(left.parent)
        self._cursor = self._items.index(left)


def rank_matches(query: str, texts: Sequence[str]) -> list[int]:
    """Return the indices of the texts that match, best first; all of them for no query.

    A text matches a word that has its letters in order, in any case. The closer the letters are
    together, the better is the match.
    """
    # Each pattern matches in one way only, so that no text makes the search slow.
    patterns = [
        re.compile(f"(?=({''.join(f'[^{letter}]*{letter}' for letter in map(re.escape, word))}))")
        for word in query.casefold().split()
    ]
    ranked: list[tuple[int, int]] = []
    for index, text in enumerate(texts):
        spans = [[len(m[1]) for m in one.finditer(text.casefold())] for one in patterns]
        if all(spans):
            ranked.append((sum(map(min, spans)), index))
    return [index for _, index in sorted(ranked)]


_Item = CommittedCheckpoint | FolderNode | CheckpointFile


def _row(item: _Item) -> tuple[str, ...]:
    """Return the cells of a line."""
    if isinstance(item, CheckpointFile):
        return item.path.rpartition("/")[2], format_bytes(item.size)
    if isinstance(item, FolderNode):
        name, count = item.path.rpartition("/")[2], format_count(item.file_count, "file")
        return f"{name}/", format_bytes(item.size), count, _label(item.checkpoint)
    created = f"{datetime.fromtimestamp(item.created_at).astimezone():%Y-%m-%d %H:%M:%S}"
    return item.checkpoint_id, format_bytes(item.size), created, _label(item)


def _label(checkpoint: CommittedCheckpoint | None) -> str:
    """Return `[type · base model]`, or "" where neither is known."""
    known = [checkpoint.type, checkpoint.base_model] if checkpoint else []
    text = " · ".join(filter(None, known))
    return f"[{text}]" if text else ""


def _align(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Join the cells of each row, padded to columns."""
    shown = [[_escape(cell) for cell in row] for row in rows]
    widths = [max(map(cell_len, column)) for column in zip_longest(*shown, fillvalue="")]
    return [_GAP.join(map(set_cell_size, row, widths)) for row in shown]


def _escape(text: str) -> str:
    return escape_controls(text).translate(_LINE_CONTROLS)


def _cut(text: str, width: int) -> str:
    """Escape controls, and cut the text where it is wider than the screen."""
    text = _escape(text)
    return text if cell_len(text) <= width else f"{set_cell_size(text, max(0, width - 1))}…"
