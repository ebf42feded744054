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
    """Rules for names relative to the archive's root, in posix form without a final slash."""

    origin: str
    _files: GitIgnoreSpec
    _folders: PathSpec[Any]

    def ignores(self, name: str, *, is_folder: bool) -> bool:
        """Return whether the entry is ignored. Check each folder before its children, as git."""
        if is_folder:
            return self._folders.match_file(f"{name}/")
        return self._files.match_file(name)


def load_ignore_rules(ignore_file: Path | None) -> IgnoreRules:
    """Return the rules in `ignore_file` where it exists, else the built-in list.

    Raises WorkspaceError naming the file and the line if it cannot be read as gitignore patterns.
    """
    if ignore_file is None or not ignore_file.exists():
        origin, spec = BUILT_IN_ORIGIN, GitIgnoreSpec.from_lines(BUILT_IN_PATTERNS)
    else:
        origin, spec = IGNORE_FILE, _read_patterns(ignore_file)
    # GitIgnoreSpec ranks `!*/` below `*` whatever their order, which is right for files and would
    # drop every folder of an allow-list. For a folder the last matching pattern decides.
    return IgnoreRules(origin, spec, PathSpec(spec.patterns))


def _read_patterns(ignore_file: Path) -> GitIgnoreSpec:
    path = str(ignore_file)
    try:
        text = ignore_file.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise WorkspaceError(
            f"The ignore file {path!r} cannot be read: {reason}.",
            next_step="Make it a readable text file of gitignore patterns, or remove it.",
            path=path,
        ) from error
    # Indented patterns work in Truss; git itself takes leading spaces literally.
    lines = [line.lstrip() for line in text.splitlines()]
    for number, line in enumerate(lines, start=1):
        try:
            GitIgnoreSpec.from_lines([line])
        except (ValueError, re.error) as error:
            raise WorkspaceError(
                f"Line {number} of {path!r} is not a gitignore pattern: {line!r}.",
                next_step="Correct or remove that line.",
                path=path,
            ) from error
    return GitIgnoreSpec.from_lines(lines)
