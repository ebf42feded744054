"""Small files that are read for each request, so that a change applies to the next one.

Reading takes some ten microseconds. A time stamp could miss one of two changes within a tick of the
file system's clock.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

T = TypeVar("T")


class ReloadedFile(Generic[T]):
    """The last valid version of a file. A version that cannot be read or parsed is logged once."""

    def __init__(self, path: Path, parse: Callable[[bytes], T], log: Callable[[str], None]) -> None:
        self._path, self._parse, self._log = path, parse, log
        self._text: bytes | None = None
        self._value: T | None = None
        self._error = ""

    def read(self) -> T | None:
        """Return None if there is no file, or there never was a valid version."""
        try:
            text = self._path.read_bytes()
            if text != self._text:
                self._text = text
                self._value, self._error = self._parse(text), ""
        except FileNotFoundError:
            self._text, self._value, self._error = None, None, ""
        except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
            if (str(error) or type(error).__name__) != self._error:
                kept = "; the previous one stays in use" if self._value is not None else ""
                self._log(f"{self._path.name} is not valid: {error}{kept}")
            self._error = str(error) or type(error).__name__
        return self._value

    @property
    def is_corrupt(self) -> bool:
        """Return whether there is a file, and never was a valid version."""
        return self._value is None and bool(self._error)
