"""Turn an exception of a config file into a DefinitionError with file and line."""

from __future__ import annotations

import traceback
from pathlib import Path

from pydantic import ValidationError

from prefect_bt.definitions.base import find_definition_class
from prefect_bt.definitions.config_file.sibling_imports import UncachedLoader
from prefect_bt.definitions.error_messages import definition_error
from prefect_bt.definitions.truss_compat.modules import TRUSS_PACKAGES
from prefect_bt.errors import DefinitionError


def config_error(error: BaseException, path: Path) -> DefinitionError:
    """Return the error; `line` is that of the failing call in the config file, None if unknown.

    For a syntax error, file and line are those of the mistake, which may be in a module beside the
    config file. If such a module raised the error, the message names it too.
    """
    if isinstance(error, SyntaxError) and error.filename and Path(error.filename).is_file():
        return _syntax_error(error, error.filename)
    line, place = _locate(error, path)
    where = f"{path}:{line}" if line else str(path)
    model = find_definition_class(error.title) if isinstance(error, ValidationError) else None
    if isinstance(error, ValidationError) and model is not None:
        return definition_error(error, model, file=str(path), line=line, where=where + place)
    what, next_step = _explain(error)
    field = error.field if isinstance(error, DefinitionError) else None
    what = f"{where}: {what}{place}"
    return DefinitionError(what, next_step=next_step, file=str(path), line=line, field=field)


def _syntax_error(error: SyntaxError, file: str) -> DefinitionError:
    where = f"{file}:{error.lineno}" if error.lineno else file
    shown = f": `{error.text.strip()}`" if error.text and error.text.strip() else ""
    return DefinitionError(
        f"{where}: {error.msg}{shown}.",
        next_step="Correct the syntax.",
        file=file,
        line=error.lineno,
    )


def _explain(error: BaseException) -> tuple[str, str]:
    if isinstance(error, DefinitionError):
        return error.message, error.next_step
    if isinstance(error, SystemExit):
        return (
            f"the config file called sys.exit({error.code!r}).",
            "A config file only contains definitions; remove the call.",
        )
    text = f"{type(error).__name__}: {error}".rstrip(": ") + "."
    if isinstance(error, ModuleNotFoundError):
        return text, _missing_module_hint(error.name or "")
    if isinstance(error, KeyError):
        return text, "If it is an environment variable, set it where you push from."
    return text, "Correct the config file."


def _missing_module_hint(module: str) -> str:
    if module.partition(".")[0] in TRUSS_PACKAGES:
        return "prefect_bt stands in for truss in config files and has no such module."
    return (
        "Install it where you push from, or import it in the training script only: "
        "the config file runs before there is an image."
    )


def _locate(error: BaseException, config: Path) -> tuple[int | None, str]:
    """Return the failing line of the config file; then ` (in helper.py:3)` if a sibling failed."""
    frames = [
        (frame.f_code.co_filename, line)
        for frame, line in traceback.walk_tb(error.__traceback__)
        if isinstance(frame.f_globals.get("__loader__"), UncachedLoader)
    ]
    lines = [line for file, line in frames if file == str(config)]
    file, line = frames[-1] if frames else (str(config), 0)
    sibling = file.removeprefix(f"{config.parent}/")
    return lines[-1] if lines else None, "" if file == str(config) else f" (in {sibling}:{line})"
