"""Inspect the checkpoints of a directory, reading each unchanged file at most once."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from posixpath import dirname
from typing import Any, Final

from prefect_bt.checkpoints.formats.content import FileReport, inspect_file
from prefect_bt.checkpoints.formats.decision import Evidence
from prefect_bt.checkpoints.formats.hugging_face import CheckpointMetadata, read_metadata
from prefect_bt.checkpoints.formats.protocol import SINGLE_NODE, GangPosition, Inspection, Tracker
from prefect_bt.checkpoints.formats.table import EarlierCheckpoint, examine, list_trackers
from prefect_bt.checkpoints.layout import (
    ROOT,
    WHOLE_FILE,
    FileStat,
    LocalCheckpoint,
    join_checkpoint_path,
)
from prefect_bt.checkpoints.volume_links import OpenFile, Volumes

_MAX_CONFIG: Final = 8 * 1024 * 1024
_MAX_TRACKER: Final = 64 * 1024
TEMPORARY_NAME: Final = "its name is temporary: its writer did not finish"


class Inspector:
    """Inspector of one checkpoint directory, in one thread."""

    def __init__(
        self,
        volumes: Volumes,
        *,
        position: GangPosition = SINGLE_NODE,
        on_work: Callable[[], object] = bool,
    ) -> None:
        """Inspect files of `volumes`. `on_work` is called after each file that was read."""
        self._volumes, self._position, self._on_work = volumes, position, on_work
        self._reports: dict[str, tuple[FileStat, FileReport]] = {}
        self._inspected: dict[str, tuple[LocalCheckpoint, dict[str, FileReport]]] = {}

    def retain(self, paths: Mapping[str, object]) -> None:
        """Forget the files that are gone."""
        for gone in self._reports.keys() - paths.keys():
            del self._reports[gone]
        self._inspected.clear()

    def examine(
        self, checkpoint: LocalCheckpoint, earlier: Sequence[EarlierCheckpoint] = ()
    ) -> Evidence:
        """Return what the files say. OSError for a file that cannot be read."""
        if not checkpoint.files:
            return Evidence(fault=TEMPORARY_NAME)
        try:
            checkpoint.name.encode()
        except UnicodeEncodeError:
            return Evidence(fault="its name is not UTF-8")
        save = Inspection(
            checkpoint,
            self._read_reports(checkpoint),
            self._read_trackers(checkpoint),
            self._position,
        )
        evidence = examine(save, earlier)
        return replace(
            evidence,
            fault=_escape_unprintable(evidence.fault),
            sign=_escape_unprintable(evidence.sign),
            gap=_escape_unprintable(evidence.gap),
        )

    def read_metadata(self, checkpoint: LocalCheckpoint) -> CheckpointMetadata:
        """Return the type, base model and step of a checkpoint. OSError."""

        def read_json(path: str) -> Any:
            if path not in checkpoint.files or checkpoint.files[path].size > _MAX_CONFIG:
                return None
            with self._volumes.open_file(join_checkpoint_path(checkpoint.name, path)) as file:
                data = _read(file, 0, _MAX_CONFIG)
            try:
                return json.loads(data)
            except (ValueError, RecursionError):
                return None

        return read_metadata(checkpoint.name, checkpoint.files, read_json)

    def _read_reports(self, checkpoint: LocalCheckpoint) -> Mapping[str, FileReport]:
        known = self._inspected.get(checkpoint.name)
        if known is None or known[0] is not checkpoint:
            reports = {
                path: self._read_report(checkpoint.name, path, stat)
                for path, stat in checkpoint.files.items()
            }
            known = self._inspected[checkpoint.name] = checkpoint, reports
        return known[1]

    def _read_report(self, name: str, path: str, stat: FileStat) -> FileReport:
        relative = join_checkpoint_path(name, path)
        known, report = self._reports.get(relative, (None, FileReport()))
        if known == stat:
            return report

        def read(_: str, /, *, start: int, length: int) -> bytes:
            with self._volumes.open_file(relative) as file:
                return _read(file, start, length)

        shown = name if path == WHOLE_FILE else path
        report = FileReport(stat.error) if stat.error else inspect_file(shown, stat.size, read=read)
        self._reports[relative] = (stat, report)
        self._on_work()
        return report

    def _read_trackers(self, checkpoint: LocalCheckpoint) -> dict[str, Tracker]:
        trackers: dict[str, Tracker] = {}
        for path in list_trackers(checkpoint.name.rpartition("/")[2]):
            if not path.startswith("../"):
                location = join_checkpoint_path(checkpoint.name, path)
            elif checkpoint.name != ROOT:
                above = dirname(checkpoint.name) or ROOT
                location = join_checkpoint_path(above, path.removeprefix("../"))
            else:
                continue
            if tracker := self._read_tracker(location):
                trackers[path] = tracker
        return trackers

    def _read_tracker(self, relative: str) -> Tracker | None:
        with contextlib.suppress(OSError), self._volumes.open_file(relative) as file:
            stat = file.fstat()
            if stat.st_size <= _MAX_TRACKER:
                text = _read(file, 0, _MAX_TRACKER).decode(errors="replace").strip()
                return Tracker(text, FileStat(stat.st_size, stat.st_mtime_ns))
        return None


def _read(file: OpenFile, start: int, length: int) -> bytes:
    with os.fdopen(os.dup(file.descriptor), "rb") as stream:
        stream.seek(start)
        return stream.read(length)


def _escape_unprintable(text: str) -> str:
    """Escape the unprintable bytes of a file name."""
    encoded = text.encode("utf-8", "backslashreplace").decode()
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in encoded
    )
