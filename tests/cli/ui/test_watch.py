"""Watching the result of a command."""

import time

import pytest

from prefect_bt.cli.ui.terminal import Terminal
from prefect_bt.errors import StoreError


def test_a_watch_survives_an_unreachable_store_and_repeats_no_message(monkeypatch, capsys):
    terminal = Terminal(interactive=False, output="json")
    reads = [
        {"state": 1},
        {"state": 1},
        StoreError("no route"),
        StoreError("no route"),
        {"state": 2},
    ]

    def read():
        if not reads:
            raise KeyboardInterrupt
        terminal.warn("Both were given.")
        if isinstance(found := reads.pop(0), StoreError):
            raise found
        return found, lambda: None

    monkeypatch.setattr(time, "sleep", lambda _: None)
    with pytest.raises(KeyboardInterrupt):
        terminal.watch(read)
    out, err = capsys.readouterr()
    assert out.splitlines() == ['{"state": 1}', '{"state": 2}']
    assert err.splitlines() == [
        "Both were given.",
        "Both were given.",
        "This may be out of date: no route",
        "Both were given.",
    ]


def test_a_watch_of_an_unreachable_store_fails():
    def read():
        raise StoreError("no route")

    with pytest.raises(StoreError):
        Terminal(interactive=False).watch(read)
