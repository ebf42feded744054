"""Real layouts, written small: what trainers leave in a checkpoint directory."""

import io
import json
import os
import pickle
import struct
import zipfile
from hashlib import sha256
from pathlib import Path

from prefect_bt.checkpoints.layout import FileStat
from prefect_bt.checkpoints.manifest import UploadOrigin
from prefect_bt.checkpoints.upload.uploader import Uploader, UploadOptions

PROJECT, JOB = "proj001", "job0001"


def safetensors(size: int = 64, seed: bytes = b"w") -> bytes:
    tensor = {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}
    header = text({"__metadata__": {"format": "pt"}, "w": tensor})
    return struct.pack("<Q", len(header)) + header + (seed * size)[:size]


def safetensors_with(offsets) -> bytes:
    """A header that says what it likes."""
    header = json.dumps({"w": {"dtype": "U8", "data_offsets": offsets}}).encode()
    return struct.pack("<Q", len(header)) + header


def nested_zip() -> bytes:
    """An archive that holds another one as it is."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("inner.zip", torch_zip())
        archive.writestr("more", b"x" * 500)
    return buffer.getvalue()


def torch_zip(payload: bytes = b"state") -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        # A ZipInfo has a fixed date: the same state is the same bytes.
        archive.writestr(zipfile.ZipInfo("archive/data.pkl"), payload)
    return buffer.getvalue()


def hdf5(size: int = 200) -> bytes:
    """A superblock of version 2 that says where the file ends, and zeros."""
    head = b"\x89HDF\r\n\x1a\n\x02\x08\x08\x00" + bytes(8) + b"\xff" * 8
    return (head + size.to_bytes(8, "little")).ljust(size, b"\0")


def text(value) -> bytes:
    return json.dumps(value).encode()


def hf_full(step: int = 10, seed: bytes = b"w", size: int = 64) -> dict[str, bytes]:
    return {
        "config.json": text({"model_type": "llama", "_name_or_path": "org/base"}),
        "generation_config.json": text({}),
        "model.safetensors": safetensors(size, seed),
        "optimizer.pt": torch_zip(seed),
        "scheduler.pt": torch_zip(seed + b"s"),
        "rng_state.pth": torch_zip(seed + b"r"),
        "training_args.bin": torch_zip(b"args"),
        "trainer_state.json": text({"global_step": step, "log_history": []}),
    }


def hf_lora(step: int = 10) -> dict[str, bytes]:
    full = hf_full(step)
    del full["config.json"], full["generation_config.json"], full["model.safetensors"]
    config = {"peft_type": "LORA", "r": 16, "base_model_name_or_path": "org/base"}
    return full | {
        "adapter_config.json": text(config),
        "adapter_model.safetensors": safetensors(),
        "README.md": b"# card",
    }


def hf_sharded(step: int = 10) -> dict[str, bytes]:
    full = hf_full(step)
    del full["model.safetensors"]
    names = [f"model-{n:05d}-of-00003.safetensors" for n in (1, 2, 3)]
    index = {"metadata": {}, "weight_map": {f"w{n}": name for n, name in enumerate(names)}}
    shards = {name: safetensors() for name in names}
    return full | shards | {"model.safetensors.index.json": text(index)}


def stale_index(weights: str = "model.safetensors") -> dict[str, bytes]:
    """The index of a former save in two shards."""
    stem, _, suffix = weights.rpartition("/")[2].rpartition(".")
    shards = [f"{stem}-{number:05d}-of-00002.{suffix}" for number in (1, 2)]
    return {f"{weights}.index.json": text({"weight_map": {"a": shards[0], "b": shards[1]}})}


def zero_shards(step: int, ranks: int) -> dict[str, bytes]:
    name = f"global_step{step}/bf16_zero_pp_rank_%d_mp_rank_00_optim_states.pt"
    return {name % rank: torch_zip(b"%d" % rank) for rank in range(ranks)}


def deepspeed(step: int = 10) -> dict[str, bytes]:
    tag = f"global_step{step}"
    shards = zero_shards(step, 2)
    model = {f"{tag}/mp_rank_00_model_states.pt": torch_zip()}
    tracker = {"latest": tag.encode(), "zero_to_fp32.py": b"pass"}
    return hf_full(step) | shards | model | tracker


def distributed(folder: str = "", ranks: int = 2) -> dict[str, bytes]:
    """PyTorch's distributed checkpoint in the order of writing."""
    names = [f"__{rank}_0.distcp" for rank in range(ranks)]
    metadata = pickle.dumps({name: {"relative_path": name} for name in names})
    files = {name: torch_zip(name.encode()) for name in names} | {".metadata": metadata}
    return {f"{folder}{name}": data for name, data in files.items()}


def fsdp() -> dict[str, bytes]:
    folder = "pytorch_model_fsdp_0"
    shards = {f"{folder}/__{rank}_0.distcp": b"PK\x03\x04 raw" for rank in (0, 1)}
    return shards | {f"{folder}/.metadata": b"\x80\x04pickle"}


def megatron() -> dict[str, bytes]:
    return {
        "mp_rank_00/model_optim_rng.pt": torch_zip(),
        "mp_rank_01/model_optim_rng.pt": torch_zip(b"1"),
    }


def whisper() -> dict[str, bytes]:
    config = {"model_type": "whisper", "architectures": ["WhisperForConditionalGeneration"]}
    return hf_full() | {"config.json": text(config), "preprocessor_config.json": text({})}


def verl() -> dict[str, bytes]:
    return {
        "actor/model_world_size_2_rank_0.pt": torch_zip(),
        "actor/model_world_size_2_rank_1.pt": torch_zip(b"1"),
        "actor/huggingface/config.json": text({"model_type": "qwen2"}),
        "data.pt": torch_zip(),
    }


def write(folder: Path, files: dict[str, bytes]) -> None:
    for path, data in files.items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)


def nest(folder: Path, name: str, depth: int) -> None:
    """Nest folders of this name, also deeper than a path can be long."""
    here = os.open(folder, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir(name, dir_fd=here)
        here, above = os.open(name, os.O_RDONLY, dir_fd=here), here
        os.close(above)
    os.close(here)


def tree(files: dict[str, bytes], under: str = "") -> dict[str, FileStat]:
    prefix = f"{under}/" if under else ""
    return {f"{prefix}{path}": FileStat(len(data), 1) for path, data in files.items()}


def origin(attempt: int = 1, rank: int = 0, group_size: int = 1) -> UploadOrigin:
    return UploadOrigin(PROJECT, JOB, rank=rank, attempt=attempt, group_size=group_size)


FAST = UploadOptions(settle=0.05, scan=0.02, stall_timeout=0.5, recommit_interval=0.1)


class Ended:
    """An event that is set: an uploader told to end does nothing but the final flush."""

    def is_set(self):
        return True


def flush(
    store, directory: Path, files=None, *, options=FAST, reports=None, succeeded=True, **where
):
    """One final flush, after these files were written; the status."""
    write(directory, files or {})
    kept = reports if reports is not None else []
    uploader = Uploader(
        store, directory=directory, origin=origin(**where), options=options, report=kept.append
    )
    ended = Ended()
    return uploader.run(ended, has_succeeded=lambda: succeeded)  # pyright: ignore[reportArgumentType]


def contents(folder: Path) -> dict[str, str]:
    """Every file below, by digest."""
    return {
        str(path.relative_to(folder)): sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def touch_back(path: Path, seconds: float) -> None:
    seen = path.stat()
    os.utime(path, ns=(seen.st_atime_ns, seen.st_mtime_ns - int(seconds * 1e9)))
