"""Check whether a checkpoint on disk is complete, reading each unchanged file at most once."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from posixpath import dirname
from typing import Any, Final

from prefect_bt.checkpoints.layout import (
    ROOT,
    CheckpointMetadata,
    FileStat,
    LocalCheckpoint,
    join_checkpoint_path,
    read_metadata,
)
from prefect_bt.checkpoints.manifest import Manifest
from prefect_bt.checkpoints.validation import finish_markers
from prefect_bt.checkpoints.validation.completeness import validate_against_sibling, validate_files
from prefect_bt.checkpoints.validation.file_formats import FileReport, inspect_file
from prefect_bt.checkpoints.validation.finish_markers import (
    LATEST_FILE,
    TRACKERS,
    CompletionContext,
    ReferenceCheckpoint,
    Tracker,
)
from prefect_bt.checkpoints.validation.rank_files import SINGLE_NODE, GangPosition
from prefect_bt.checkpoints.volume_links import OpenFile, Volumes

_MAX_CONFIG: Final = 8 * 1024 * 1024
_MAX_TRACKER: Final = 1024
WorkCallback = Callable[[], object]
TEMPORARY_NAME: Final = "its name is temporary: its writer did not finish"


@dataclass(frozen=True)
class _Validation:
    """Facts about a checkpoint, valid for the same object only."""

    checkpoint: LocalCheckpoint
    reports: Mapping[str, FileReport]
    error: str


class Validator:
    """Validator of one checkpoint directory, in one thread."""

    def __init__(
        self,
        volumes: Volumes,
        *,
        position: GangPosition = SINGLE_NODE,
        on_work: WorkCallback = bool,
    ) -> None:
        """Validate files of `volumes`. `on_work` is called after each file that was examined."""
        self._volumes, self._place, self._worked = volumes, position, on_work
        self._reports: dict[str, tuple[FileStat, FileReport]] = {}
        self._judged: dict[str, _Validation] = {}

    def retain(self, paths: Mapping[str, object]) -> None:
        for gone in self._reports.keys() - paths.keys():
            del self._reports[gone]
        self._judged.clear()

    def validate(self, checkpoint: LocalCheckpoint, references: Sequence[Manifest]) -> str:
        """Return why the checkpoint is incomplete; empty if it is complete. OSError."""
        if not checkpoint.files:
            return TEMPORARY_NAME
        try:
            checkpoint.name.encode()
        except UnicodeEncodeError:
            return "its name is not UTF-8"
        fault = self._examine(checkpoint).error
        for example in () if fault else references:
            fault = fault or validate_against_sibling(
                checkpoint.files, sibling_files=example.digests, sibling_name=example.name
            )
        return _escape_unprintable(fault)

    def is_finished(self, checkpoint: LocalCheckpoint, references: Sequence[Manifest]) -> bool:
        """Return whether the files prove that their writer has finished; False if they do
        not show it.

        OSError for a file that cannot be read.
        """
        if self.validate(checkpoint, references):
            return False
        return finish_markers.is_finished(checkpoint, self._context(checkpoint, references))

    def find_unfinished_sign(
        self, checkpoint: LocalCheckpoint, references: Sequence[Manifest]
    ) -> str:
        """Return why a checkpoint without an error may be unfinished; mostly empty.

        The sign may occur in a finished one too: a reason to wait longer, not for ever.
        """
        if not checkpoint.files:
            return ""
        around = self._context(checkpoint, references)
        return _escape_unprintable(
            finish_markers.find_unfinished_sign(
                checkpoint, self._examine(checkpoint).reports, around
            )
        )

    def read_metadata(self, checkpoint: LocalCheckpoint) -> CheckpointMetadata:
        """Return the type, base model and step of a checkpoint."""

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

    def _examine(self, found: LocalCheckpoint) -> _Validation:
        known = self._judged.get(found.name)
        if known is None or known.checkpoint is not found:
            reports = {
                path: self._file_report(found.name, path, fact)
                for path, fact in found.files.items()
            }
            known = _Validation(found, reports, validate_files(found, reports, self._place))
            self._judged[found.name] = known
        return known

    def _context(self, found: LocalCheckpoint, examples: Sequence[Manifest]) -> CompletionContext:
        places = (
            {LATEST_FILE: join_checkpoint_path(found.name, LATEST_FILE)}
            if LATEST_FILE in found.files
            else {}
        )
        if found.name != ROOT:
            above = dirname(found.name) or ROOT
            places |= {f"../{name}": join_checkpoint_path(above, name) for name in TRACKERS}
        read = {path: self._read_tracker(where) for path, where in places.items()}
        return CompletionContext(
            references=[_reference(manifest) for manifest in examples],
            trackers={path: tracker for path, tracker in read.items() if tracker},
            position=self._place,
        )

    def _read_tracker(self, relative: str) -> Tracker | None:
        with contextlib.suppress(OSError), self._volumes.open_file(relative) as file:
            seen = file.fstat()
            if seen.st_size <= _MAX_TRACKER:
                text = _read(file, 0, _MAX_TRACKER).decode(errors="replace").strip()
                return Tracker(text, FileStat(seen.st_size, seen.st_mtime_ns))
        return None

    def _file_report(self, name: str, path: str, fact: FileStat) -> FileReport:
        relative = join_checkpoint_path(name, path)
        known, report = self._reports.get(relative, (None, FileReport()))
        if known == fact:
            return report

        def read(_: str, /, *, start: int, length: int) -> bytes:
            with self._volumes.open_file(relative) as file:
                return _read(file, start, length)

        report = FileReport(fact.error) if fact.error else inspect_file(path, fact.size, read=read)
        self._reports[relative] = (fact, report)
        self._worked()
        return report


def _read(file: OpenFile, start: int, length: int) -> bytes:
    with os.fdopen(os.dup(file.descriptor), "rb") as stream:
        stream.seek(start)
        return stream.read(length)


def _reference(manifest: Manifest) -> ReferenceCheckpoint:
    files = {entry.path: FileStat(entry.size, entry.mtime_ns) for entry in manifest.entries}
    return ReferenceCheckpoint(manifest.name, files)


def _escape_unprintable(error: str) -> str:
    """Escape the unprintable bytes of a file name."""
    text = error.encode("utf-8", "backslashreplace").decode()
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in text
    )
