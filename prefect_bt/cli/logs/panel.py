"""The live panel of a followed job: state, attempt, nodes, weights and checkpoints.

The panel stays at the bottom of the terminal; log lines scroll above it.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from prefect_bt.cli.jobs.render import STATE_STYLES
from prefect_bt.cli.ui.tables import make_link
from prefect_bt.cli.ui.terminal import Terminal, can_draw, format_count
from prefect_bt.errors import PrefectBtError
from prefect_bt.job_index.snapshot import JobSnapshot, read_snapshot
from prefect_bt.object_store.protocols import SupportsLinks
from prefect_bt.text.control_characters import escape_controls
from prefect_bt.text.progress import Progress, format_percent_done, format_progress
from prefect_bt.text.quantities import format_elapsed

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table

    from prefect_bt.ledger.ledger import Ledger
    from prefect_bt.ledger.records import JobRecord

_READ_INTERVAL: Final = 1.0
"""Seconds between two reads of the job's records in a folder."""
_REMOTE_READ_INTERVAL: Final = 3.0
"""Seconds between two reads of the job's records in a bucket."""
_MAX_TRANSFERS: Final = 4
"""Lines for uploads and for mirrors each; the panel counts the rest."""
_WIDE_TERMINAL: Final = 100
"""Columns from which transfers are shown with their sizes."""
_FLUSH_SIZE: Final = 1 << 16
"""Characters of log lines that are printed at once."""


class StatusPanel:
    """A panel at the bottom of the terminal; a thread reads the records and draws it."""

    def __init__(self, terminal: Terminal, ledger: Ledger, record: JobRecord) -> None:
        from rich.live import Live

        self._terminal, self._ledger, self._record = terminal, ledger, record
        compute = record.definition.get("job", {}).get("compute", {})
        self._nodes = int(compute.get("node_count", 1))
        self._snapshot = JobSnapshot(ledger.get_state(record.id))
        self._closed = threading.Event()
        is_folder = isinstance(ledger.store, SupportsLinks)
        self._interval = _READ_INTERVAL if is_folder else _REMOTE_READ_INTERVAL
        self._live = Live(self, console=terminal.out, auto_refresh=False, transient=True)

    @contextmanager
    def show(self) -> Generator[None]:
        thread = threading.Thread(target=self._draw_until_closed, daemon=True)
        with self._terminal.messages_on_output(), self._live:
            thread.start()
            try:
                yield
            finally:
                self._closed.set()
                thread.join(self._interval)

    def _draw_until_closed(self) -> None:
        due = 0.0
        while not self._closed.is_set():
            # The last snapshot stays while the records cannot be read.
            if time.monotonic() >= due:
                due = time.monotonic() + self._interval
                with suppress(PrefectBtError, OSError, ValueError):
                    self._snapshot = read_snapshot(self._ledger, self._record)
            if not self._closed.is_set():
                self._live.refresh()
            self._closed.wait(_READ_INTERVAL)

    def __rich__(self) -> RenderableType:
        from rich.panel import Panel
        from rich.text import Text

        record = self._record
        title = Text(escape_controls(f" {record.project_name} · {record.name} · {record.id} "))
        hint = Text("Ctrl-C detaches; the job continues", style="dim")
        return Panel(
            self._render(self._snapshot),
            title=title,
            title_align="left",
            subtitle=hint,
            subtitle_align="right",
            border_style="dim",
        )

    def _render(self, snapshot: JobSnapshot) -> Table:
        from rich.table import Table
        from rich.text import Text

        table = Table.grid(padding=(0, 2, 0, 0), expand=True)
        table.add_column(style="bold", no_wrap=True)
        table.add_column(ratio=1, overflow="ellipsis", no_wrap=True)
        state = snapshot.state
        age = format_elapsed(time.time() - self._record.created_at)
        nodes = format_count(self._nodes, "node")
        attempt = "" if snapshot.attempt is None else f" · attempt {snapshot.attempt}"
        facts = f"{attempt} · {nodes} · {self._record.substrate} · {age}"
        style = STATE_STYLES.get(state, "yellow")
        table.add_row("State", Text.assemble((state.short_name.upper(), style), facts))
        if snapshot.waiting and not snapshot.mirrors:
            table.add_row("Waiting", Text(escape_controls(snapshot.waiting)))
        self._add_transfers(table, "Weights", snapshot.mirrors)
        running = [one for one in snapshot.uploads if one.status.current]
        self._add_transfers(
            table,
            "Uploading",
            [
                replace(one.progress, name=f"rank {one.rank} {one.status.current}")
                for one in running
            ],
        )
        if snapshot.attempt is not None:
            table.add_row("Checkpoints", Text(escape_controls(snapshot.format_committed())))
        if snapshot.url:
            table.add_row("UI", make_link(snapshot.url, text=snapshot.url))
        return table

    def _add_transfers(self, table: Table, label: str, transfers: list[Progress]) -> None:
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        wide = self._live.console.width >= _WIDE_TERMINAL
        width = 20 if wide else 8
        for progress in transfers[:_MAX_TRANSFERS]:
            line = Table.grid(padding=(0, 1, 0, 0))
            line.add_column(no_wrap=True, overflow="ellipsis", max_width=40 if wide else 24)
            line.add_column(width=width)
            line.add_column(no_wrap=True, overflow="ellipsis")
            bar = ProgressBar(
                completed=progress.percent, width=width, style="dim", complete_style="cyan"
            )
            numbers = format_progress(progress) if wide else format_percent_done(progress)
            name = Text(escape_controls(progress.name))
            line.add_row(name, bar, Text(numbers or "not started yet"))
            table.add_row(label, line)
            label = ""
        if len(transfers) > _MAX_TRANSFERS:
            table.add_row("", f"and {len(transfers) - _MAX_TRANSFERS} more")


class _LogStream:
    """Text stream that prints above the panel, many lines at a time."""

    def __init__(self, console: Console) -> None:
        self._console, self._parts, self._size = console, list[str](), 0

    def write(self, text: str) -> int:
        self._parts.append(text)
        self._size += len(text)
        if self._size > _FLUSH_SIZE:
            self.flush()
        return len(text)

    def flush(self) -> None:
        if self._parts:
            self._console.out("".join(self._parts), end="", highlight=False)
            self._parts, self._size = [], 0


@contextmanager
def live_panel(
    terminal: Terminal, ledger: Ledger, record: JobRecord
) -> Generator[_LogStream | None]:
    """Show the panel while the block runs. Yield the stream for log lines.

    Yield None without a panel if standard output is not a terminal that can draw.
    """
    if not can_draw(sys.stdout):
        yield None
        return
    logs = _LogStream(terminal.out)
    with StatusPanel(terminal, ledger, record).show():
        try:
            yield logs
        finally:
            logs.flush()
