"""What the files say now: read with each request, so that a change holds for the next one.

Reading a small file takes some ten microseconds; looking for a newer time stamp could miss one of
two changes within a tick of the file system's clock.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Final, Generic, TypeVar

from prefect_bt import codec
from prefect_bt.router.keys import KeyHash
from prefect_bt.router.place import Route, RouterPlace, parsed_route

T = TypeVar("T")
Say = Callable[[str], None]


class CurrentFile(Generic[T]):
    """A file as it was last understood. None: there is none, or never was one that could be read.

    What cannot be read or makes no sense changes nothing, and is told once.
    """

    def __init__(self, path: Path, parse: Callable[[bytes], T], say: Say) -> None:
        self._path, self._parse, self._say = path, parse, say
        self._text: bytes | None = None
        self._value: T | None = None
        self._fault = ""

    def value(self) -> T | None:
        try:
            text = self._path.read_bytes()
        except FileNotFoundError:
            self._text, self._value, self._fault = None, None, ""
            return None
        except OSError as error:
            self._tell(f"cannot be read: {error.strerror or error}")
            return self._value
        if text != self._text:
            self._take(text)
        return self._value

    @property
    def is_damaged(self) -> bool:
        """Whether something is there, of which nothing was ever understood."""
        return self._value is None and (self._text is not None or bool(self._fault))

    def _take(self, text: bytes) -> None:
        self._text = text
        try:
            self._value = self._parse(text)
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            self._tell(f"makes no sense: {error}")
            return
        self._fault = ""

    def _tell(self, fault: str) -> None:
        if fault != self._fault:
            kept = "; the last one stays" if self._value is not None else ""
            self._say(f"{self._path.name} {fault}{kept}")
        self._fault = fault


class CurrentRoute:
    """The route of a deployment; tells when it changes."""

    def __init__(self, place: RouterPlace, say: Say) -> None:
        self._file = CurrentFile(place.route_file, parsed_route, say)
        self._say = say
        self._told: Route | None = None

    def value(self) -> Route | None:
        route = self._file.value()
        if route != self._told:
            self._told = route
            self._say(f"revision {route.revision} at {route.target}" if route else "no route")
        return route


def current_key(place: RouterPlace, say: Say) -> CurrentFile[KeyHash]:
    return CurrentFile(place.key_file, _parsed_key, say)


def _parsed_key(text: bytes) -> KeyHash:
    key = codec.decode(KeyHash, json.loads(text))
    if not (_is_hex(key.salt) and _is_hex(key.hash)):
        raise ValueError("it is no salt and hash")
    return key


_HEX: Final = frozenset("0123456789abcdef")


def _is_hex(text: object) -> bool:
    return isinstance(text, str) and bool(text) and _HEX.issuperset(text)
