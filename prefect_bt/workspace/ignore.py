"""Decide which entries of a workspace are ignored: by the built-in list or `.truss_ignore`.

Both are in gitignore syntax; `.truss_ignore` replaces the built-in list. The built-in patterns are
those of truss and must not change. They ignore folders with common names such as `lib/`, `build/`
or `target/`, so messages about skipped entries should name the list.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pathspec import GitIgnoreSpec, PathSpec

from prefect_bt.errors import WorkspaceError

IGNORE_FILE: Final = ".truss_ignore"
BUILT_IN_ORIGIN: Final = "the built-in list"

_BUILT_IN_TEXT: Final = """
    __pycache__/ *.py[cod] *$py.class *.so
    .Python build/ develop-eggs/ dist/ downloads/ eggs/ .eggs/ lib/ lib64/ parts/ sdist/ var/
    wheels/ share/python-wheels/ *.egg-info/ .installed.cfg *.egg MANIFEST .DS_Store
    *.manifest *.spec pip-log.txt pip-delete-this-directory.txt
    htmlcov/ .tox/ .nox/ .coverage .coverage.* .cache nosetests.xml coverage.xml *.cover *.py,cover
    .hypothesis/ .pytest_cache/ cover/
    *.mo *.pot *.log local_settings.py db.sqlite3 db.sqlite3-journal instance/ .webassets-cache
    .scrapy docs/_build/ .pybuilder/ target/ .ipynb_checkpoints profile_default/ ipython_config.py
    .pdm.toml __pypackages__/ celerybeat-schedule celerybeat.pid *.sage.py
    .env .venv env/ venv/ ENV/ env.bak/ venv.bak/
    .spyderproject .spyproject .ropeproject .mypy_cache/ .dmypy.json dmypy.json .ruff_cache/
    .pyre/ .pytype/ cython_debug/ .git *.tmp *.swp
"""

BUILT_IN_PATTERNS: Final = tuple(_BUILT_IN_TEXT.split())


@dataclass(frozen=True, slots=True)
class IgnoreRules:
    """Answers for names relative to the archive's root, in posix form without a final slash."""

    origin: str
    _files: GitIgnoreSpec
    _folders: PathSpec[Any]

    def ignores(self, name: str, *, is_folder: bool) -> bool:
        """Whether this entry goes; ask for each folder before its children, as git does."""
        if is_folder:
            return self._folders.match_file(f"{name}/")
        return self._files.match_file(name)


def load_ignore_rules(ignore_file: Path | None) -> IgnoreRules:
    """The rules in `ignore_file` where it exists, else the built-in list.

    Raises WorkspaceError naming the file and the line if it cannot be read as gitignore patterns.
    """
    if ignore_file is None or not ignore_file.exists():
        return _rules(BUILT_IN_ORIGIN, GitIgnoreSpec.from_lines(BUILT_IN_PATTERNS))
    # Indented patterns work in Truss; git itself takes leading spaces literally.
    lines = [line.lstrip() for line in _read(ignore_file).splitlines()]
    for number, line in enumerate(lines, start=1):
        _check_pattern(line, number, ignore_file)
    return _rules(IGNORE_FILE, GitIgnoreSpec.from_lines(lines))


def _rules(origin: str, spec: GitIgnoreSpec) -> IgnoreRules:
    # GitIgnoreSpec ranks `!*/` below `*` whatever their order, which is right for files and would
    # drop every folder of an allow-list. For a folder the last matching pattern decides.
    return IgnoreRules(origin, spec, PathSpec(spec.patterns))


def _read(ignore_file: Path) -> str:
    try:
        return ignore_file.read_text(encoding="utf-8-sig")
    except OSError as error:
        reason = error.strerror or str(error)
    except UnicodeDecodeError:
        reason = "it is not UTF-8 text"
    raise WorkspaceError(
        f"The ignore file {str(ignore_file)!r} cannot be read: {reason}.",
        next_step="Make it a readable text file of gitignore patterns, or remove it.",
        path=str(ignore_file),
    )


def _check_pattern(line: str, number: int, ignore_file: Path) -> None:
    try:
        GitIgnoreSpec.from_lines([line])
    except (ValueError, re.error) as error:
        raise WorkspaceError(
            f"Line {number} of {str(ignore_file)!r} is not a gitignore pattern: {line!r}.",
            next_step="Correct or remove that line.",
            path=str(ignore_file),
        ) from error
