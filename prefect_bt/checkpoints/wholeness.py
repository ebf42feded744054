"""Whether a checkpoint is whole: what its own files promise is there (decision 8). No I/O but
through the reader that is handed in.

A file is asked about itself once (`inspect`), a checkpoint about its files (`tree_fault`), and a
checkpoint named after a step about what the step before it had (`sibling_fault`). A fault is a
sentence; empty means none. Sources of the formats: safetensors' header (length, JSON, offsets), zip
APPNOTE 4.3.16 (end of central directory), Hugging Face's shard names and index, HF Trainer's order
of writing (`trainer_state.json` comes last), PyTorch's distributed checkpoints (`.metadata` last).
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from posixpath import dirname
from typing import Any, Final, Protocol, cast

from prefect_bt.checkpoints.layout import ROOT, Found, final_name, is_recognised, step_of_name

_JSON_WHOLE: Final = 4 * 1024 * 1024
_INDEX_WHOLE: Final = 32 * 1024 * 1024
_HEADER_WHOLE: Final = 16 * 1024 * 1024
_HEADER_MOST: Final = 100_000_000
_ZIP_TAIL: Final = 65_535 + 22
_ZIP_SUFFIXES: Final = (".pt", ".pth", ".bin", ".ckpt", ".zip", ".npz")
_ZIP_START: Final = b"PK\x03\x04"
_ZIP_END: Final = b"PK\x05\x06"
_SHARD: Final = re.compile(r"(.*-)(\d{5})-of-(\d{5})(\.(?:safetensors|bin))")
_COORDINATOR: Final = re.compile(r"__0_\d+\.distcp")
_HF_FOLDER: Final = re.compile(r"checkpoint-\d+")

_WEIGHTS: Final = re.compile(r"(?:model|pytorch_model|adapter_model|consolidated)[^/]*")
_ROLES: Final = re.compile(
    r"(?:config|adapter_config|trainer_state)\.json"
    r"|(?:optimizer|scheduler|scaler)\.(?:pt|bin)|training_args\.bin|common\.pt|\.metadata"
    r"|rng_state.*\.pth|.*\.distcp|.*_states\.pt|model_optim_rng\.pt|distrib_optim\.pt"
    r"|(?:model|optim|extra_state)_world_size_\d+_rank_\d+\.pt"
)


class Reader(Protocol):
    """Bytes of a file of the checkpoint; OSError when it cannot be read."""

    def __call__(self, path: str, /, *, start: int, length: int) -> bytes: ...


@dataclass(frozen=True)
class FileReport:
    """What one file says: `fault` about itself, `needs` the paths it names."""

    fault: str = ""
    needs: tuple[str, ...] = ()


def inspect(path: str, size: int, *, read: Reader) -> FileReport:
    """Judge one file by its own content; reads headers and ends, and small JSON in full."""
    if path.endswith(".safetensors"):
        return FileReport(_safetensors_fault(path, size, read))
    if path.endswith(_ZIP_SUFFIXES):
        return FileReport(_zip_fault(path, size, read))
    if path.endswith((".safetensors.index.json", ".bin.index.json")):
        return _index_report(path, size, read)
    if path.endswith(".json"):
        return FileReport(_json_fault(path, size, read))
    return FileReport()


def tree_fault(found: Found, reports: Mapping[str, FileReport]) -> str:
    """The first thing that is missing among the checkpoint's own files."""
    for path, report in reports.items():
        if report.fault:
            return f"{path} {report.fault}"
        for needed in report.needs:
            if needed not in found.files:
                return f"{path} names {needed}, which is not there"
    return (
        _shards_fault(found.files)
        or _coordinator_fault(found.files)
        or _trainer_fault(found)
        or _unfinished_fault(found)
    )


def sibling_fault(paths: Collection[str], *, earlier: Collection[str], of: str) -> str:
    """What `earlier`, the files of the checkpoint called `of`, had and `paths` has not.

    Only files with a part to play are compared, numbers aside. Weights may come in another number
    of files; what is written one a process (random states, shards) must come as often.
    """
    have, had = _roles(paths), _roles(earlier)
    for role, count in had.items():
        if not have[role]:
            return f"{role} is missing, which {of} has"
        if have[role] < count and "#" in role and not role.endswith("weights"):
            return f"{have[role]} of {count} {role} are there, counted by {of}"
    return ""


def _safetensors_fault(path: str, size: int, read: Reader) -> str:
    if size < 8:
        return "is cut off: shorter than its header's length"
    length = int.from_bytes(read(path, start=0, length=8), "little")
    if length > _HEADER_MOST or 8 + length > size:
        return "is cut off inside its header"
    if length > _HEADER_WHOLE:
        return ""
    try:
        header: Any = json.loads(read(path, start=8, length=length))
        tensors = [tensor for name, tensor in header.items() if name != "__metadata__"]
        end = max((int(tensor["data_offsets"][1]) for tensor in tensors), default=0)
    except (ValueError, KeyError, TypeError, IndexError, AttributeError):
        return "has a header that does not parse"
    expected = 8 + length + end
    return "" if size == expected else f"has {size} bytes where its header says {expected}"


