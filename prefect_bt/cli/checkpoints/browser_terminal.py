"""The explorer on a terminal: read keys, draw screens, show files.

A URL or a file is shown on the normal screen of the terminal, so that pagers work and a URL can be
copied. The next screen begins where the last one ended.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from functools import cached_property, partial
from typing import Final, get_args

from prompt_toolkit.application import Application
from prompt_toolkit.data_structures import Point
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.keys import Keys
from prompt_toolkit.layout import FormattedTextControl, HSplit, Layout, Window

from prefect_bt.checkpoints.committed.catalog import CheckpointFile, CommittedCheckpoint
from prefect_bt.checkpoints.committed.safetensors_header import read_tensors
from prefect_bt.cli.checkpoints.browser import Action, Explorer, Key, choose_view
from prefect_bt.cli.ui.tables import Column, show_table
from prefect_bt.cli.ui.terminal import OK, Terminal, format_count
from prefect_bt.errors import PrefectBtError
from prefect_bt.file_server.signed_urls import FileUrls, signed_urls
from prefect_bt.object_store.protocols import Store
from prefect_bt.text.control_characters import escape_controls
from prefect_bt.workspace.limits import format_bytes

_ESCAPE_SECONDS: Final = 0.1
"""Time in which all bytes of an arrow key arrive; the Esc key takes effect after it."""
_TENSOR_COLUMNS: Final = [
    Column("Tensor", "name", wrap=True),
    Column("Type", "dtype"),
    Column("Shape", "shape", lambda shape: " x ".join(map(str, shape)) or "scalar"),
    Column("Parameters", "parameters", lambda count: f"{count:,}"),
    Column("Size", "size", format_bytes),
]


def explore(
    terminal: Terminal,
    store: Store,
    job_id: str,
    checkpoints: Sequence[CommittedCheckpoint],
    *,
    start: CommittedCheckpoint | None = None,
) -> int:
    """Run the explorer from the checkpoint `start`, or from the picker. Return the exit code.

    Ctrl-C restores the terminal and raises KeyboardInterrupt.
    """
    explorer, viewer = Explorer(job_id, checkpoints, start=start), _FileViewer(terminal, store)
    app: Application[Action] = Application(
        layout=make_layout(explorer), key_bindings=_bindings(explorer), full_screen=True
    )
    app.ttimeoutlen = _ESCAPE_SECONDS
    with suppress(EOFError):  # the terminal was closed
        while file := (action := app.run()).file:
            viewer.show(file, content=action.kind == "open")
    return OK


def make_layout(explorer: Explorer) -> Layout:
    """Return a title, the list with its selected line in reverse, and the hint."""
    lines = FormattedTextControl(
        lambda: [
            ("reverse" if number == explorer.cursor else "", f"{line}\n")
            for number, line in enumerate(explorer.lines)
        ],
        get_cursor_position=lambda: Point(0, explorer.cursor),
    )
    listed = Window(lines, always_hide_cursor=True)
    title = Window(FormattedTextControl(lambda: explorer.title), height=1, style="bold")
    hint = Window(FormattedTextControl(lambda: explorer.hint), height=1, style="fg:ansibrightblack")
    return Layout(HSplit([title, listed, hint]), focused_element=listed)


def _bindings(explorer: Explorer) -> KeyBindings:
    bindings = KeyBindings()

    def finish(event: KeyPressEvent, action: Action | None) -> None:
        if action is not None:
            event.app.exit(result=action)

    def press(key: Key, event: KeyPressEvent) -> None:
        finish(event, explorer.handle_key(key))

    for key in get_args(Key):
        bindings.add(key, eager=True)(partial(press, key))

    @bindings.add(Keys.Any)
    @bindings.add(Keys.BracketedPaste)
    def _(event: KeyPressEvent) -> None:
        if event.data.isprintable():
            finish(event, explorer.handle_text(event.data))

    @bindings.add("c-c", eager=True)
    @bindings.add("<sigint>")
    def _(event: KeyPressEvent) -> None:
        if not event.app.is_done:
            event.app.exit(exception=KeyboardInterrupt)

    return bindings


class _FileViewer:
    """Shows files of a store."""

    def __init__(self, terminal: Terminal, store: Store) -> None:
        self._terminal, self._store = terminal, store

    def show(self, file: CheckpointFile, *, content: bool) -> None:
        """Show the content of a file, or its URL, and wait until the user has read it."""
        try:
            text, reason = self._read(file) if content else ("", "")
            has_waited = bool(text) and _run_pager(text)
            if not text:
                self._print_url(file, reason)
        except PrefectBtError as error:
            self._terminal.error(str(error))
            has_waited = False
        if not has_waited:
            self._terminal.info("Enter: back", style="dim")
            sys.stdin.readline()

    def _read(self, file: CheckpointFile) -> tuple[str, str]:
        """Return the text for the pager, or "" and the reason why there is none."""
        view = choose_view(file.path, file.size)
        if view == "tensors":
            return self._render_tensors(file), ""
        if view == "url":
            return "", ", too large to show"
        data = self._store.get_range(file.key, start=0, length=file.size) if file.size else b""
        if b"\0" in data:
            return "", ", no text"
        text = escape_controls(data.replace(b"\r\n", b"\n").decode("utf-8", "replace"))
        return text.removesuffix("\n") + "\n", ""

    def _render_tensors(self, file: CheckpointFile) -> str:
        """Return a table of the tensors, their totals, and the metadata of the file."""
        terminal = self._terminal
        with terminal.spinner("Reading the header"):
            table = read_tensors(self._store, file.key, path=file.path, size=file.size)
        rows = [{**asdict(tensor), "parameters": tensor.parameters} for tensor in table.tensors]
        count = format_count(len(rows), "tensor")
        with terminal.out.capture() as shown:
            show_table(terminal, f"Tensors of {file.path}", _TENSOR_COLUMNS, rows)
            terminal.echo(f"{count}, {table.parameters:,} parameters, {format_bytes(table.size)}")
            for name, value in table.metadata.items():
                terminal.echo(f"{name}: {value}", style="dim")
        return shown.get()

    @cached_property
    def _urls(self) -> FileUrls:
        # Cached because the first URL may start a server.
        with self._terminal.spinner("Signing URLs"):
            return signed_urls(self._store, os.environ)

    def _print_url(self, file: CheckpointFile, reason: str) -> None:
        url = self._urls.url_for(file.key)
        self._terminal.echo(f"{file.path} ({format_bytes(file.size)}{reason})", style="bold")
        self._terminal.echo(url)
        self._terminal.echo(self._urls.note, style="dim")


def _run_pager(text: str) -> bool:
    """Show text in the pager. Return whether the pager waited for the user, as less does."""
    pager = find_pager(os.environ.get("PAGER", ""))
    # Ctrl-C interrupts a search in the pager, or ends the pager; the explorer continues.
    before = signal.signal(signal.SIGINT, lambda number, frame: None)
    try:
        subprocess.run(pager, input=text, text=True, errors="replace", check=False)
    except OSError as error:
        raise PrefectBtError(
            f"The pager {pager[0]} does not start: {error.strerror}.",
            next_step="Set PAGER to another command, such as less.",
        ) from error
    finally:
        signal.signal(signal.SIGINT, before)
    return pager[0].rpartition("/")[2] == "less"


def find_pager(command: str) -> list[str]:
    """Return the arguments of `command`, the value of $PAGER, or of less, more or cat."""
    try:
        given = shlex.split(command)
    except ValueError:  # a quote is not closed
        given = command.split()
    # -F, often set in $LESS, would end less at once when the text fits the screen.
    known = (["less", "-R", "-+F"], ["more"])
    return given or next((words for words in known if shutil.which(words[0])), ["cat"])
