"""Texts as they were agreed on, in tests/golden/serving."""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).parents[1] / "golden" / "serving"


def check_golden(name: str, text: str) -> None:
    """`text` is what the file says; where a change is meant, the file changes with it."""
    path = FOLDER / name
    assert path.is_file(), f"{path} is not there; it would say:\n{text}"
    assert text == path.read_text("utf-8")
