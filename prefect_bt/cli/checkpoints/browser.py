"""Walk through a job's checkpoints: what every key does, and what is on the screen. No terminal.

First one is picked, by typing letters of it; then its folders are walked. What needs the store or
the terminal is handed back as an Ask.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Literal

from rich.cells import cell_len, set_cell_size

from prefect_bt.checkpoints.committed.catalog import CheckpointFile, CommittedCheckpoint
from prefect_bt.cli.checkpoints.browser_tree import FolderNode, build_tree
from prefect_bt.cli.ui.fuzzy_match import rank_matches
from prefect_bt.cli.ui.printable import replace_unprintable
from prefect_bt.workspace.limits import format_bytes

Key = Literal[
    "up", "down", "pageup", "pagedown", "home", "end",
    "left", "right", "enter", "escape", "backspace", "c-u",
]  # fmt: skip
ViewMode = Literal["tensors", "text", "url"]

TEXT_LIMIT: Final = 1_000_000
"""Size in bytes from which a file's URL is shown instead of its content."""
_PAGE: Final = 10
_GAP: Final = "  "
_PICKER_HINT: Final = "type to filter · enter, → open · esc leave"
_BROWSER_HINT: Final = "← back · → open, address · enter look · q leave"


@dataclass(frozen=True)
class Action:
    """What the terminal is to do: show `file`'s address or content, or leave."""

    kind: Literal["leave", "url", "open"]
    file: CheckpointFile | None = None


@dataclass(frozen=True)
class Line:
    text: str
    is_selected: bool


@dataclass(frozen=True)
class Screen:
    """A screen: where one is, the lines in sight, and what the keys do."""

    title: str
    lines: tuple[Line, ...]
    hint: str


Row = tuple[str, ...]
"""The cells of a line."""


def choose_view(path: str, size: int) -> ViewMode:
    """How a file of `size` bytes is looked at."""
    if path.endswith(".safetensors"):
        return "tensors"
    return "text" if size < TEXT_LIMIT else "url"


