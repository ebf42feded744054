"""The explorer of a job's checkpoints: what each key does, and the lines of the screen. Pure.

The user picks a checkpoint by typing letters of its name, then opens its folders and files:

<checkpoint>/<file>             where only rank 0 wrote
<checkpoint>/rank-<n>/<file>    otherwise
<file>                          of the checkpoint `.`
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import zip_longest
from posixpath import basename
from typing import Final, Literal, NamedTuple

from rich.cells import cell_len, set_cell_size

from prefect_bt.checkpoints.committed.catalog import CheckpointFile, CommittedCheckpoint
from prefect_bt.checkpoints.layout import join_checkpoint_path
from prefect_bt.cli.ui.terminal import format_count
from prefect_bt.text.control_characters import escape_controls
from prefect_bt.text.fuzzy_match import rank_matches
from prefect_bt.text.number_ranges import format_ranks
from prefect_bt.text.quantities import format_utc
from prefect_bt.workspace.limits import format_bytes

Key = Literal[
    "up", "down", "pageup", "pagedown", "home", "end",
    "left", "right", "enter", "escape", "backspace", "c-u",
]  # fmt: skip

_TEXT_LIMIT: Final = 1_000_000
_LINE_CONTROLS: Final = {ord("\t"): "␉", ord("\n"): "␊"}


class Action(NamedTuple):
    """What the terminal does next: leave, or show the URL or the content of `file`."""

    kind: Literal["leave", "url", "open"]
    file: CheckpointFile | None = None


def choose_view(path: str, size: int) -> Literal["tensors", "text", "url"]:
    """Return what to show of a file of `size` bytes; of a large file only the URL."""
    if path.endswith(".safetensors"):
        return "tensors"
    return "text" if size < _TEXT_LIMIT else "url"


class Explorer:
    """The state of the explorer.

    `folder`: path of the open folder with a slash at its end, "" for the top folder; None while
    the user picks a checkpoint. `lines` and `cursor`: the list on the screen and the selected line.
    """

    def __init__(
        self,
        job_id: str,
        checkpoints: Sequence[CommittedCheckpoint],
        *,
        start: CommittedCheckpoint | None = None,
    ) -> None:
        self._job_id = job_id
        self._checkpoints = {_folder(one): one for one in checkpoints}
        self._files: dict[str, CheckpointFile] = {}
        for folder, checkpoint in self._checkpoints.items():
            alone = {manifest.rank for manifest in checkpoint.manifests} == {0}
            for file in checkpoint.files():
                rank = "" if alone else f"rank-{file.rank}/"
                is_whole = file.path == checkpoint.checkpoint_id
                inner = basename(file.path) if is_whole else file.path.removeprefix(folder)
                self._files.setdefault(folder + rank + inner, file)
        self.folder: str | None = None
        self._picked = _folder(start) if start else None
        self._filter("")
        if self._picked is not None:
            self._open_folder(self._picked)

    @property
    def title(self) -> str:
        if self.folder is None:
            count = f"{len(self.lines)}/{len(self._checkpoints)}"
            return f"Checkpoints of job {self._job_id} ({count})  > {_escape(self._query)}"
        where = f"job {self._job_id}/{self.folder}".rstrip("/")
        return _escape(f"{where}  {_label(self._checkpoints.get(self.folder))}")

    @property
    def hint(self) -> str:
        """Return what the keys do."""
        if self.folder is None:
            return "type to filter · enter, → open · esc quit"
        return "← back · → open, URL · enter show · q quit"

    def handle_key(self, key: Key) -> Action | None:
        """Handle one key. Return None if only the screen changes."""
        last = len(self.lines) - 1
        moves = {"up": -1, "down": 1, "pageup": -10, "pagedown": 10, "home": -last, "end": last}
        if key in moves:
            self.cursor = max(0, min(self.cursor + moves[key], last))
        elif key == "escape":
            return Action("leave")
        elif key in {"enter", "right"}:
            return self._open_selected("open" if key == "enter" else "url")
        elif self.folder is None and key != "left":
            self._filter(self._query[:-1] if key == "backspace" else "")
        elif self.folder is not None and key != "c-u":
            self._open_parent(self.folder)
        return None

    def handle_text(self, text: str) -> Action | None:
        """Add typed text to the filter of the picker; in a folder, `q` leaves."""
        if self.folder is None:
            self._filter(self._query + text)
            return None
        return Action("leave") if text == "q" else None

    def _show(self, rows: Mapping[str, tuple[str, ...]], selected: str | None) -> None:
        """Show a line for each path, with the cursor on the path `selected`."""
        self._paths, self.lines = list(rows), _align(list(rows.values()))
        self.cursor = self._paths.index(selected) if selected in self._paths else 0

    def _filter(self, query: str, selected: str | None = None) -> None:
        """Show the picker, with the checkpoints that match the query."""
        self._query, typed = query, query.strip().casefold()
        texts = [f"{one.checkpoint_id} {_label(one)}" for one in self._checkpoints.values()]
        known = list(self._checkpoints.items())
        found = [known[index] for index in rank_matches(query, texts)]
        # The letters of an ID are random: only its beginning is compared.
        found += [(path, one) for path, one in known if typed and one.id.startswith(typed)]
        self._show({path: _checkpoint_row(one) for path, one in found}, selected)

    def _open_folder(self, folder: str, selected: str | None = None) -> None:
        self.folder = folder
        inside: dict[str, list[CheckpointFile]] = {}
        for path, file in self._files.items():
            if path.startswith(folder):
                name, slash, _ = path.removeprefix(folder).partition("/")
                inside.setdefault(folder + name + slash, []).append(file)
        folders_first = sorted(inside, key=lambda path: path in self._files)
        self._show({path: self._row(path, inside[path]) for path in folders_first}, selected)

    def _row(self, path: str, files: Sequence[CheckpointFile]) -> tuple[str, ...]:
        """Return the cells of a file, or of a folder with all files below it."""
        name, size = path[len(self.folder or "") :], format_bytes(sum(one.size for one in files))
        if path in self._files:
            return name, size
        return name, size, format_count(len(files), "file"), _label(self._checkpoints.get(path))

    def _open_selected(self, kind: Literal["url", "open"]) -> Action | None:
        if not self._paths:
            return None
        path = self._paths[self.cursor]
        if path in self._files:
            return Action(kind, self._files[path])
        if self.folder is None:
            self._picked = path
        self._open_folder(path)
        return None

    def _open_parent(self, folder: str) -> None:
        """Open the folder above, or the picker above the top folder."""
        if folder:
            self._open_folder("".join(folder[:-1].rpartition("/")[:2]), folder)
        else:
            self.folder = None
            self._filter("", self._picked)


def _folder(checkpoint: CommittedCheckpoint) -> str:
    return join_checkpoint_path(checkpoint.checkpoint_id, "")


def _checkpoint_row(one: CommittedCheckpoint) -> tuple[str, ...]:
    return one.checkpoint_id, format_bytes(one.size), format_utc(one.created_at), _label(one)


def _label(checkpoint: CommittedCheckpoint | None) -> str:
    """Return `[type · base model · without rank 1]`, or "" where none of it applies."""
    known = [checkpoint.type, checkpoint.base_model] if checkpoint else []
    if checkpoint and checkpoint.missing_ranks:
        known.append(f"without {format_ranks(checkpoint.missing_ranks)}")
    text = " · ".join(filter(None, known))
    return f"[{text}]" if text else ""


def _align(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Join the cells of each row, padded to columns."""
    shown = [[_escape(cell) for cell in row] for row in rows]
    widths = [max(map(cell_len, column)) for column in zip_longest(*shown, fillvalue="")]
    return ["  ".join(map(set_cell_size, row, widths)) for row in shown]


def _escape(text: str) -> str:
    return escape_controls(text).translate(_LINE_CONTROLS)
