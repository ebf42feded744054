"""What this machine can give a node: CPUs, memory, GPUs, disk, and exact paths or not."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from prefect_bt.host.cgroup import count_cpus, measure_memory
from prefect_bt.host.gpu_reservation import list_gpus
from prefect_bt.host.nodes.files import free_disk_bytes
from prefect_bt.substrates.protocol import Capacity

PROBE_TIMEOUT = 20.0


def measure_capacity(
    state_dir: Path, *, environment: Mapping[str, str], mapped_reason: str
) -> Capacity:
    """Return the capacity within the control group's limits; `mapped_reason` is from the probe."""
    gpus = list_gpus(environment)
    return Capacity(
        cpus=count_cpus(),
        memory=measure_memory(),
        gpus=len(gpus),
        gpu_types=tuple(dict.fromkeys(gpu.type for gpu in gpus)),
        disk=free_disk_bytes(state_dir),
        exact_paths=not mapped_reason,
        mapped_reason=mapped_reason,
    )


def probe_mount_namespace(environment: Mapping[str, str]) -> str:
    """Return why the kernel refuses a private view; "" if it works. A child process tries it."""
    with tempfile.TemporaryDirectory(prefix="prefect-bt-probe-") as scratch:
        try:
            tried = subprocess.run(
                [sys.executable, "-P", "-m", "prefect_bt.host.mounts.namespace", scratch],
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=PROBE_TIMEOUT,
                check=False,
            )
        except (OSError, subprocess.SubprocessError) as error:
            return f"the probe could not run: {error}"
    if tried.returncode != 0:
        return (tried.stderr.strip().splitlines() or ["the probe died"])[-1]
    return tried.stdout.strip()
