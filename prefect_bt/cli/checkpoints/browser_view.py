"""What the explorer shows of a file: its address, its tensors, its text. Nothing more is read."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path

from prefect_bt.checkpoints.committed.catalog import CheckpointFile
from prefect_bt.checkpoints.committed.safetensors_header import read_tensors
from prefect_bt.cli.checkpoints.browser import choose_view
from prefect_bt.cli.checkpoints.render_tensors import show_tensors
from prefect_bt.cli.checkpoints.urls import FileUrls, signed_urls
from prefect_bt.cli.ui.printable import replace_unprintable
from prefect_bt.cli.ui.terminal import Terminal
from prefect_bt.errors import PrefectBtError
from prefect_bt.object_store.protocols import Store
from prefect_bt.workspace.limits import format_bytes


class FileViewer:
    """Each verb returns when the person has seen it."""

    def __init__(self, terminal: Terminal, store: Store) -> None:
        self._terminal, self._store = terminal, store

    @cached_property
    def _urls(self) -> FileUrls:
        # Only when the first one is asked for: a server may have to be started.
        with self._terminal.spinner("Opening addresses"):
            return signed_urls(self._store)

    def show_url(self, file: CheckpointFile, why: str = "") -> None:
        """The file's address, left on the terminal to be copied."""
        with self._report_errors():
            url = self._urls.url_for(file.key)
            size = format_bytes(file.size)
            self._terminal.echo(f"{replace_unprintable(file.path)} ({size}{why})", style="bold")
            self._terminal.echo(url)
            self._terminal.echo(self._urls.note, style="dim")
            self._wait_for_enter()

    def show_content(self, file: CheckpointFile) -> None:
        """The tensors of a safetensors file, a small text in a pager; of others the address."""
        look = choose_view(file.path, file.size)
        if look == "tensors":
            self._tensors(file)
        elif look == "text":
            self._text(file)
        else:
            self.show_url(file, ", too large to show")

    def _tensors(self, file: CheckpointFile) -> None:
        with self._report_errors():
            with self._terminal.spinner("Reading the header"):
                table = read_tensors(self._store, file.key, path=file.path, size=file.size)
            with self._terminal.out.capture() as shown:
                show_tensors(self._terminal, file, table)
            self._page(shown.get())

    def _text(self, file: CheckpointFile) -> None:
        data = b""
        with self._report_errors():
            data = self._store.get_range(file.key, start=0, length=file.size) if file.size else b""
            if b"\0" not in data:
                text = replace_unprintable(
                    data.replace(b"\r\n", b"\n").decode("utf-8", "replace"), keep="\n\t"
                )
                self._page(text if text.endswith("\n") else f"{text}\n")
        if b"\0" in data:
            self.show_url(file, ", no text")

    def _page(self, text: str) -> None:
        """Through $PAGER, or `less -R`, or `more`; all at once where there is none."""
        pager = find_pager(os.environ.get("PAGER", ""))
        if not pager:
            self._terminal.echo(text)
            self._wait_for_enter()
            return
        try:
            with _ignore_interrupts():
                subprocess.run(pager, input=text, text=True, errors="replace", check=False)
        except OSError as error:
            self._terminal.error(f"{pager[0]} does not start: {error.strerror}.")
            self._wait_for_enter()
            return
        if Path(pager[0]).name != "less":
            # Others end with the text's last line, which the next screen would cover.
            self._wait_for_enter()

    def _wait_for_enter(self) -> None:
        self._terminal.info("Enter: back", style="dim")
        sys.stdin.readline()

    @contextmanager
    def _report_errors(self) -> Generator[None]:
        """What goes wrong with one file is told, and the walk goes on."""
        try:
            yield
        except PrefectBtError as error:
            self._terminal.error(str(error))
            self._wait_for_enter()


@contextmanager
def _ignore_interrupts() -> Generator[None]:
    """Ctrl-C reaches both of us; in a pager it ends a search, or the pager, not the walk."""
    before = signal.signal(signal.SIGINT, lambda number, frame: None)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def find_pager(command: str) -> list[str]:
    """The command line: $PAGER as it is, else less or more, whichever is there; [] for none."""
    if command.strip():
        try:
            return shlex.split(command)
        except ValueError:  # a quote that nobody closed
            return command.split()
    if less := shutil.which("less"):
        # -F, which many have in $LESS, would end it at once where the text fits.
        return [less, "-R", "-+F"]
    more = shutil.which("more")
    return [more] if more else []
