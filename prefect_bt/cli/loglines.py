"""A job's lines as they are printed: text or JSON, folded or each by itself."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Container, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

from prefect_bt.cli.terminal import to_json, write
from prefect_bt.folding import FoldedLine, Folder
from prefect_bt.loglevels import LogLevel
from prefect_bt.logs import PLATFORM_RANK, render_line
from prefect_bt.ranks import ranks_label
from prefect_bt.visible import visible_line

if TYPE_CHECKING:
    from prefect_bt.joblogs import JobLine
    from prefect_bt.records import JobRecord

_COLOURS: Final = {LogLevel.DEBUG: "2", LogLevel.WARNING: "33", LogLevel.ERROR: "31"}
_PLATFORM_COLOUR: Final = "36"


def is_coloured() -> bool:
    """Whether lines are shown in the colour of their level: on a terminal, without NO_COLOR."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR")


def folded(
    found: Iterable[JobLine | None], folder: Folder | None
) -> Iterator[JobLine | FoldedLine | None]:
    """The lines through the folder, if there is one; a None (nothing more for now) stays one."""
    if folder is None:
        yield from found
        return
    try:
        for line in found:
            yield from folder.expire() if line is None else folder.add(line)
            if line is None:
                yield None
    except KeyboardInterrupt:
        yield from folder.rest()
        raise
    yield from folder.rest()


def choose_folder(
    record: JobRecord,
    *,
    ranks: Container[int] | None = None,
    fold: bool | None = None,
    documents: bool = False,
) -> Folder | None:
    """None where lines are shown each by itself. `fold` None: as suits standard output, which is
    for a document where `documents` says so."""
    compute = record.definition.get("job", {}).get("compute", {})
    shown = [n for n in range(compute.get("node_count", 1)) if ranks is None or n in ranks]
    if fold is None:
        fold = sys.stdout.isatty() and not documents and len(shown) > 1
    return Folder(shown, clock=time.monotonic) if fold else None


def write_lines(
    shown: Iterable[JobLine | FoldedLine | None],
    *,
    as_json: bool,
    coloured: bool = False,
    raw: bool = False,
    put: Callable[[str], object] = write,
) -> int:
    """Write each item as a line, flushed whenever no more are ready; return their number.

    `raw`: with every character of a job's lines as it was printed, for a file or another program.
    """
    as_line = as_raw if raw else as_coloured if coloured else as_text
    written, render = 0, as_object if as_json else as_line
    for line in shown:
        if line is None:
            sys.stdout.flush()
            continue
        written += 1
        put(f"{render(line)}\n")
    sys.stdout.flush()
    return written


def write_document(shown: Iterable[JobLine | FoldedLine | None], **facts: Any) -> None:
    """`{<facts>, "logs": [...]}`, written as it is read: a log may be larger than memory."""
    head = "".join(f"{json.dumps(name)}: {json.dumps(value)}, " for name, value in facts.items())
    write(f'{{{head}"logs": [')
    separator = "\n"
    for line in shown:
        if line is not None:
            write(f"{separator}  {as_object(line)}")
            separator = ",\n"
    write("\n]}\n" if separator != "\n" else "]}\n")


def as_text(shown: JobLine | FoldedLine) -> str:
    """Render a line for a terminal, now or later: only colours have an effect there."""
    return visible_line(as_raw(shown))


def as_raw(shown: JobLine | FoldedLine) -> str:
    """Render a line with the control characters of the job's own output."""
    folded_ranks = shown.ranks if isinstance(shown, FoldedLine) else ()
    return render_line(shown.line, replica=ranks_label(folded_ranks) if folded_ranks else "")


def as_coloured(shown: JobLine | FoldedLine) -> str:
    """`as_text` in the colour of its level, for a terminal; without a level as it is."""
    text = as_text(shown)
    usual = _PLATFORM_COLOUR if shown.line.rank == PLATFORM_RANK else ""
    colour = usual if shown.level is None else _COLOURS.get(shown.level, usual)
    return f"\x1b[{colour}m{text}\x1b[0m" if colour else text


def as_object(shown: JobLine | FoldedLine) -> str:
    """A line as §14 has it, with its attempt; a folded one with all of its ranks."""
    fields: dict[str, Any] = {
        "timestamp": str(shown.line.timestamp),
        "message": shown.line.message,
        "replica": shown.line.replica,
        "level": shown.level.name if shown.level is not None else None,
        "attempt": shown.attempt,
    }
    if isinstance(shown, FoldedLine):
        fields["ranks"] = list(shown.ranks)
        if shown.ranks:
            fields["replica"] = ranks_label(shown.ranks)
    return to_json(fields)
