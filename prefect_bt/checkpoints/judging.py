"""Ask a checkpoint on disk whether it is whole, reading every unchanged file at most once."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from prefect_bt.checkpoints.layout import FileFact, Found, Kind, describe, join
from prefect_bt.checkpoints.manifest import Manifest
from prefect_bt.checkpoints.wholeness import FileReport, inspect, sibling_fault, tree_fault

_CONFIG_MOST: Final = 8 * 1024 * 1024
UNFINISHED: Final = "its name is temporary: its writer did not finish"


class Judge:
    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._reports: dict[str, tuple[FileFact, FileReport]] = {}

    def keep_only(self, paths: Mapping[str, object]) -> None:
        for gone in self._reports.keys() - paths.keys():
            del self._reports[gone]

    def fault(self, found: Found, examples: Sequence[Manifest]) -> str:
        """Why the checkpoint is not whole; empty when it is. OSError when it cannot be read."""
        if not found.files:
            return UNFINISHED
        try:
            found.name.encode()
        except UnicodeEncodeError:
            return "its name is not UTF-8"
        reports = {path: self._report(found.name, path, fact) for path, fact in found.files.items()}
        fault = tree_fault(found, reports)
        for example in () if fault else examples:
            fault = fault or sibling_fault(found.files, earlier=example.content, of=example.name)
        return fault

    def kind(self, found: Found) -> Kind:
        """What §8.4 makes of it."""

        def read_json(path: str) -> Any:
            if path not in found.files or found.files[path].size > _CONFIG_MOST:
                return None
            try:
                return json.loads((self._directory / join(found.name, path)).read_bytes())
            except ValueError:
                return None

        return describe(found.name, found.files, read_json)

    def _report(self, name: str, path: str, fact: FileFact) -> FileReport:
        relative = join(name, path)
        known, report = self._reports.get(relative, (None, FileReport()))
        if known == fact:
            return report

        def read(_: str, /, *, start: int, length: int) -> bytes:
            with (self._directory / relative).open("rb") as stream:
                stream.seek(start)
                return stream.read(length)

        report = inspect(path, fact.size, read=read)
        self._reports[relative] = (fact, report)
        return report
