"""CPU and memory of a container, as the kernel sees them."""

from __future__ import annotations

from pathlib import Path

import pytest

from prefect_bt.planning.plan import Resources
from prefect_bt.substrates.docker.node_handle import DockerNodeHandle
from tests.node_agent.rig import own_lines, wait_line

from .node_rig import DockerRig, record_of

pytestmark = [pytest.mark.integration]


def test_compute_is_reserved_or_limited_as_the_kernel_sees_it(rig: DockerRig) -> None:
    """Of an old plan, which names no shared memory: half of its memory."""
    resources = Resources(cpus=1, memory=256 * 1024**2)
    command = "df -k /dev/shm | tail -n 1; cat /proc/self/oom_score_adj; echo told; sleep 300"
    reserved = rig.launch(command, resources=resources)
    rig.substrate = rig.reopen(enforce_limits=True)
    limited = rig.launch(command, resources=resources, attempt=1)
    for handle in (reserved, limited):
        wait_line(handle, "told")
        assert own_lines(handle)[0].split()[1] == str(128 * 1024)
    assert [own_lines(handle)[1] for handle in (reserved, limited)] == ["500", "0"]
    assert _memory_group(reserved) == (None, resources.memory)
    assert _memory_group(limited)[0] == resources.memory
    config = rig.inspect(reserved)["HostConfig"]
    assert (config["Memory"], config["NanoCpus"], config["CpuShares"]) == (0, 0, 1024)
    config = rig.inspect(limited)["HostConfig"]
    assert (config["Memory"], config["MemorySwap"]) == (resources.memory, resources.memory)
    assert config["NanoCpus"] in {10**9, 0}, "all the CPUs there are is no limit"


def _memory_group(handle: DockerNodeHandle) -> tuple[int | None, int | None]:
    """Limit and reservation of the container's group, as either version of cgroups has them."""
    groups = Path(f"/proc/{record_of(handle).pid}/cgroup").read_text()

    def read(*names: str) -> int | None:
        found = [_group_number(groups, "memory", name) for name in names]
        return next((n for n in found if n is not None and n < 1 << 60), None)

    return read("limit_in_bytes", "max"), read("soft_limit_in_bytes", "low")


def _group_number(groups: str, controller: str, name: str) -> int | None:
    for line in groups.splitlines():
        number, names, path = line.split(":", 2)
        folder = "/sys/fs/cgroup" if number == "0" else f"/sys/fs/cgroup/{controller}"
        file = Path(f"{folder}{path}/{controller}.{name}")
        if (controller in names.split(",") or number == "0") and file.exists():
            text = file.read_text().strip()
            return int(text) if text.isdigit() else None
    return None
