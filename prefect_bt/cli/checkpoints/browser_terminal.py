"""The explorer on a terminal: keys in, screens out.

A screen lives until something is asked of it; then the terminal is as it was before, so that pagers
work and addresses stay to be copied, and the next screen goes on where the last one was.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, get_args

from prompt_toolkit.application import Application
from prompt_toolkit.formatted_text import StyleAndTextTuples
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.keys import Keys
from prompt_toolkit.layout import FormattedTextControl, Layout, Window

from prefect_bt.checkpoints.committed.catalog import CommittedCheckpoint
from prefect_bt.cli.checkpoints.browser import Action, Explorer, Key
from prefect_bt.cli.checkpoints.browser_view import FileViewer
from prefect_bt.cli.ui.terminal import OK, Terminal
from prefect_bt.object_store.protocols import Store

_ESCAPE_SECONDS: Final = 0.1
"""How long the bytes of an arrow key may be apart; a lone Esc waits for as long."""


def explore(
    terminal: Terminal,
    store: Store,
    job_id: str,
    checkpoints: Sequence[CommittedCheckpoint],
    *,
    start: CommittedCheckpoint | None = None,
) -> int:
    """Let somebody look around, from the checkpoint `start` or from the list of them.

    Returns the exit code. Ctrl-C raises KeyboardInterrupt, with the terminal as it was before.
    """
    explorer = Explorer(job_id, checkpoints, start=start)
    showing = FileViewer(terminal, store)
    while True:
        ask = _run_screen(explorer)
        if ask.kind == "leave" or ask.file is None:
            return OK
        if ask.kind == "url":
            showing.show_url(ask.file)
        else:
            showing.show_content(ask.file)


def _run_screen(explorer: Explorer) -> Action:
    """Draw and take keys until something is asked."""
    app: Application[Action] = Application(
        layout=Layout(
            Window(
                FormattedTextControl(lambda: _render_screen(app, explorer)), always_hide_cursor=True
            )
        ),
        key_bindings=_bindings(explorer),
        full_screen=True,
    )
    app.ttimeoutlen = _ESCAPE_SECONDS
    try:
        return app.run()
    except EOFError:  # the terminal is gone
        return Action("leave")


def _render_screen(app: Application[Action], explorer: Explorer) -> StyleAndTextTuples:
    size = app.output.get_size()
    view = explorer.render_screen(width=size.columns, height=size.rows)
    drawn: StyleAndTextTuples = [("bold", f"{view.title}\n")]
    for line in view.lines:
        drawn.append(("reverse" if line.is_selected else "", line.text))
        drawn.append(("", "\n"))
    blank = size.rows - 2 - len(view.lines)
    return [*drawn, ("", "\n" * max(0, blank)), ("fg:ansibrightblack", view.hint)]


def _bindings(explorer: Explorer) -> KeyBindings:
    bindings = KeyBindings()

    def answer(event: KeyPressEvent, ask: Action | None) -> None:
        if ask is not None:
            event.app.exit(result=ask)

    def bind(key: Key) -> None:
        @bindings.add(key, eager=True)
        def _(event: KeyPressEvent) -> None:
            answer(event, explorer.handle_key(key))

    for key in get_args(Key):
        bind(key)

    @bindings.add(Keys.Any)
    @bindings.add(Keys.BracketedPaste)
    def _(event: KeyPressEvent) -> None:
        text = event.key_sequence[-1].data
        if text.isprintable():
            answer(event, explorer.handle_text(text))

    @bindings.add("c-c", eager=True)
    @bindings.add("<sigint>")
    def _(event: KeyPressEvent) -> None:
        if not event.app.is_done:
            event.app.exit(exception=KeyboardInterrupt)

    return bindings