def _zip_fault(path: str, size: int, read: Reader) -> str:
    if size == 0:
        return "is empty"
    if read(path, start=0, length=4) != _ZIP_START:
        # An older format, which does not tell where it ends.
        return ""
    length = min(size, _ZIP_TAIL)
    tail = read(path, start=size - length, length=length)
    at = tail.rfind(_ZIP_END)
    while at >= 0:
        comment = int.from_bytes(tail[at + 20 : at + 22], "little")
        if at + 22 + comment == len(tail):
            return ""
        at = tail.rfind(_ZIP_END, 0, at)
    return "is cut off: no end of its zip directory"


def _json_fault(path: str, size: int, read: Reader) -> str:
    if size == 0:
        return "is empty"
    if size > _JSON_WHOLE:
        # Parsing tens of megabytes would cost more memory than the uploader may take.
        first = read(path, start=0, length=64).lstrip()[:1]
        last = read(path, start=size - 64, length=64).rstrip()[-1:]
        return "" if last in {b"}", b"]"} or first not in {b"{", b"["} else "is cut off"
    try:
        text = read(path, start=0, length=size).decode()
    except UnicodeDecodeError:
        return "is not JSON"
    return "" if _is_json(text) else "is not JSON"


def _is_json(text: str) -> bool:
    """One value, or one a line: files of the second kind are called `.json` too."""
    try:
        json.loads(text)
    except ValueError:
        lines = [line for line in text.splitlines() if line.strip()]
        return len(lines) > 1 and all(_parses(line) for line in lines)
    return True


def _parses(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def _index_report(path: str, size: int, read: Reader) -> FileReport:
    if size > _INDEX_WHOLE:
        return FileReport()
    try:
        index: Any = json.loads(read(path, start=0, length=size))
    except ValueError:
        return FileReport("is not JSON")
    if not isinstance(index, dict):
        return FileReport()
    shards = cast("dict[str, object]", index).get("weight_map")
    if not isinstance(shards, dict):
        return FileReport()
    names = sorted({str(name) for name in cast("dict[str, object]", shards).values()})
    folder = dirname(path)
    return FileReport(needs=tuple(f"{folder}/{name}" if folder else name for name in names))


def _shards_fault(paths: Collection[str]) -> str:
    """A kill between two shards leaves no index yet, but the names tell how many there are."""
    seen: dict[tuple[str, str, str], set[str]] = {}
    for path in paths:
        if match := _SHARD.fullmatch(path):
            seen.setdefault((match[1], match[3], match[4]), set()).add(match[2])
    for (head, total, tail), numbers in seen.items():
        if len(numbers) < int(total):
            return f"{len(numbers)} of {int(total)} shards {head}*-of-{total}{tail} are there"
    return ""


def _coordinator_fault(paths: Collection[str]) -> str:
    for path in paths:
        folder, _, name = path.rpartition("/")
        metadata = f"{folder}/.metadata" if folder else ".metadata"
        if _COORDINATOR.fullmatch(name) and metadata not in paths:
            return f"{metadata} is missing, which is written after {path}"
    return ""


def _trainer_fault(found: Found) -> str:
    """Without its state HF Trainer would silently start again at step 0."""
    is_trainers = _HF_FOLDER.fullmatch(found.name.rpartition("/")[2]) is not None
    if is_trainers and "training_args.bin" in found.files:
        return "" if "trainer_state.json" in found.files else "trainer_state.json is missing"
    return ""


def _unfinished_fault(found: Found) -> str:
    """Only where a model is: a stray `x.tmp` beside logs must not hold them back for ever."""
    if found.name == ROOT or not _is_model(found):
        return ""
    for path in found.unfinished:
        final = final_name(path)
        hidden = any(part.startswith(".") for part in path.split("/"))
        if final and not hidden and final not in found.files:
            return f"{final} is still being written ({path})"
    return ""


def _is_model(found: Found) -> bool:
    return step_of_name(found.name) is not None or is_recognised(found.files)


def _roles(paths: Collection[str]) -> Counter[str]:
    return Counter(role for role in map(_role, paths) if role)


def _role(path: str) -> str:
    folder, slash, name = path.rpartition("/")
    folder = re.sub(r"\d+", "#", folder)
    if _WEIGHTS.fullmatch(name) and name.endswith((".safetensors", ".bin")):
        return f"{folder}{slash}weights"
    if not _ROLES.fullmatch(name):
        return ""
    return f"{folder}{slash}{re.sub(r'[0-9]+', '#', name)}"
