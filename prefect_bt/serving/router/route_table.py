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
from prefect_bt.serving.router.api_keys import KeyHash
from prefect_bt.serving.router.deployment_folder import Route, RouterFolder, parse_route

T = TypeVar("T")
LogFunction = Callable[[str], None]


class ReloadedFile(Generic[T]):
    """A file as it was last understood. None: there is none, or never was one that could be read.

    What cannot be read or makes no sense changes nothing, and is told once.
    """

    def __init__(self, path: Path, parse: Callable[[bytes], T], log: LogFunction) -> None:
        self._path, self._parse, self._log = path, parse, log
        self._text: bytes | None = None
        self._value: T | None = None
        self._fault = ""

    def read(self) -> T | None:
        try:
            text = self._path.read_bytes()
        except FileNotFoundError:
            self._text, self._value, self._fault = None, None, ""
            return None
        except OSError as error:
            self._log_error(f"cannot be read: {error.strerror or error}")
            return self._value
        if text != self._text:
            self._parse_text(text)
        return self._value

    @property
    def is_corrupt(self) -> bool:
        """Whether something is there, of which nothing was ever understood."""
        return self._value is None and (self._text is not None or bool(self._fault))

    def _parse_text(self, text: bytes) -> None:
        self._text = text
        try:
            self._value = self._parse(text)
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            self._log_error(f"is not valid: {error}")
            return
        self._fault = ""

    def _log_error(self, error: str) -> None:
        if error != self._fault:
            kept = "; the previous one stays in use" if self._value is not None else ""
            self._log(f"{self._path.name} {error}{kept}")
        self._fault = error


class ReloadedRoute:
    """The route of a deployment; tells when it changes."""

    def __init__(self, place: RouterFolder, log: LogFunction) -> None:
        self._file = ReloadedFile(place.route_file, parse_route, log)
        self._log = log
        self._logged_route: Route | None = None

    def read(self) -> Route | None:
        route = self._file.read()
        if route != self._logged_route:
            self._logged_route = route
            self._log(f"revision {route.revision} at {route.target}" if route else "no route")
        return route


def reloaded_key_file(place: RouterFolder, log: LogFunction) -> ReloadedFile[KeyHash]:
    return ReloadedFile(place.key_file, _parse_key, log)


def _parse_key(text: bytes) -> KeyHash:
    key = codec.decode(KeyHash, json.loads(text))
    if not (_is_hex(key.salt) and _is_hex(key.hash)):
        raise ValueError("it is not a salt and a hash")
    return key


_HEX: Final = frozenset("0123456789abcdef")


def _is_hex(text: object) -> bool:
    return isinstance(text, str) and bool(text) and _HEX.issuperset(text)
