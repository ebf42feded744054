"""Import modules from the folder of a config file, and remove them afterwards.

truss does not find modules beside the config file; prefect_bt does. A name is looked up in this
order; steps 2 and 4 are added by prefect_bt:

    1. the standard library, truss (see truss_compat), prefect_bt and its dependencies
    2. files and packages of the folder
    3. all installed packages
    4. folders without `__init__.py`, which often hold data and must not hide a package

Modules of the folder are read for each config file and removed when it is loaded, so two folders
each have their own `helper.py`. `sys.path` is not changed and no `.pyc` is read or written: Python
matches one by size and whole seconds, and an edit can leave both unchanged.
"""

from __future__ import annotations

import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from importlib.machinery import SOURCE_SUFFIXES, FileFinder, ModuleSpec, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Final

from prefect_bt.definitions.truss_compat.modules import TRUSS_PACKAGES

_RESERVED_PACKAGES: Final = {*TRUSS_PACKAGES, "prefect_bt", "prefect", "pydantic", "pydantic_core"}


class UncachedLoader(SourceFileLoader):
    """Loader that compiles the source each time."""

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        return self.source_to_code(self.get_data(path), path)


class _FolderFinder:
    """Finder of step 2, or of step 4 with `namespaces`. It adds the found names to `found`."""

    def __init__(self, folder: Path, found: set[str], *, namespaces: bool) -> None:
        self._folder, self._found, self._namespaces = folder, found, namespaces

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if path is None and not can_be_sibling(name):
            return None
        inside = [place for place in path or () if Path(place).is_relative_to(self._folder)]
        for place in [str(self._folder)] if path is None else inside:
            spec = FileFinder(place, (UncachedLoader, SOURCE_SUFFIXES)).find_spec(name, target)
            if spec is not None and (spec.loader is None) is self._namespaces:
                self._found.add(name)
                return spec
        return None


def can_be_sibling(name: str) -> bool:
    """Return False for names that a file beside the config must not have."""
    return name not in sys.stdlib_module_names and name.partition(".")[0] not in _RESERVED_PACKAGES


@contextmanager
def import_siblings(config: Path) -> Generator[None]:
    """Let the modules beside `config` be imported, and restore `sys.modules` on exit.

    Not for concurrent use: the caller holds a lock.
    """
    found: set[str] = set()
    first = _FolderFinder(config.parent, found, namespaces=False)
    last = _FolderFinder(config.parent, found, namespaces=True)
    hidden = _pop_siblings(config)
    sys.meta_path.insert(0, first)
    sys.meta_path.append(last)
    try:
        yield
    finally:
        sys.meta_path[:] = [finder for finder in sys.meta_path if finder not in (first, last)]
        for name in {*found, config.stem} - set(sys.stdlib_module_names):
            sys.modules.pop(name, None)
        sys.modules.update(hidden)


def _pop_siblings(config: Path) -> dict[str, ModuleType]:
    """Remove modules with names of siblings, and their submodules, from `sys.modules`."""
    files = {file.stem for file in config.parent.glob("*.py")}
    packages = {file.parent.name for file in config.parent.glob("*/__init__.py")}
    names = {name for name in {config.stem} | files | packages if can_be_sibling(name)}
    taken = [name for name in sys.modules if name in names or name.partition(".")[0] in names]
    return {name: sys.modules.pop(name) for name in taken}