class Explorer:
    """Where somebody is: picking a checkpoint, or in the folder `current_folder`."""

    def __init__(
        self,
        job_id: str,
        checkpoints: Sequence[CommittedCheckpoint],
        *,
        start: CommittedCheckpoint | None = None,
    ) -> None:
        self._job_id, self._all = job_id, list(checkpoints)
        self.root = self.current_folder = build_tree(self._all)
        self.is_picking, self._query = True, ""
        self._cursor = self._picked_index = 0
        self._rows = self._picker_rows()
        if start is not None:
            self._picked_index = self._all.index(start)
            self._open_checkpoint(start)

    def handle_key(self, key: Key) -> Action | None:
        """One key; None when there is only a new screen to draw."""
        if key == "escape":
            return Action("leave")
        moved = self._cursor_after(key)
        if moved is not None:
            self._cursor = max(0, min(moved, len(self._rows) - 1))
            return None
        return self._handle_picker_key(key) if self.is_picking else self._handle_browser_key(key)

    def handle_text(self, text: str) -> Action | None:
        """Letters: of the filter while picking; else `q` leaves."""
        if self.is_picking:
            self._set_query(self._query + text)
            return None
        return Action("leave") if text == "q" else None

    def render_screen(self, *, width: int, height: int) -> Screen:
        """What fits into so many columns and rows: head and hint go first where rows are few."""
        room = max(1, height - 2)
        first = max(0, min(self._cursor - room // 2, len(self._rows) - room))
        seen = self._rows[first : first + room]
        lines = (
            Line(_cut(text, width), first + number == self._cursor)
            for number, text in enumerate(_align(seen))
        )
        hint = _PICKER_HINT if self.is_picking else _BROWSER_HINT
        return Screen(
            _cut(replace_unprintable(self._head()), width), tuple(lines), _cut(hint, width)
        )

    def _head(self) -> str:
        if self.is_picking:
            count = f"{len(self._rows)}/{len(self._all)}"
            return f"Checkpoints of job {self._job_id} ({count})  > {self._query}"
        here = self.current_folder.path
        label = _label(self.current_folder.checkpoint)
        return _GAP.join(filter(None, [f"job {self._job_id}{'/' if here else ''}{here}", label]))

    def _cursor_after(self, key: Key) -> int | None:
        """Where a key of movement leads; None for any other key."""
        return {
            "up": self._cursor - 1,
            "down": self._cursor + 1,
            "pageup": self._cursor - _PAGE,
            "pagedown": self._cursor + _PAGE,
            "home": 0,
            "end": len(self._rows) - 1,
        }.get(key)

    # -- picking ----------------------------------------------------------------------------

    def _handle_picker_key(self, key: Key) -> None:
        if key == "backspace":
            self._set_query(self._query[:-1])
        elif key == "c-u":
            self._set_query("")
        elif key in {"enter", "right"} and self._rows:
            self._picked_index = self._matches()[self._cursor]
            self._open_checkpoint(self._all[self._picked_index])

    def _set_query(self, typed: str) -> None:
        self._query, self._cursor = typed, 0
        self._rows = self._picker_rows()

    def _matches(self) -> list[int]:
        texts = [f"{one.checkpoint_id} {_label(one)}" for one in self._all]
        found = rank_matches(self._query, texts)
        # Ids are random letters: spread over them, anything would be found.
        typed = self._query.strip().casefold()
        by_id = [index for index, one in enumerate(self._all) if typed and one.id.startswith(typed)]
        return found + [index for index in by_id if index not in found]

    def _picker_rows(self) -> list[Row]:
        return [_checkpoint_row(self._all[index]) for index in self._matches()]

    def _return_to_picker(self) -> None:
        self.is_picking = True
        self._set_query("")
        self._cursor = self._picked_index

    # -- walking ----------------------------------------------------------------------------

    def _open_checkpoint(self, checkpoint: CommittedCheckpoint) -> None:
        name = checkpoint.checkpoint_id
        self.is_picking = False
        self._open_folder(self.root.ensure_folder("" if name == "." else name))

    def _open_folder(self, folder: FolderNode, *, at: int = 0) -> None:
        self.current_folder, self._cursor = folder, at
        self._rows = [_folder_row(one) for one in folder.folders.values()]
        self._rows += [_file_row(name, one) for name, one in folder.files.items()]

    def _handle_browser_key(self, key: Key) -> Action | None:
        if key in {"left", "backspace"}:
            self._open_parent()
        elif key in {"right", "enter"}:
            return self._open_selected(show_content=key == "enter")
        return None

    def _open_parent(self) -> None:
        came_from, parent = self.current_folder, self.current_folder.parent
        if parent is None:
            self._return_to_picker()
        else:
            self._open_folder(parent, at=list(parent.folders.values()).index(came_from))

    def _open_selected(self, *, show_content: bool) -> Action | None:
        inside = [*self.current_folder.folders.values(), *self.current_folder.files.values()]
        if not inside:
            return None
        chosen = inside[self._cursor]
        if isinstance(chosen, FolderNode):
            self._open_folder(chosen)
            return None
        return Action("open" if show_content else "url", chosen)


# -- lines ----------------------------------------------------------------------------------


def _checkpoint_row(checkpoint: CommittedCheckpoint) -> Row:
    created = f"{datetime.fromtimestamp(checkpoint.created_at).astimezone():%Y-%m-%d %H:%M:%S}"
    size = format_bytes(checkpoint.size)
    return replace_unprintable(checkpoint.checkpoint_id), size, created, _label(checkpoint)


def _folder_row(folder: FolderNode) -> Row:
    count = "1 file" if folder.file_count == 1 else f"{folder.file_count} files"
    label = _label(folder.checkpoint)
    return f"{replace_unprintable(folder.name)}/", format_bytes(folder.size), count, label


def _file_row(name: str, file: CheckpointFile) -> Row:
    return replace_unprintable(name), format_bytes(file.size)


def _label(checkpoint: CommittedCheckpoint | None) -> str:
    """`[type · base model]`, of what there is of them."""
    if checkpoint is None:
        return ""
    told = " · ".join(filter(None, [checkpoint.type, checkpoint.base_model]))
    return f"[{replace_unprintable(told)}]" if told else ""


def _align(rows: Sequence[Row]) -> list[str]:
    """Cells under one another."""
    depth = max((len(row) for row in rows), default=0)
    widths = [
        max(cell_len(row[column]) for row in rows if column < len(row)) for column in range(depth)
    ]
    return [
        _GAP.join(set_cell_size(cell, width) for cell, width in zip(row, widths, strict=False))
        for row in rows
    ]


def _cut(text: str, width: int) -> str:
    if cell_len(text) <= width:
        return text
    return f"{set_cell_size(text, width - 1)}…" if width > 1 else "…"[:width]
