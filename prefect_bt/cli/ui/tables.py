"""Tables of JSON documents: boxed on a terminal, plain columns elsewhere, or CSV.

A column names a key of the document, so a table, its CSV and its JSON never disagree.
"""

from __future__ import annotations

import csv
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, cast

from prefect_bt.cli.ui.terminal import Terminal, result_stream
from prefect_bt.text.control_characters import escape_controls
from prefect_bt.text.quantities import format_utc

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

Document = dict[str, Any]
Cell = Any
"""A string, or a rich Text where it has a style."""

_MIN_WRAPPED_WIDTH: Final = 24
"""Columns of a terminal that a wrapped cell needs at least, if its text is that long."""
_NARROWEST_WRAP: Final = 8
"""Width of wrapped cells below which all other cells are wrapped as well."""
_COLUMN_OVERHEAD: Final = 3
_MAX_BOXED_ROWS: Final = 2000
"""Rows up to which a table is fitted to the terminal; rich needs a second for more."""


def format_value(value: object) -> str:
    """Return text for a JSON value: "" for null, a comma-separated list for an array."""
    if isinstance(value, (list, tuple)):
        return ", ".join(map(str, cast("Sequence[object]", value)))
    return "" if value is None else str(value)


def format_time(iso: str | None) -> str:
    """Return `2026-11-24 14:05:00 UTC` for an ISO time."""
    return format_utc(datetime.fromisoformat(iso).timestamp()) if iso else ""


@dataclass(frozen=True)
class Column:
    """A column of a table.

    `key`: dotted path of the value in a row's document; "" for the whole row.
    `format`: value -> cell. `size`: the value is a number of bytes; CSV has it twice.
    `wrap`: free text that may continue on a second line. `link`: the value is a URL.
    `hide`: order in which a narrow terminal hides columns; 0 is always shown.
    """

    name: str
    key: str
    format: Callable[[Any], Cell] = format_value
    size: bool = False
    wrap: bool = False
    link: bool = False
    hide: int = 0

    def value(self, row: Mapping[str, Any]) -> Any:
        """Return the value in `row`; None where a part of the path is missing or null."""
        found: Any = row
        for part in self.key.split(".") if self.key else ():
            found = found.get(part) if found else None
        return found

    def cell(self, row: Mapping[str, Any], *, clickable: bool = False) -> Cell:
        value = self.value(row)
        return make_link(value) if self.link and clickable else self.format(value)


def show_table(
    terminal: Terminal, title: str, columns: Sequence[Column], rows: Sequence[Document]
) -> None:
    """Print a table. A narrow terminal hides columns, and names them below the table."""
    boxed = terminal.out.is_terminal and len(rows) <= _MAX_BOXED_ROWS
    cells = {
        c.name: [_escape(c.cell(row, clickable=boxed), line=True) for row in rows] for c in columns
    }
    if not boxed:
        _print_plain(terminal, title, list(cells), cells.values())
        return
    shown = _choose_columns(columns, cells, terminal.out.width)
    table = _new_table(title)
    fits = _needed_width(shown, cells, _NARROWEST_WRAP) < terminal.out.width
    for column in shown:
        header = _wrap_header(column.name, cells[column.name])
        table.add_column(header, no_wrap=fits and not column.wrap, overflow="fold")
    for row in zip(*(cells[column.name] for column in shown), strict=True):
        table.add_row(*row)
    terminal.out.print(table)
    if hidden := [column.name for column in columns if column not in shown]:
        terminal.echo(f"Hidden columns: {', '.join(hidden)}. -o json shows all.", style="dim")


def list_fields(columns: Iterable[Column], document: Document) -> list[tuple[str, Cell]]:
    """Return (name, cell) of the columns whose value in the document is not null."""
    return [(c.name, c.cell(document)) for c in columns if c.value(document) is not None]


