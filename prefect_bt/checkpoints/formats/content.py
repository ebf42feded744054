"""Inspect one file: whether it is truncated, and which files it names.

No I/O but through the reader that is handed in; whatever lies in a file, nothing is raised for it.
Only files that a loader reads can make a checkpoint incomplete; other files are content, whatever
their suffix says: settings with comments in a `.json`, an empty `scratch.bin`.
Sources of the formats: safetensors' header (length, JSON, offsets), zip APPNOTE 4.3.16 (end of
central directory), HDF5's superblock (end of file address), Hugging Face's index, the pickled
`.metadata` of PyTorch's distributed checkpoints (its strings are read, nothing is unpickled).
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from posixpath import basename, dirname
from typing import Any, Final, Protocol, cast

_MAX_JSON: Final = 4 * 1024 * 1024
_MAX_INDEX: Final = 32 * 1024 * 1024
_MAX_METADATA: Final = 32 * 1024 * 1024
_MAX_PARSED_HEADER: Final = 16 * 1024 * 1024
_MAX_HEADER: Final = 100_000_000
_ZIP_TAIL: Final = 65_535 + 22
_ZIP_SUFFIXES: Final = (".pt", ".pth", ".ckpt", ".bin", ".pkl", ".npz", ".keras")
_NEVER_EMPTY: Final = (".pt", ".pth", ".ckpt", ".keras")
_HDF5_SUFFIXES: Final = (".h5", ".hdf5")
_HDF5_START: Final = b"\x89HDF\r\n\x1a\n"
_HDF5_END_ADDRESS: Final = {0: 40, 1: 44, 2: 28, 3: 28}
"""Version of the superblock -> byte at which the end of the file is, for offsets of 8 bytes."""
_ZIP_START: Final = b"PK\x03\x04"
_ZIP_END: Final = b"PK\x05\x06"
_METADATA: Final = re.compile(r"(?:.*/)?(?:__\d+)?\.metadata", re.DOTALL)
_DISTCP: Final = re.compile(rb"__\d+_\d+\.distcp")
_LOADED_JSON: Final = frozenset(
    {"config.json", "adapter_config.json", "generation_config.json", "trainer_state.json"}
    | {"model_index.json", "modules.json", "tokenizer.json", "tokenizer_config.json"}
    | {"preprocessor_config.json", "special_tokens_map.json", "scheduler_config.json"}
)
MODEL_CONFIGS: Final = ("config.json", "adapter_config.json")
_MODEL_KEYS: Final = frozenset({"model_type", "architectures", "peft_type"})


class Reader(Protocol):
    """Bytes of a file of the checkpoint; OSError when it cannot be read."""

    def __call__(self, path: str, /, *, start: int, length: int) -> bytes: ...


@dataclass(frozen=True)
class FileReport:
    """Result for one file: `error` in it, `required_files`: paths that it names."""

    error: str = ""
    required_files: tuple[str, ...] = ()
    describes_model: bool = False
    """A configuration as Hugging Face or PEFT write it, which means weights."""


def inspect_file(path: str, size: int, *, read: Reader) -> FileReport:
    """Judge one file by its own content; reads headers and ends, and small JSON in full."""
    for suffixes, validate in _VALIDATORS:
        if path.endswith(suffixes):
            return FileReport(validate(path, size, read))
    if path.endswith((".safetensors.index.json", ".bin.index.json")):
        return _inspect_index(path, size, read)
    if basename(path) in _LOADED_JSON:
        return _inspect_json(path, size, read)
    if path.endswith(".metadata") and _METADATA.fullmatch(path):
        return _inspect_metadata(path, size, read)
    return FileReport()


def _validate_safetensors(path: str, size: int, read: Reader) -> str:
    if size < 8:
        return "is truncated: shorter than the length of its header"
    length = int.from_bytes(read(path, start=0, length=8), "little")
    if length > _MAX_HEADER or 8 + length > size:
        return "is truncated inside its header"
    if length > _MAX_PARSED_HEADER:
        return ""
    try:
        end = _compute_tensors_end(json.loads(read(path, start=8, length=length)))
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError):
        return "has an invalid header"
    expected = 8 + length + end
    return "" if size == expected else f"has {size} bytes where its header says {expected}"


def _compute_tensors_end(header: Any) -> int:
    """Return the end of the last tensor, in bytes after the header. Raise for a bad header."""
    end = 0
    for name, tensor in header.items():
        if name != "__metadata__":
            begin, after = tensor["data_offsets"]
            if not 0 <= begin <= after:
                raise ValueError(name)
            end = max(end, after)
    return end


def _validate_zip(path: str, size: int, read: Reader) -> str:
    if size == 0:
        return "is empty" if path.endswith(_NEVER_EMPTY) else ""
    if read(path, start=0, length=4) != _ZIP_START:
        # An older format, which does not tell where it ends.
        return ""
    length = min(size, _ZIP_TAIL)
    tail = read(path, start=size - length, length=length)
    at = tail.rfind(_ZIP_END)
    while at >= 0:
        if _is_end_record(tail, at, size - length + at):
            return ""
        at = tail.rfind(_ZIP_END, 0, at)
    return "is truncated: the end of its zip directory is missing"


def _is_end_record(tail: bytes, at: int, position: int) -> bool:
    """Return whether `tail[at:]`, at byte `position` of the file, is the archive's end record."""
    record = tail[at : at + 22]
    if len(record) < 22:
        return False
    if at + 22 + int.from_bytes(record[20:22], "little") == len(tail):
        return True
    # Something was appended, a signature perhaps. The end of an archive that lies uncompressed
    # inside one still being written has a directory that is counted from another start.
    directory = int.from_bytes(record[12:16], "little")
    return int.from_bytes(record[16:20], "little") + directory == position


