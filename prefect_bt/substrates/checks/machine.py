"""Checks of the machine on which the nodes of the local and the Docker substrate run."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from prefect_bt.filesystem.permissions import ensure_private_folder
from prefect_bt.host.gpu_reservation import list_gpus
from prefect_bt.host.nodes.files import free_disk_bytes
from prefect_bt.substrates.protocol import CheckResult, CheckStatus
from prefect_bt.text.quantities import format_size


def check_folder(state_dir: Path) -> CheckResult:
    """Create and delete a file in the state folder."""
    name = "State folder"
    try:
        ensure_private_folder(state_dir)
        with tempfile.NamedTemporaryFile(dir=state_dir):
            pass
    except OSError as error:
        step = "Make it writable, or set PREFECT_BT_STATE_DIR to a folder of a local disk."
        return CheckResult(name, CheckStatus.FAILED, f"{state_dir}: {error}.", step)
    free = format_size(free_disk_bytes(state_dir))
    return CheckResult(name, CheckStatus.PASSED, f"{state_dir}, {free} free")


def check_gpus(environment: Mapping[str, str]) -> CheckResult:
    """List the GPUs; jobs without GPUs need none."""
    types = Counter(gpu.type for gpu in list_gpus(environment))
    shown = ", ".join(f"{count} x {kind}" for kind, count in types.items())
    return CheckResult("GPUs", CheckStatus.PASSED, shown or "this machine has none")
