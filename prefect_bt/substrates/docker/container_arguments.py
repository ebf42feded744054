"""A node plan as the Docker Engine understands it: the arguments of one `create`. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from prefect_bt.host.container_privileges import DEFAULT_CAPABILITIES, Privileges
from prefect_bt.host.mounts.namespace_plan import Bind
from prefect_bt.host.nodes.container_pipes import INIT_SCRIPT, MOUNTED_AT
from prefect_bt.host.processes import MARK_VARIABLE
from prefect_bt.planning.plan import NodePlan, Resources
from prefect_bt.reserved_variables import rendezvous_variables

LABEL_JOB: Final = "prefect-bt/job-id"
LABEL_ATTEMPT: Final = "prefect-bt/attempt"
LABEL_RANK: Final = "prefect-bt/rank"
LABEL_MARK: Final = "prefect-bt/mark"
"""Label with the mark of a launch, by which a state folder finds its own containers."""
LEADER_PORT: Final = 29500
"""PyTorch's default port: every node has its own network, so no other process uses it."""
ULIMITS: Final = (("memlock", -1), ("stack", 64 * 1024**2), ("nofile", 1024**2))
"""Limits for data loaders, NCCL and RDMA, as NVIDIA documents them for `docker run`."""
MIN_SHARED_MEMORY: Final = 64 * 1024**2
SHARES_PER_CPU: Final = 1024
"""As Kubernetes counts: a container without a weight of its own has as much as one CPU."""
MAX_CPU_SHARES: Final = 262144
"""The kernel's maximum, 256 CPUs."""
MIN_MEMORY_RESERVATION: Final = 6 * 1024**2
"""The Engine refuses less."""
OOM_SCORE_ADJ: Final = 500
"""Of 1000. When the machine has no memory left, the kernel kills in a container without a limit
before it kills the host's services."""


@dataclass(frozen=True)
class ContainerSpec:
    """Arguments of one container."""

    plan: NodePlan
    mark: str
    image: str
    binds: Sequence[Bind]
    control: Path
    gpus: Sequence[str] = ()
    network: str = ""
    """Network of the gang; empty for a single node, which uses the Engine's bridge."""
    enforce_limits: bool = False
    """Whether the container is held to what the plan gives the node."""
    privileges: Privileges = field(default_factory=Privileges)


def container_name(mark: str) -> str:
    """Return the name of one launch, unique among all state folders.

    >>> container_name("abc1234.0.1.0f6b2c7d19a4e85b03c6d1f2")
    'prefect-bt-abc1234-0-1-0f6b2c7d19a4e85b03c6d1f2'
    """
    return f"prefect-bt-{mark.replace('.', '-')}"


def network_name(job_id: str, attempt: int, state_dir_id: str) -> str:
    """Return the network of a gang; `state_dir_id` distinguishes state folders."""
    return f"prefect-bt-{job_id}-{attempt}-{state_dir_id}"


def host_name(job_id: str, rank: int) -> str:
    """Return the host name of a node, as on Baseten. The other nodes of the gang resolve it."""
    return f"baseten-training-job-{job_id}-multinode-{rank}"


def render_labels(job_id: str, attempt: int, rank: int | None, mark: str) -> dict[str, str]:
    """Return the labels of every created object; a network has no rank."""
    found = {LABEL_JOB: job_id, LABEL_ATTEMPT: str(attempt), LABEL_MARK: mark}
    return found if rank is None else {**found, LABEL_RANK: str(rank)}


def render_environment(spec: ContainerSpec) -> dict[str, str]:
    """Return variables beside the image's own. Secrets go through host.nodes.container_pipes."""
    plan = spec.plan
    rendezvous = rendezvous_variables(
        f"{plan.job_id}-{plan.attempt}",
        address=host_name(plan.job_id, 0),
        port=LEADER_PORT,
        group_size=plan.group_size,
    )
    return {
        "PYTHONUNBUFFERED": "1",
        **rendezvous,
        **plan.environment,
        MARK_VARIABLE: spec.mark,
    }


def render_create_arguments(spec: ContainerSpec) -> dict[str, Any]:
    """Return arguments of create_container without `host_config` and `networking_config`."""
    plan = spec.plan
    return {
        "image": spec.image,
        "name": container_name(spec.mark),
        "hostname": host_name(plan.job_id, plan.rank),
        "user": "0:0",
        "entrypoint": ["/bin/sh", "-c", INIT_SCRIPT, "prefect-bt"],
        "command": [] if plan.workspace.in_image else [plan.workspace.directory],
        "environment": render_environment(spec),
        "labels": render_labels(plan.job_id, plan.attempt, plan.rank, spec.mark),
        "healthcheck": {"test": ["NONE"]},
    }


def render_host_config(spec: ContainerSpec, engine: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments of docker.APIClient.create_host_config; `engine` is its /info."""
    have = spec.plan.resources
    control = Bind(spec.control, MOUNTED_AT, read_only=True)
    return {
        "mounts": [_mount(bind) for bind in (*spec.binds, control)],
        "network_mode": spec.network or None,
        **(_limits(have, engine) if spec.enforce_limits else _reservations(have)),
        "shm_size": max(MIN_SHARED_MEMORY, have.shared_memory or have.memory // 2),
        "ulimits": [{"Name": name, "Soft": most, "Hard": most} for name, most in ULIMITS],
        "device_requests": _device_requests(have, spec.gpus),
        **_security_options(spec.privileges),
        "log_config": {"Type": "none", "Config": {}},
        "init": False,
        "restart_policy": {"Name": "no"},
    }


def _reservations(have: Resources) -> dict[str, Any]:
    """Return weights for a busy machine; the container may use more."""
    return {
        "cpu_shares": min(have.cpus * SHARES_PER_CPU, MAX_CPU_SHARES),
        "mem_reservation": max(have.memory, MIN_MEMORY_RESERVATION),
        "oom_score_adj": OOM_SCORE_ADJ,
    }


def _limits(have: Resources, engine: Mapping[str, Any]) -> dict[str, Any]:
    """Return hard limits without swap; no CPU limit if it has all CPUs of the machine."""
    return {
        "nano_cpus": have.cpus * 10**9 if have.cpus < int(engine.get("NCPU", 0)) else None,
        "mem_limit": have.memory,
        "memswap_limit": have.memory,
    }


def _security_options(given: Privileges) -> dict[str, Any]:
    """Return the options that limit capabilities, new privileges and processes."""
    return {
        "cap_drop": ["ALL"],
        "cap_add": sorted({*DEFAULT_CAPABILITIES, *given.capabilities}),
        "security_opt": [] if given.allow_new_privileges else ["no-new-privileges:true"],
        "pids_limit": given.max_processes,
    }


def _mount(bind: Bind) -> dict[str, Any]:
    """Return a bind as a mount, which the Engine refuses for a missing source."""
    return {
        "Type": "bind",
        "Source": str(bind.source),
        "Target": bind.target,
        "ReadOnly": bind.read_only,
    }


def _device_requests(have: Resources, devices: Sequence[str]) -> list[dict[str, Any]] | None:
    if not have.gpus:
        return None
    return [{"Driver": "", "DeviceIDs": list(devices), "Capabilities": [["gpu"]], "Options": {}}]
