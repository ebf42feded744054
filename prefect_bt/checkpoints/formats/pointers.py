"""Pointer files: small text files in which a trainer names the checkpoint to resume from.

    latest                               global_step20                      DeepSpeed
    latest_checkpointed_iteration.txt    20                                 Megatron-LM, verl
    last_checkpoint                      /b/out/epoch_3.pth                 MMEngine, detectron2
    checkpoint                           model_checkpoint_path: "ckpt-5"    TensorFlow, Keras

A pointer is committed with its folder, its target by itself. So a restore, which leaves checkpoints
in the store, may have to change the text. Pure: text in, text out; each format names its files.
"""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass
from typing import Final, Protocol

from prefect_bt.text.number_ranges import natural_key

_LINE: Final = re.compile(r'(?m)^(model_checkpoint_path|all_model_checkpoint_paths): "(.*)"\n?')
_TIMESTAMP: Final = re.compile(r"(?m)^all_model_checkpoint_timestamps: .*\n?")
_STEP: Final = re.compile(r"(?i)(?:checkpoint|ckpt|step|iter|iteration|epoch|model)[-_=]?\d")
_NUMBERED: Final = re.compile(r"(?:iter_|global_step_)(\d+)")


@dataclass(frozen=True)
class Restored:
    """Contents of a restored directory. Paths are relative to it."""

    paths: frozenset[str]
    """Files and folders."""
    left: frozenset[str] = frozenset()
    """Names of the checkpoints that were not restored."""
    roots: tuple[str, ...] = ()
    """Absolute paths of the directory, as the commands see it."""

    def resolve(self, folder: str, target: str) -> str | None:
        """Return the path of what a pointer in `folder` names; None: nothing in the directory."""
        if target.startswith("/"):
            inside = (target.removeprefix(f"{root}/") for root in self.roots)
            path = next((one for one in inside if not one.startswith("/")), "..")
        else:
            path = posixpath.join(folder, target)
        path = posixpath.normpath(path)
        return None if path in {".", ".."} or path.startswith("../") else path

    def find_newest_like(self, path: str) -> str | None:
        """Return the last component of the newest path whose name differs in numbers only."""
        parent, name = posixpath.split(path)
        kind = _kind(name)
        if kind == name:
            return None
        siblings = {
            other.removeprefix(f"{parent}/") if parent else other
            for other in self.paths
            if posixpath.dirname(other) == parent
        }
        return max((one for one in siblings if _kind(one) == kind), key=natural_key, default=None)


class Rewrite(Protocol):
    """Function that returns the text of a pointer file in `folder` after a restore.

    The same text if its target was restored, else one that names the newest restored checkpoint of
    that kind; None if there is none, so that the pointer must not be restored. A text that names no
    checkpoint stays.
    """

    def __call__(self, text: str, folder: str, restored: Restored, /) -> str | None: ...


def rewrite_name(
    text: str, folder: str, restored: Restored, *, is_checkpoint: bool = False
) -> str | None:
    target = text.strip()
    path = restored.resolve(folder, target) if target and "\n" not in target else None
    if path is None or path in restored.paths:
        return text
    newest = restored.find_newest_like(path)
    if newest is not None:
        head, _, tail = text.rpartition(posixpath.basename(path))
        return f"{head}{newest}{tail}"
    named = is_checkpoint or path in restored.left or _STEP.search(posixpath.basename(path))
    return None if named else text


def rewrite_number(text: str, folder: str, restored: Restored) -> str | None:
    number = text.strip()
    if not number.isdecimal():  # Megatron-LM's "release" is a name
        return rewrite_name(text, folder, restored)
    steps = {
        int(match[1])
        for path in restored.paths
        if posixpath.dirname(path) == folder
        and (match := _NUMBERED.fullmatch(posixpath.basename(path)))
    }
    if int(number) in steps:
        return text
    return text.replace(number, str(max(steps))) if steps else None


def rewrite_tensorflow(text: str, folder: str, restored: Restored) -> str | None:
    """Rewrite a CheckpointState in text format. Its targets are beginnings of file names."""
    indexes = {path.removesuffix(".index") for path in restored.paths if path.endswith(".index")}
    known = Restored(restored.paths | indexes, restored.left, restored.roots)
    kept: list[bool] = []

    def rewrite_line(line: re.Match[str]) -> str:
        new = rewrite_name(line[2], folder, known, is_checkpoint=True)
        if line[1] == "model_checkpoint_path":
            return line[0].replace(f'"{line[2]}"', f'"{new}"') if new is not None else ""
        kept.append(new == line[2])
        return line[0] if kept[-1] else ""

    written = _LINE.sub(rewrite_line, text)
    times = iter(kept)
    written = _TIMESTAMP.sub(lambda line: line[0] if next(times, True) else "", written)
    return written if written == text or "model_checkpoint_path:" in written else None


def _kind(name: str) -> str:
    return re.sub(r"\d+", "#", name)
