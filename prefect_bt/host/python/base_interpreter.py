"""Choose the interpreter whose packages a project's environment has besides its own."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from prefect_bt.errors import PrefectBtError
from prefect_bt.host.state_folder import environments_folder

PYTHON_VARIABLE: Final = "PREFECT_BT_PYTHON"
_OFFICIAL_IMAGE: Final = re.compile(r"(?:docker\.io/)?(?:library/)?python:(\d+\.\d+)(?:[.\-@].*)?")
_BINARY: Final = re.compile(r"python(\d+\.\d+)")
_ELF: Final = b"\x7fELF"
_LIBRARIES: Final = ("torch", "jax", "tensorflow")
"""Who has one of them beside prefect-bt, as with `prefect-bt[demo]`, has it there for jobs."""


def choose_interpreter(
    setting: str, *, image: str, variables: Mapping[str, str], state_dir: Path
) -> Path:
    """Return PREFECT_BT_PYTHON, that of an activated environment, the image's, or our own.

    `setting`: the value of PREFECT_BT_PYTHON. Raises PrefectBtError if it is not executable.
    """
    path = variables.get("PATH")
    if setting:
        program = shutil.which(Path(setting).expanduser(), path=path)
        if program is None:
            raise PrefectBtError(
                f"{PYTHON_VARIABLE} is {setting!r}, which is not an executable file here.",
                next_step=f"Set {PYTHON_VARIABLE} to a Python interpreter, or leave it empty.",
            )
        return Path(program).absolute()
    return (
        _find_activated(variables, environments_folder(state_dir))
        or _find_image_python(image, path)
        or Path(sys.executable)
    )


def describe_python(
    setting: str, *, image: str, variables: Mapping[str, str], state_dir: Path
) -> str:
    """Return a sentence about the Python of a job on this machine. Raises PrefectBtError."""
    python = choose_interpreter(setting, image=image, variables=variables, state_dir=state_dir)
    version = find_version(python)
    return (
        f"The commands run with {f'Python {version}' if version else 'the Python'} of {python}, in "
        f"the project's environment in {environments_folder(state_dir)}: pip install stays there."
    )


def find_version(python: Path) -> str:
    """Return the version of an interpreter as `3.11`, without a start of it; "" if unknown."""
    if python == Path(sys.executable):
        return f"{sys.version_info.major}.{sys.version_info.minor}"
    named = _BINARY.fullmatch(Path(os.path.realpath(python)).name)
    return named[1] if named else ""


def _find_activated(variables: Mapping[str, str], ours: Path) -> Path | None:
    """Return the interpreter of the environment that the user activated.

    None if it is that of prefect-bt, or of a project: a job can push a job.
    """
    for name in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        if not (prefix := variables.get(name)):
            continue
        folder = Path(prefix).resolve()
        if folder == Path(sys.prefix).resolve() or folder.is_relative_to(ours.resolve()):
            return None
        python = Path(prefix) / "bin" / "python"
        if os.access(python, os.X_OK):
            return python
    return None


def _find_image_python(image: str, path: str | None) -> Path | None:
    """Return the interpreter on PATH of the version of an official image.

    None if ours has this version, or has libraries for training.
    """
    named = _OFFICIAL_IMAGE.fullmatch(image)
    if named is None or named[1] == find_version(Path(sys.executable)):
        return None
    if any(find_spec(library) for library in _LIBRARIES):
        return None
    program = shutil.which(f"python{named[1]}", path=path)
    if program is None:
        return None
    with Path(program).open("rb") as file:
        # A script, such as a shim of pyenv, may run another version, or none.
        return Path(program).absolute() if file.read(len(_ELF)) == _ELF else None