def _validate_hdf5(path: str, size: int, read: Reader) -> str:
    if size == 0:
        return "is empty"
    head = read(path, start=0, length=64)
    at = _HDF5_END_ADDRESS.get(head[8]) if head.startswith(_HDF5_START) and size > 64 else None
    if at is None:
        return ""
    end = int.from_bytes(head[at : at + 8], "little")
    return "" if size >= end else f"has {size} bytes where its header says {end}"


def _inspect_json(path: str, size: int, read: Reader) -> FileReport:
    """Report a truncated file. A file that is whole, but in another format, is content."""
    if size > _MAX_JSON:
        # Parsing tens of megabytes would cost more memory than the uploader may take.
        first, last = read(path, start=0, length=64), read(path, start=size - 64, length=64)
        return FileReport(_validate_brackets(first, last))
    data = read(path, start=0, length=size)
    if not data.strip():
        return FileReport("is empty")
    try:
        value: Any = json.loads(data)
    except RecursionError:
        return FileReport(_validate_brackets(data, data))
    except ValueError as error:
        return FileReport("is cut off" if _is_truncated(data, error) else "")
    is_object = basename(path) in MODEL_CONFIGS and isinstance(value, dict)
    keys = cast("dict[str, object]", value).keys() if is_object else set[str]()
    return FileReport(describes_model=not _MODEL_KEYS.isdisjoint(keys))


def _validate_brackets(first: bytes, last: bytes) -> str:
    begins, ends = first.lstrip()[:1], last.rstrip()[-1:]
    return "" if ends in {b"}", b"]"} or begins not in {b"{", b"["} else "is cut off"


def _is_truncated(data: bytes, error: ValueError) -> bool:
    """Return whether the file looks like the beginning of JSON, or has lost its bytes.

    A truncation shows at the end, a lost write as zeros.
    """
    if b"\0" in data:
        return True
    if isinstance(error, json.JSONDecodeError) and error.msg.startswith("Extra data"):
        return False
    return bool(_validate_brackets(data, data))


def _inspect_index(path: str, size: int, read: Reader) -> FileReport:
    if size > _MAX_INDEX:
        return FileReport()
    try:
        index: Any = json.loads(read(path, start=0, length=size))
    except (ValueError, RecursionError):
        return FileReport("is not JSON")
    if not isinstance(index, dict):
        return FileReport()
    shards = cast("dict[str, object]", index).get("weight_map")
    if not isinstance(shards, dict):
        return FileReport()
    names = {str(name) for name in cast("dict[str, object]", shards).values()}
    return FileReport(required_files=_sibling_paths(path, names))


def _inspect_metadata(path: str, size: int, read: Reader) -> FileReport:
    if size > _MAX_METADATA:
        return FileReport()
    names = {name.decode() for name in _DISTCP.findall(read(path, start=0, length=size))}
    return FileReport(required_files=_sibling_paths(path, names))


def _sibling_paths(path: str, names: set[str]) -> tuple[str, ...]:
    folder = dirname(path)
    return tuple(f"{folder}/{name}" if folder else name for name in sorted(names))


_VALIDATORS: Final = (
    ((".safetensors",), _validate_safetensors),
    (_ZIP_SUFFIXES, _validate_zip),
    (_HDF5_SUFFIXES, _validate_hdf5),
)
