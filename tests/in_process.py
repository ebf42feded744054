"""The command line and flows in the process of the tests, in an environment of their own."""

from __future__ import annotations

import logging
import os
import re
import sys
from collections.abc import Generator, Mapping
from contextlib import ExitStack, chdir, contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from io import BytesIO, TextIOWrapper
from pathlib import Path
from typing import Any, TextIO
from unittest import mock

from prefect_bt.cli.app import main


@dataclass
class Ended:
    code: int
    out: str
    err: str


def command(
    *words: str,
    environment: Mapping[str, str],
    folder: Path,
    stdin: str | TextIO = "",
    terminal: TextIO | None = None,
) -> Ended:
    """Run `prefect-bt` as a process with this environment would, in the main thread of this one.

    `stdin` is text, or an open file: that of a terminal makes the command interactive. `terminal`
    is written to in place of both outputs.
    """
    out, err = _text(), _text()
    with ExitStack() as changed:
        changed.enter_context(environment_of(environment))
        changed.enter_context(chdir(folder))
        changed.enter_context(_no_log_handlers())
        changed.enter_context(
            mock.patch.object(sys, "stdin", _text(stdin) if isinstance(stdin, str) else stdin)
        )
        changed.enter_context(redirect_stdout(terminal or out))
        changed.enter_context(redirect_stderr(terminal or err))
        code = main(words)
    return Ended(code, _told(out), _told(err))


@contextmanager
def environment_of(environment: Mapping[str, str]) -> Generator[None]:
    """Make these the only variables; Prefect, if it is imported, takes its settings from them."""
    with mock.patch.dict(os.environ, environment, clear=True), _settings_of_prefect():
        yield


@contextmanager
def _settings_of_prefect() -> Generator[None]:
    """Prefect reads its settings once for a process."""
    if "prefect" not in sys.modules:
        yield
        return
    from prefect.context import SettingsContext, get_settings_context

    context = get_settings_context()
    settings = _derive_settings(context.settings)
    with SettingsContext(profile=context.profile, settings=settings):
        yield


_DERIVED: dict[Any, tuple[Any, Any]] = {}
"""Identity of settings and variables -> those settings and what was derived from them."""


def _derive_settings(outer: Any) -> Any:
    """Return Prefect's settings of these variables: a validation takes longer than a command."""
    variables = sorted(one for one in os.environ.items() if re.match(r"PREFECT_(?!BT_)", one[0]))
    key = (id(outer), _home_of_prefect(), *variables)
    if key not in _DERIVED:
        if len(_DERIVED) >= 32:
            _DERIVED.clear()
        _DERIVED[key] = outer, _validate_settings(outer)
    return _DERIVED[key][1]


def _validate_settings(outer: Any) -> Any:
    from prefect.settings import PREFECT_API_AUTH_STRING, PREFECT_API_URL, PREFECT_HOME

    updates: dict[Any, Any] = {PREFECT_HOME: _home_of_prefect()}
    unset: set[Any] = set()
    for setting in (PREFECT_API_URL, PREFECT_API_AUTH_STRING):
        if value := os.environ.get(setting.name):
            updates[setting] = value
        else:
            unset.add(setting)
    return outer.copy_with_update(updates, restore_defaults=unset)


def _home_of_prefect() -> str:
    return os.environ.get("PREFECT_HOME") or str(Path(os.environ["HOME"]) / ".prefect")


@contextmanager
def _no_log_handlers() -> Generator[None]:
    """Let a command set up its logging as in a process of its own."""
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    root.handlers.clear()
    try:
        yield
    finally:
        root.handlers[:] = before
        root.setLevel(level)


def _text(text: str = "") -> TextIOWrapper:
    return TextIOWrapper(BytesIO(text.encode()), "utf-8")


def _told(stream: TextIOWrapper) -> str:
    stream.flush()
    assert isinstance(stream.buffer, BytesIO)
    return stream.buffer.getvalue().decode()
