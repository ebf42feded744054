"""List folders from which other processes remove entries meanwhile."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator
from pathlib import Path


def find_paths(folder: Path, pattern: str) -> list[Path]:
    """Return what matches the pattern (without `**`), sorted.

    Path.glob raises FileNotFoundError for a folder that another process removes meanwhile.
    """
    found = glob.glob(pattern, root_dir=folder, include_hidden=True)  # noqa: PTH207 (see above)
    return sorted(folder / name for name in found)


def find_files(folder: Path) -> Iterator[Path]:
    """Yield everything below the folder that is no folder; links are not followed.

    What another process removes meanwhile is left out, or is gone when the caller looks.
    """
    for parent, folders, files in os.walk(folder):
        linked = [name for name in folders if os.path.islink(os.path.join(parent, name))]  # noqa: PTH114, PTH118
        yield from (Path(parent, name) for name in (*linked, *files))
