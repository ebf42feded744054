"""What a real cluster (v1.36) answered, as far as a test reads it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def recorded(name: str) -> Any:
    """Return the content of a recording."""
    return json.loads(Path(__file__).with_name(f"{name}.json").read_bytes())
