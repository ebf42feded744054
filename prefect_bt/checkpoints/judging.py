"""Ask a checkpoint on disk whether it is whole, reading every unchanged file at most once."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from posixpath import dirname
from typing import Any, Final

from prefect_bt.checkpoints import endings
from prefect_bt.checkpoints.endings import LATEST, TRACKERS, Around, Example, Tracker
from prefect_bt.checkpoints.formats import FileReport, inspect
from prefect_bt.checkpoints.layout import ROOT, FileFact, Found, Kind, describe, join
from prefect_bt.checkpoints.manifest import Manifest
from prefect_bt.checkpoints.processes import ALONE, Place
from prefect_bt.checkpoints.volumes import OpenFile, Volumes
from prefect_bt.checkpoints.wholeness import sibling_fault, tree_fault

_CONFIG_MOST: Final = 8 * 1024 * 1024
_TRACKER_MOST: Final = 1024
Worked = Callable[[], object]
UNFINISHED: Final = "its name is temporary: its writer did not finish"


@dataclass(frozen=True)
class _Judged:
    """What is known of a checkpoint for as long as it is the same object."""

    found: Found
    reports: Mapping[str, FileReport]
    fault: str


class Judge:
    """For one checkpoint directory, in one thread."""

    def __init__(self, volumes: Volumes, *, place: Place = ALONE, worked: Worked = bool) -> None:
        """Judge files of `volumes`. `worked` is called after each file that was examined."""
        self._volumes, self._place, self._worked = volumes, place, worked
        self._reports: dict[str, tuple[FileFact, FileReport]] = {}
        self._judged: dict[str, _Judged] = {}

    def keep_only(self, paths: Mapping[str, object]) -> None:
        for gone in self._reports.keys() - paths.keys():
            del self._reports[gone]
        self._judged.clear()

    def fault(self, found: Found, examples: Sequence[Manifest]) -> str:
        """Why the checkpoint is not whole; empty when it is. OSError when it cannot be read."""
        if not found.files:
            return UNFINISHED
        try:
            found.name.encode()
        except UnicodeEncodeError:
            return "its name is not UTF-8"
        fault = self._look(found).fault
        for example in () if fault else examples:
            fault = fault or sibling_fault(found.files, earlier=example.content, of=example.name)
        return _printable(fault)

    def finished(self, found: Found, examples: Sequence[Manifest]) -> bool:
        """Whether the files prove that their writer is done. OSError when one cannot be read.

        False means nothing but that they do not tell.
        """
        if self.fault(found, examples):
            return False
        return endings.finished(found, self._around(found, examples))

    def doubt(self, found: Found, examples: Sequence[Manifest]) -> str:
        """Why a checkpoint without a fault may be unfinished nevertheless; mostly empty.

        What it says may be true of a finished one too: a reason to wait longer, not for ever.
        """
        if not found.files:
            return ""
        around = self._around(found, examples)
        return _printable(endings.doubt(found, self._look(found).reports, around))

    def kind(self, found: Found) -> Kind:
        """What §8.4 makes of it."""

        def read_json(path: str) -> Any:
            if path not in found.files or found.files[path].size > _CONFIG_MOST:
                return None
            with self._volumes.open(join(found.name, path)) as file:
                data = _read(file, 0, _CONFIG_MOST)
            try:
                return json.loads(data)
            except (ValueError, RecursionError):
                return None

        return describe(found.name, found.files, read_json)

    def _look(self, found: Found) -> _Judged:
        known = self._judged.get(found.name)
        if known is None or known.found is not found:
            reports = {
                path: self._report(found.name, path, fact) for path, fact in found.files.items()
            }
            known = _Judged(found, reports, tree_fault(found, reports, self._place))
            self._judged[found.name] = known
        return known

    def _around(self, found: Found, examples: Sequence[Manifest]) -> Around:
        places = {LATEST: join(found.name, LATEST)} if LATEST in found.files else {}
        if found.name != ROOT:
            above = dirname(found.name) or ROOT
            places |= {f"../{name}": join(above, name) for name in TRACKERS}
        read = {path: self._tracker(where) for path, where in places.items()}
        return Around(
            examples=[_example(manifest) for manifest in examples],
            trackers={path: tracker for path, tracker in read.items() if tracker},
            place=self._place,
        )

    def _tracker(self, relative: str) -> Tracker | None:
        with contextlib.suppress(OSError), self._volumes.open(relative) as file:
            seen = file.facts()
            if seen.st_size <= _TRACKER_MOST:
                text = _read(file, 0, _TRACKER_MOST).decode(errors="replace").strip()
                return Tracker(text, FileFact(seen.st_size, seen.st_mtime_ns))
        return None

    def _report(self, name: str, path: str, fact: FileFact) -> FileReport:
        relative = join(name, path)
        known, report = self._reports.get(relative, (None, FileReport()))
        if known == fact:
            return report

        def read(_: str, /, *, start: int, length: int) -> bytes:
            with self._volumes.open(relative) as file:
                return _read(file, start, length)

        report = FileReport(fact.fault) if fact.fault else inspect(path, fact.size, read=read)
        self._reports[relative] = (fact, report)
        self._worked()
        return report


def _read(file: OpenFile, start: int, length: int) -> bytes:
    with os.fdopen(os.dup(file.descriptor), "rb") as stream:
        stream.seek(start)
        return stream.read(length)


def _example(manifest: Manifest) -> Example:
    files = {entry.path: FileFact(entry.size, entry.mtime_ns) for entry in manifest.entries}
    return Example(manifest.name, files)


def _printable(fault: str) -> str:
    """File names are bytes: what no terminal takes is escaped."""
    text = fault.encode("utf-8", "backslashreplace").decode()
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in text
    )
