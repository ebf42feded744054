"""A format, and the facts about one checkpoint that its rules get. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from posixpath import basename
from typing import Final

from prefect_bt.checkpoints.formats.content import FileReport
from prefect_bt.checkpoints.formats.pointers import Rewrite
from prefect_bt.checkpoints.layout import FileStat, LocalCheckpoint, is_log


@dataclass(frozen=True)
class GangPosition:
    """Rank of the directory's node, in a group of `group_size` nodes."""

    rank: int = 0
    group_size: int = 1

    @property
    def is_leader(self) -> bool:
        return self.rank == 0

    @property
    def is_single_node(self) -> bool:
        return self.group_size == 1


SINGLE_NODE: Final = GangPosition()


@dataclass(frozen=True)
class Tracker:
    """A file that names the newest checkpoint: its text and its state."""

    text: str
    stat: FileStat


@dataclass(frozen=True)
class Inspection:
    """A checkpoint in the directory, with a report for each of its files.

    `trackers`: the files that `Format.trackers` names and that exist, by path relative to the
    checkpoint's folder (`latest`, `../latest`).

    On a job of several nodes each has its own directory, with what its own processes wrote: only
    the first node's has rank 0's files, and none has every rank's.
    """

    checkpoint: LocalCheckpoint
    reports: Mapping[str, FileReport] = field(default_factory=dict[str, FileReport])
    trackers: Mapping[str, Tracker] = field(default_factory=dict[str, Tracker])
    position: GangPosition = SINGLE_NODE

    @property
    def files(self) -> Mapping[str, FileStat]:
        return self.checkpoint.files

    @cached_property
    def folder(self) -> str:
        """Return the name of the checkpoint's own folder."""
        return basename(self.checkpoint.name)

    @cached_property
    def saved_files(self) -> dict[str, FileStat]:
        """Return the files that are written once: all but logs."""
        return {path: stat for path, stat in self.files.items() if not is_log(path)}

    def is_newest(self, stat: FileStat) -> bool:
        """Return whether no saved file is newer: else the file is of a former save."""
        return all(other.mtime_ns <= stat.mtime_ns for other in self.saved_files.values())


def find_nothing(save: Inspection) -> str:
    """Return "": a format without such a rule."""
    _ = save
    return ""


def prove_nothing(save: Inspection) -> bool:
    _ = save
    return False


@dataclass(frozen=True)
class Format:
    """Checkpoints of a framework, and the rules that follow from what it writes.

    `find_missing` returns a part that the checkpoint's own files prove to be missing: it is never
    committed by itself, so a rule is there only if no known writer breaks it after its end.
    `find_unfinished_sign` returns what makes a checkpoint look unfinished, and may be wrong.
    `is_finished` returns whether the file that the framework writes last is there, and newer than
    what it vouches for.
    """

    title: str
    """Frameworks, as the documentation lists them."""
    folders: str
    """Names of its checkpoints, with examples."""
    end: str
    """Sign of the end of a save."""
    state: re.Pattern[str] | None = None
    """Paths of the files that a training resumes from, which every checkpoint of a series has."""
    trackers: Callable[[str], Iterable[str]] = lambda folder: ()
    """Function from the folder's name to paths of files that tell something about it."""
    pointers: Mapping[str, Rewrite] = field(default_factory=dict[str, Rewrite])
    """Names of files that name the newest checkpoint -> function for their text."""
    find_missing: Callable[[Inspection], str] = find_nothing
    find_unfinished_sign: Callable[[Inspection], str] = find_nothing
    is_finished: Callable[[Inspection], bool] = prove_nothing
