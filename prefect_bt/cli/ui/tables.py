"""Tables: boxed on a terminal, plain columns elsewhere, where nothing is cut.

On a terminal no id, status or time is broken in the middle: a column is as wide as its longest word
at least, and where that is too much, the columns that can be spared are left out, and named.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from rich import box
from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

from prefect_bt.cli.ui.terminal import Terminal
from prefect_bt.text.control_characters import escape_controls

Document = dict[str, Any]
Cell = str | Text

_MAX_WORD_WIDTH: Final = 24
"""Columns that a word of free text may claim; a longer one, such as an address, is folded."""
_COLUMN_OVERHEAD: Final = 3
"""Columns that a border and the blanks beside it take."""


@dataclass(frozen=True)
class Column:
    """`no_wrap`: a cell is one word, blanks and all. `min_width`: never narrower than this."""

    name: str
    value: Callable[[Document], Cell]
    no_wrap: bool = False
    min_width: int = 0


def show_table(
    terminal: Terminal,
    title: str,
    columns: Sequence[Column],
    rows: Sequence[Document],
    *,
    optional: Sequence[str] = (),
) -> None:
    """`optional` names the columns that a narrow terminal goes without, the first one first."""
    cells = {column.name: [to_text(column.value(row)) for row in rows] for column in columns}
    if not terminal.out.is_terminal:
        table = new_table(terminal, title)
        for column in columns:
            table.add_column(column.name)
        shown, dropped = list(columns), list[str]()
    else:
        shown, dropped = _choose(columns, cells, optional, terminal.out.width)
        table = new_table(terminal, title)
        for column, width in zip(shown, _widths(shown, cells, terminal.out.width), strict=True):
            table.add_column(column.name, overflow="fold", width=width)
    for number in range(len(rows)):
        table.add_row(*(cells[column.name][number] for column in shown))
    terminal.show(table)
    if dropped:
        terminal.echo(f"Too narrow for: {', '.join(dropped)}. -o json has them.", style="dim")


def show_fields(terminal: Terminal, title: str, fields: Iterable[tuple[str, Cell | None]]) -> None:
    """A name and its value on each line; no line for a value that is None."""
    table = new_table(terminal, title, header=False)
    table.add_column()
    table.add_column(overflow="fold")
    for name, value in fields:
        if value is not None:
            table.add_row(Text(name, style="bold cyan"), to_text(value))
    terminal.show(table)


def new_table(terminal: Terminal, title: str, *, header: bool = True) -> Table:
    boxed = terminal.out.is_terminal
    return Table(
        title=Text(escape_controls(title), style="bold magenta"),
        title_justify="left",
        box=box.ROUNDED if boxed else None,
        border_style="blue",
        header_style="bold magenta",
        show_header=header,
        padding=(0, 1) if boxed else (0, 2, 0, 0),
    )


# -- cells ----------------------------------------------------------------------------------


def to_text(value: Cell) -> Text:
    """Return free text for a cell: brackets are no markup, and controls have no effect."""
    plain = value.plain if isinstance(value, Text) else value
    harmless = escape_controls(plain)
    if isinstance(value, Text) and harmless == plain:
        return value
    return Text(harmless, style=value.style if isinstance(value, Text) else "")


def format_number(value: int | None) -> str:
    return "" if value is None else str(value)


def format_local_time(iso: str | None) -> str:
    return f"{datetime.fromisoformat(iso).astimezone():%Y-%m-%d %H:%M:%S}" if iso else ""


def make_link_formatter(terminal: Terminal) -> LinkFormatter:
    return LinkFormatter(clickable=terminal.out.is_terminal)


@dataclass(frozen=True)
class LinkFormatter:
    """An address to click on in a terminal, under a short word where room is scarce."""

    clickable: bool

    def __call__(self, url: str | None, *, short: bool = True) -> Text:
        if not url:
            return Text("")
        style = f"link {url}" if self.clickable and _is_safe_url(url) else ""
        return Text("link" if self.clickable and short else url, style=style)


def _is_safe_url(url: str) -> bool:
    """Return whether it can be part of a terminal's link sequence, and of a style of rich."""
    return url.isascii() and url.isprintable() and " " not in url


# -- widths ---------------------------------------------------------------------------------


def _choose(
    columns: Sequence[Column], cells: dict[str, list[Text]], optional: Sequence[str], width: int
) -> tuple[list[Column], list[str]]:
    shown, dropped = list(columns), list[str]()
    for name in optional:
        if sum(_min_width(c, cells) + _COLUMN_OVERHEAD for c in shown) + 1 <= width:
            break
        shown = [column for column in shown if column.name != name]
        dropped.append(name)
    return shown, [column.name for column in columns if column.name in dropped]


def _widths(columns: Sequence[Column], cells: dict[str, list[Text]], width: int) -> list[int]:
    """What each column gets: its longest word, then a fair share of what is left."""
    widths = [_min_width(column, cells) for column in columns]
    wishes = [_preferred_width(column, cells) for column in columns]
    left = width - 1 - sum(w + _COLUMN_OVERHEAD for w in widths)
    needs = sorted(range(len(columns)), key=lambda i: wishes[i] - widths[i])
    for done, index in enumerate(needs):
        share = max(0, left // (len(needs) - done))
        given = min(max(0, wishes[index] - widths[index]), share)
        widths[index] += given
        left -= given
    return widths


def _min_width(column: Column, cells: dict[str, list[Text]]) -> int:
    words = column.name.split()
    for cell in cells[column.name]:
        words += (
            [cell.plain] if column.no_wrap else [w[:_MAX_WORD_WIDTH] for w in cell.plain.split()]
        )
    longest = max(map(cell_len, words), default=1)
    return max(longest, min(column.min_width, _preferred_width(column, cells)))


def _preferred_width(column: Column, cells: dict[str, list[Text]]) -> int:
    return max(cell_len(text) for text in [column.name, *(c.plain for c in cells[column.name])])
