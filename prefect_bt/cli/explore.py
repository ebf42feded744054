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

from prefect_bt.checkpoints.catalogue import CheckpointFile, CommittedCheckpoint
from prefect_bt.cli.explore_tree import Folder, plant
from prefect_bt.cli.fuzzy import rank_matches
from prefect_bt.cli.printable import printable
from prefect_bt.workspace.limits import format_bytes

Key = Literal[
    "up", "down", "pageup", "pagedown", "home", "end",
    "left", "right", "enter", "escape", "backspace", "c-u",
]  # fmt: skip
Look = Literal["tensors", "text", "url"]

TEXT_LIMIT: Final = 1_000_000
"""Bytes; files of this size and more are not shown, their address is (§8.5)."""
_PAGE: Final = 10
_GAP: Final = "  "
_PICKING: Final = "type to filter · enter, → open · esc leave"
_WALKING: Final = "← back · → open, address · enter look · q leave"


@dataclass(frozen=True)
class Ask:
    """What the terminal is to do: show `file`'s address or content, or leave."""

    what: Literal["leave", "url", "open"]
    file: CheckpointFile | None = None


@dataclass(frozen=True)
class Line:
    text: str
    chosen: bool


@dataclass(frozen=True)
class View:
    """A screen: where one is, the lines in sight, and what the keys do."""

    head: str
    lines: tuple[Line, ...]
    hint: str


Row = tuple[str, ...]
"""The cells of a line."""


def choose_view(path: str, size: int) -> Look:
    """How a file of `size` bytes is looked at."""
    if path.endswith(".safetensors"):
        return "tensors"
    return "text" if size < TEXT_LIMIT else "url"


class Explorer:
    """Where somebody is: picking a checkpoint, or in the folder `here`."""

    def __init__(
        self,
        job_id: str,
        checkpoints: Sequence[CommittedCheckpoint],
        *,
        start: CommittedCheckpoint | None = None,
    ) -> None:
        self._job_id, self._all = job_id, list(checkpoints)
        self.top = self.here = plant(self._all)
        self.picking, self._typed = True, ""
        self._cursor = self._picked = 0
        self._rows = self._pick_rows()
        if start is not None:
            self._picked = self._all.index(start)
            self._open_checkpoint(start)

    def press(self, key: Key) -> Ask | None:
        """One key; None when there is only a new screen to draw."""
        if key == "escape":
            return Ask("leave")
        moved = self._move(key)
        if moved is not None:
            self._cursor = max(0, min(moved, len(self._rows) - 1))
            return None
        return self._pick(key) if self.picking else self._walk(key)

    def type(self, text: str) -> Ask | None:
        """Letters: of the filter while picking; else `q` leaves."""
        if self.picking:
            self._filter(self._typed + text)
            return None
        return Ask("leave") if text == "q" else None

    def view(self, *, width: int, height: int) -> View:
        """What fits into so many columns and rows: head and hint go first where rows are few."""
        room = max(1, height - 2)
        first = max(0, min(self._cursor - room // 2, len(self._rows) - room))
        seen = self._rows[first : first + room]
        lines = (
            Line(_cut(text, width), first + number == self._cursor)
            for number, text in enumerate(_align(seen))
        )
        hint = _PICKING if self.picking else _WALKING
        return View(_cut(printable(self._head()), width), tuple(lines), _cut(hint, width))

    def _head(self) -> str:
        if self.picking:
            count = f"{len(self._rows)}/{len(self._all)}"
            return f"Checkpoints of job {self._job_id} ({count})  > {self._typed}"
        here = self.here.path
        label = _label(self.here.checkpoint)
        return _GAP.join(filter(None, [f"job {self._job_id}{'/' if here else ''}{here}", label]))

    def _move(self, key: Key) -> int | None:
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

    def _pick(self, key: Key) -> None:
        if key == "backspace":
            self._filter(self._typed[:-1])
        elif key == "c-u":
            self._filter("")
        elif key in {"enter", "right"} and self._rows:
            self._picked = self._matches()[self._cursor]
            self._open_checkpoint(self._all[self._picked])

    def _filter(self, typed: str) -> None:
        self._typed, self._cursor = typed, 0
        self._rows = self._pick_rows()

    def _matches(self) -> list[int]:
        texts = [f"{one.checkpoint_id} {_label(one)}" for one in self._all]
        found = rank_matches(self._typed, texts)
        # Ids are random letters: spread over them, anything would be found.
        typed = self._typed.strip().casefold()
        by_id = [index for index, one in enumerate(self._all) if typed and one.id.startswith(typed)]
        return found + [index for index in by_id if index not in found]

    def _pick_rows(self) -> list[Row]:
        return [_checkpoint_row(self._all[index]) for index in self._matches()]

    def _back_to_picking(self) -> None:
        self.picking = True
        self._filter("")
        self._cursor = self._picked

    # -- walking ----------------------------------------------------------------------------

    def _open_checkpoint(self, checkpoint: CommittedCheckpoint) -> None:
        name = checkpoint.checkpoint_id
        self.picking = False
        self._enter(self.top.below("" if name == "." else name))

    def _enter(self, folder: Folder, *, at: int = 0) -> None:
        self.here, self._cursor = folder, at
        self._rows = [_folder_row(one) for one in folder.folders.values()]
        self._rows += [_file_row(name, one) for name, one in folder.files.items()]

    def _walk(self, key: Key) -> Ask | None:
        if key in {"left", "backspace"}:
            self._back()
        elif key in {"right", "enter"}:
            return self._go(look=key == "enter")
        return None

    def _back(self) -> None:
        came_from, parent = self.here, self.here.parent
        if parent is None:
            self._back_to_picking()
        else:
            self._enter(parent, at=list(parent.folders.values()).index(came_from))

    def _go(self, *, look: bool) -> Ask | None:
        inside = [*self.here.folders.values(), *self.here.files.values()]
        if not inside:
            return None
        chosen = inside[self._cursor]
        if isinstance(chosen, Folder):
            self._enter(chosen)
            return None
        return Ask("open" if look else "url", chosen)


# -- lines ----------------------------------------------------------------------------------


def _checkpoint_row(checkpoint: CommittedCheckpoint) -> Row:
    created = f"{datetime.fromtimestamp(checkpoint.created_at).astimezone():%Y-%m-%d %H:%M:%S}"
    size = format_bytes(checkpoint.size)
    return printable(checkpoint.checkpoint_id), size, created, _label(checkpoint)


def _folder_row(folder: Folder) -> Row:
    count = "1 file" if folder.count == 1 else f"{folder.count} files"
    label = _label(folder.checkpoint)
    return f"{printable(folder.name)}/", format_bytes(folder.size), count, label


def _file_row(name: str, file: CheckpointFile) -> Row:
    return printable(name), format_bytes(file.size)


def _label(checkpoint: CommittedCheckpoint | None) -> str:
    """`[type · base model]`, of what there is of them."""
    if checkpoint is None:
        return ""
    told = " · ".join(filter(None, [checkpoint.type, checkpoint.base_model]))
    return f"[{printable(told)}]" if told else ""


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
