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

from prefect_bt.cli.terminal import Terminal
from prefect_bt.visible import visible

Document = dict[str, Any]
Cell = str | Text

_LONGEST_WORD: Final = 24
"""Columns that a word of free text may claim; a longer one, such as an address, is folded."""
_BETWEEN: Final = 3
"""Columns that a border and the blanks beside it take."""


@dataclass(frozen=True)
class Column:
    """`solid`: a cell is one word, blanks and all. `least`: never narrower than this."""

    name: str
    read: Callable[[Document], Cell]
    solid: bool = False
    least: int = 0


def show_table(
    terminal: Terminal,
    title: str,
    columns: Sequence[Column],
    rows: Sequence[Document],
    *,
    spare: Sequence[str] = (),
) -> None:
    """`spare` names the columns that a narrow terminal goes without, the first one first."""
    cells = {column.name: [to_text(column.read(row)) for row in rows] for column in columns}
    if not terminal.out.is_terminal:
        table = new_table(terminal, title)
        for column in columns:
            table.add_column(column.name)
        shown, dropped = list(columns), list[str]()
    else:
        shown, dropped = _choose(columns, cells, spare, terminal.out.width)
        table = new_table(terminal, title)
        for column, width in zip(shown, _widths(shown, cells, terminal.out.width), strict=True):
            table.add_column(column.name, overflow="fold", width=width)
    for number in range(len(rows)):
        table.add_row(*(cells[column.name][number] for column in shown))
    terminal.show(table)
    if dropped:
        terminal.say(f"Too narrow for: {', '.join(dropped)}. -o json has them.", style="dim")


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
        title=Text(visible(title), style="bold magenta"),
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
    harmless = visible(plain)
    if isinstance(value, Text) and harmless == plain:
        return value
    return Text(harmless, style=value.style if isinstance(value, Text) else "")


def number(value: int | None) -> str:
    return "" if value is None else str(value)


def local_time(iso: str | None) -> str:
    return f"{datetime.fromisoformat(iso).astimezone():%Y-%m-%d %H:%M:%S}" if iso else ""


def link_in(terminal: Terminal) -> Link:
    return Link(clickable=terminal.out.is_terminal)


@dataclass(frozen=True)
class Link:
    """An address to click on in a terminal, under a short word where room is scarce."""

    clickable: bool

    def __call__(self, url: str | None, *, short: bool = True) -> Text:
        if not url:
            return Text("")
        style = f"link {url}" if self.clickable and _is_address(url) else ""
        return Text("link" if self.clickable and short else url, style=style)


def _is_address(url: str) -> bool:
    """Return whether it can be part of a terminal's link sequence, and of a style of rich."""
    return url.isascii() and url.isprintable() and " " not in url


# -- widths ---------------------------------------------------------------------------------


def _choose(
    columns: Sequence[Column], cells: dict[str, list[Text]], spare: Sequence[str], width: int
) -> tuple[list[Column], list[str]]:
    shown, dropped = list(columns), list[str]()
    for name in spare:
        if sum(_least(c, cells) + _BETWEEN for c in shown) + 1 <= width:
            break
        shown = [column for column in shown if column.name != name]
        dropped.append(name)
    return shown, [column.name for column in columns if column.name in dropped]


def _widths(columns: Sequence[Column], cells: dict[str, list[Text]], width: int) -> list[int]:
    """What each column gets: its longest word, then a fair share of what is left."""
    widths = [_least(column, cells) for column in columns]
    wishes = [_wish(column, cells) for column in columns]
    left = width - 1 - sum(w + _BETWEEN for w in widths)
    needs = sorted(range(len(columns)), key=lambda i: wishes[i] - widths[i])
    for done, index in enumerate(needs):
        share = max(0, left // (len(needs) - done))
        given = min(max(0, wishes[index] - widths[index]), share)
        widths[index] += given
        left -= given
    return widths


def _least(column: Column, cells: dict[str, list[Text]]) -> int:
    words = column.name.split()
    for cell in cells[column.name]:
        words += [cell.plain] if column.solid else [w[:_LONGEST_WORD] for w in cell.plain.split()]
    longest = max(map(cell_len, words), default=1)
    return max(longest, min(column.least, _wish(column, cells)))


def _wish(column: Column, cells: dict[str, list[Text]]) -> int:
    return max(cell_len(text) for text in [column.name, *(c.plain for c in cells[column.name])])
