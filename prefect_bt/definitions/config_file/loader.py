"""Load a config file: a Python file with exactly one definition of the requested class.

The rules are those of truss (docs/compatibility.md, Config files), with three differences: truss
need not be installed (truss_compat), modules beside the file can be imported (sibling_imports), and
every error is a DefinitionError that names file and line. An error that truss raises as ImportError
or ValueError is also an instance of that class.
"""

from __future__ import annotations

import sys
import threading
import traceback
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Final, TypeVar

from pydantic import ValidationError

from prefect_bt.definitions.base import find_definition_class
from prefect_bt.definitions.config_file.isolation import isolate_config
from prefect_bt.definitions.config_file.sibling_imports import (
    UncachedLoader,
    can_be_sibling,
    import_siblings,
)
from prefect_bt.definitions.deploy import DeployCheckpointsConfig
from prefect_bt.definitions.error_messages import definition_error
from prefect_bt.definitions.job import TrainingProject
from prefect_bt.definitions.truss_compat.modules import TRUSS_PACKAGES, install_stand_ins
from prefect_bt.errors import DefinitionError

T = TypeVar("T")

# Importing a config file changes sys.modules for a while. Re-entrant: a config may load another.
_IMPORT_LOCK: Final = threading.RLock()


class ConfigImportError(DefinitionError, ImportError):
    """The path is not a Python file."""


class ConfigValueError(DefinitionError, ValueError):
    """The file does not hold exactly one definition of the wanted class."""


def load_training_project(path: str | Path) -> TrainingProject:
    """Run a config file and return its TrainingProject.

    `path` is a `.py` file with exactly one module-level name of a TrainingProject. Names with an
    underscore count; two names of one project count as two. The file may read `os.environ`, and
    files beside it through `__file__`. Its module has the name of the file and is not in
    `sys.modules` afterwards. What it prints goes to stderr, and its `sys.argv` is its path alone.

    Raises:
        ConfigImportError: `path` is not a `.py` file.
        ConfigValueError: The file has no name of a project, or several.
        DefinitionError: The file fails. A KeyboardInterrupt is not caught.
    """
    return load_target(Path(path), TrainingProject)


def load_deploy_checkpoints_config(path: str | Path) -> DeployCheckpointsConfig:
    """Run a config file and return its DeployCheckpointsConfig.

    The rules are those of `load_training_project`. One file may contain both.
    """
    return load_target(Path(path), DeployCheckpointsConfig)


def load_target(path: Path, kind: type[T]) -> T:
    """Load the one object of this class from the file, as `load_training_project` does."""
    if not path.is_file() or path.suffix != ".py":
        raise ConfigImportError(
            f"Could not import `{path}`: its name does not end in `.py`."
            if path.is_file()
            else f"`{path}` is not a file.",
            next_step="Point to the Python file that holds the training configuration.",
            file=str(path),
        )
    return _get_only_definition(_import_config(path.absolute()), kind, path)


def _import_config(path: Path) -> ModuleType:
    with _IMPORT_LOCK, isolate_config(path), import_siblings(path), install_stand_ins():
        loader = UncachedLoader(path.stem, str(path))
        spec = spec_from_file_location(path.stem, path, loader=loader)
        assert spec is not None  # never None when a loader is given
        module = module_from_spec(spec)
        if can_be_sibling(path.stem):
            # While it runs only: dataclasses look their own module up by name.
            sys.modules[path.stem] = module
        try:
            loader.exec_module(module)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # also SystemExit, and others that are no Exception
            raise _config_error(error, path) from error
    return module


def _get_only_definition(module: ModuleType, kind: type[T], path: Path) -> T:
    names = [name for name in dir(module) if isinstance(getattr(module, name), kind)]
    called = kind.__name__
    if not names:
        raise ConfigValueError(
            f"No `{called}` was found in `{path}`.",
            next_step=_not_found_hint(module, called),
            file=str(path),
        )
    if len(names) > 1:
        raise ConfigValueError(
            f"Multiple `{called}`s were found in `{path}`: {', '.join(names)}.",
            next_step=f"Keep one. Each module-level name bound to a {called} counts, "
            "also a second name for the same object.",
            file=str(path),
        )
    return getattr(module, names[0])


def _not_found_hint(module: ModuleType, called: str) -> str:
    for name in dir(module):
        if type(getattr(module, name)).__name__ == called:
            return (
                f"`{name}` is a {called} of another library: a module that was imported before "
                "this file made it. Create it in the config file or in a module beside it."
            )
    return (
        f"Bind one to a module-level name: `project = {called}(...)`. "
        "One inside a list, a dict or a function is not found."
    )


def _config_error(error: BaseException, path: Path) -> DefinitionError:
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
        return _explain_exit(error.code)
    text = f"{type(error).__name__}: {error}".rstrip(": .") + "."
    if isinstance(error, ModuleNotFoundError):
        if (error.name or "").partition(".")[0] in TRUSS_PACKAGES:
            return text, "prefect_bt stands in for truss in config files and has no such module."
        return text, (
            "Install it where you push from, or import it in the training script only: "
            "the config file runs before there is an image."
        )
    if isinstance(error, KeyError):
        return text, "If it is an environment variable, set it where you push from."
    return text, "Correct the config file."


def _explain_exit(code: object) -> tuple[str, str]:
    """Explain `sys.exit(code)`: the text of an exit is the message of the file's author."""
    text = str(code).strip()
    if code is None or isinstance(code, int) or not text:
        argument = "" if code is None else repr(code)
        return f"the config file called sys.exit({argument}).", (
            "A config file must reach its end. It gets no command-line arguments: take choices "
            "from os.environ, and remove the call."
        )
    return text if text[-1] in ".!?" else f"{text}.", "The config file ended with this message."


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
