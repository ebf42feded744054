"""The NVIDIA GPUs of this machine, and which of them a node may use.

    <state_dir>/gpus/<device>.lock    flock held by the node's guard and agent while it runs

They are read from /proc/driver/nvidia, which costs nothing; nvidia-smi is used only without it.
Devices are numbered in PCI order, which CUDA follows under CUDA_DEVICE_ORDER=PCI_BUS_ID.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

from prefect_bt.filesystem.permissions import ensure_private_folder
from prefect_bt.host.job_lock import open_locked

_DRIVER = Path("/proc/driver/nvidia/gpus")

_MODEL_PATTERNS: Final[tuple[tuple[str, str], ...]] = (
    (r"\bGB300\b", "GB300"),
    (r"\bB300\b", "B300"),
    (r"\bG?B200\b", "B200"),
    (r"\bG?H200\b", "H200"),
    (r"\bH100\b.*\b40GB\b", "H100_40GB"),
    (r"\bG?H100\b", "H100"),
    (r"\bA100\b.*\b40GB\b", "A100_40GB"),
    (r"\bA100\b", "A100"),
    (r"\bA10G\b", "A10G"),
    (r"\bB10\b", "B10"),
    (r"\bL40S\b", "L40S"),
    (r"\bL4\b", "L4"),
    (r"\bT4\b", "T4"),
    (r"\bV100\b", "V100"),
    (r"\bRTX PRO 6000\b", "RTX_PRO_6000"),
)
"""Patterns of device names and the Accelerator value of each. The first match wins."""


class Gpu(NamedTuple):
    """`device` is what CUDA_VISIBLE_DEVICES takes; `type` an enum spelling or the model's name."""

    device: str
    type: str


class NotEnoughGpus(Exception):
    """Error: fewer GPUs are free than requested; the message has both numbers."""


def parse_gpu_model(model: str) -> str:
    """Return the Accelerator of a model name, or the name itself for an unknown model.

    >>> models = "NVIDIA H200", "NVIDIA A100-SXM4-40GB", "GeForce RTX 4090"
    >>> [parse_gpu_model(one) for one in models]
    ['H200', 'A100_40GB', 'GeForce RTX 4090']
    """
    for pattern, spelling in _MODEL_PATTERNS:
        if re.search(pattern, model.replace("_", " ")):
            return spelling
    return model


def list_gpus(environment: Mapping[str, str] = os.environ) -> list[Gpu]:
    """Return the devices of this process; the host's CUDA_VISIBLE_DEVICES restricts them."""
    gpus = _from_driver() or _from_smi()
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    if visible is None or visible.strip() == "all":
        return gpus
    known = {gpu.device: gpu for gpu in gpus}
    fallback = gpus[0].type if gpus else "GPU"
    chosen: list[Gpu] = []
    for token in (token.strip() for token in visible.split(",")):
        if not token or token.startswith("-") or (token.isdigit() and token not in known):
            break  # CUDA, too, ignores what follows an invalid entry
        chosen.append(known.get(token, Gpu(token, fallback)))
    return chosen if gpus else []


def reserve_gpus(
    count: int, *, state_dir: Path, environment: Mapping[str, str] = os.environ
) -> list[tuple[Gpu, int]]:
    """Return `count` free devices, each with the descriptor that holds its lock. NotEnoughGpus."""
    if count == 0:
        return []
    folder = state_dir / "gpus"
    ensure_private_folder(folder)
    gpus = list_gpus(environment)
    claimed: list[tuple[Gpu, int]] = []
    for gpu in gpus:
        if len(claimed) == count:
            break
        name = gpu.device.replace("/", "-")
        descriptor = open_locked(folder / f"{name}.lock")
        if descriptor is not None:
            claimed.append((gpu, descriptor))
    if len(claimed) < count:
        for _, descriptor in claimed:
            os.close(descriptor)
        raise NotEnoughGpus(
            f"it needs {count} GPUs; this machine has {len(gpus)}, of which {len(claimed)} are free"
        )
    return claimed


def _from_driver() -> list[Gpu]:
    try:
        folders = sorted(_DRIVER.iterdir())
    except OSError:
        return []
    models = [_read_model(folder / "information") for folder in folders]
    return [Gpu(str(index), parse_gpu_model(model)) for index, model in enumerate(models)]


def _read_model(information: Path) -> str:
    try:
        text = information.read_text(errors="replace")
    except OSError:
        return "GPU"
    found = re.search(r"^Model:\s*(.+?)\s*$", text, re.MULTILINE)
    return found.group(1) if found else "GPU"


def _from_smi() -> list[Gpu]:
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    import subprocess

    try:
        listed = subprocess.run(
            [program, "--query-gpu=index,name", "--format=csv,noheader"],
            capture_output=True,
            text=True,
            timeout=20,
            check=True,
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    pairs = [line.split(",", 1) for line in listed.splitlines() if "," in line]
    return [Gpu(index.strip(), parse_gpu_model(name.strip())) for index, name in pairs]
