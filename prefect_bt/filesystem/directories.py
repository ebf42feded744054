"""List folders from which other processes remove entries meanwhile."""

from __future__ import annotations

import glob
from pathlib import Path


def find_paths(folder: Path, pattern: str) -> list[Path]:
    """Return what matches the pattern (without `**`), sorted.

    Path.glob raises FileNotFoundError for a folder that another process removes meanwhile.
    """
    found = glob.glob(pattern, root_dir=folder, include_hidden=True)  # noqa: PTH207 (see above)
    return sorted(folder / name for name in found)
