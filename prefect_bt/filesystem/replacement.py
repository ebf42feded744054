"""Write files that appear when they are complete."""

from __future__ import annotations

import uuid
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


@contextmanager
def open_replacement(target: Path) -> Generator[BinaryIO]:
    """Yield a new file beside `target`, which replaces it at the end unless there was an error."""
    temporary = target.with_name(f".{uuid.uuid4().hex}.tmp")
    try:
        with temporary.open("xb") as writer:
            yield writer
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)