def show_fields(terminal: Terminal, title: str, fields: Iterable[tuple[str, Cell]]) -> None:
    """Print a name and its value on each line, without the fields that are None."""
    known = [(name, _escape(value)) for name, value in fields if value is not None]
    if not terminal.out.is_terminal:
        _print_plain(terminal, title, (), zip(*known, strict=True))
        return
    table = _new_table(title, show_header=False)
    table.add_column(style="bold cyan", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in known:
        table.add_row(name, value)
    terminal.out.print(table)


def print_csv(columns: Sequence[Column], rows: Iterable[Document], *, newline: str = "\n") -> None:
    """Write CSV to standard output. A size has two columns: bytes, and readable text."""
    stream = result_stream()
    writer = csv.writer(stream, lineterminator=newline)
    names = [(f"{c.name} (bytes)", f"{c.name} (human readable)") if c.size else (c.name,)
             for c in columns]  # fmt: skip
    writer.writerow([name for both in names for name in both])
    show = escape_controls if stream.isatty() else str
    for row in rows:
        values = [(c.value(row), c.cell(row)) if c.size else (c.value(row),) for c in columns]
        writer.writerow([show(format_value(value)) for both in values for value in both])


def make_link(url: str | None, *, text: str = "link") -> Text:
    """Return `text` as a link of the terminal; the URL itself where it has unsafe characters."""
    from rich.text import Text

    if not url:
        return Text("")
    safe = url.isascii() and url.isprintable() and " " not in url
    return Text(text, style=f"link {url}") if safe else Text(escape_controls(url))


def _escape(cell: Cell, *, line: bool = False) -> str | Text:
    """Return a cell whose text neither steers the terminal nor is read as markup."""
    from rich.text import Text

    if isinstance(cell, Text):
        harmless = escape_controls(cell.plain)
        return cell if harmless == cell.plain else Text(harmless, style=cell.style)
    return Text(escape_controls(cell.replace("\n", "\u240a") if line else cell))


def _choose_columns(
    columns: Sequence[Column], cells: Mapping[str, Sequence[str | Text]], width: int
) -> list[Column]:
    """Hide columns until each of the others has the width that it needs."""
    shown = list(columns)
    for column in sorted((c for c in columns if c.hide), key=lambda c: c.hide):
        if _needed_width(shown, cells, _MIN_WRAPPED_WIDTH) < width:
            break
        shown.remove(column)
    return shown


def _needed_width(
    columns: Sequence[Column], cells: Mapping[str, Sequence[str | Text]], wrapped: int
) -> int:
    """Return the width of a table in which only columns with `wrap` are wrapped, at `wrapped`."""
    width = 0
    for column in columns:
        header = _wrap_header(column.name, cells[column.name])
        longest = _max_width([*header.split("\n"), *cells[column.name]])
        width += min(longest, wrapped) if column.wrap else longest
    return width + _COLUMN_OVERHEAD * len(columns)


def _wrap_header(name: str, cells: Sequence[str | Text]) -> str:
    """Break a header between words if it is wider than its cells."""
    width = max(_max_width(cells), _max_width(name.split()))
    return "\n".join(textwrap.wrap(name, width))


def _max_width(texts: Iterable[str | Text]) -> int:
    from rich.cells import cell_len

    return max((cell_len(str(text)) for text in texts), default=0)


def _new_table(title: str, *, show_header: bool = True) -> Table:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    return Table(
        title=Text(escape_controls(title), style="bold"),
        title_justify="left",
        box=box.ROUNDED,
        border_style="dim",
        header_style="bold",
        show_header=show_header,
    )


def _print_plain(
    terminal: Terminal, title: str, names: Sequence[str], columns: Iterable[Sequence[str | Text]]
) -> None:
    from rich.cells import cell_len

    texts = [[str(cell) for cell in column] for column in columns]
    if names:
        texts = [[name, *column] for name, column in zip(names, texts, strict=True)]
    widths = [_max_width(column) for column in texts]
    lines = [escape_controls(title)]
    for row in zip(*texts, strict=True):
        cells = (
            cell + " " * (width - cell_len(cell)) for cell, width in zip(row, widths, strict=True)
        )
        lines.append("  ".join(cells).rstrip())
    terminal.out.out("\n".join(lines), highlight=False)
