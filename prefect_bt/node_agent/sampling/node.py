"""Create the sampler of a node from its plan, its folders and the runner of its commands."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Final, Protocol

from prefect_bt.credentials.redaction import Redactor
from prefect_bt.host.cgroup import count_cpus, measure_memory
from prefect_bt.host.mounts.volumes import NodePaths
from prefect_bt.host.state_folder import NodeFolder, NodeRecord
from prefect_bt.job_metrics.node_metrics import NodeFacts
from prefect_bt.job_metrics.training_values.reader import TrainingValuesReader
from prefect_bt.node_agent.activity_monitor import POLL_INTERVAL
from prefect_bt.node_agent.commands.runner import Runner
from prefect_bt.node_agent.sampling.sampler import NodeSampler, SamplerConfig
from prefect_bt.node_paths import METRICS_FILE
from prefect_bt.planning.plan import NodePlan, VolumeKind

_WRITTEN_KINDS: Final = (VolumeKind.CHECKPOINTS, VolumeKind.WORKSPACE, VolumeKind.SCRATCH)


class SampledNode(Protocol):
    """The part of an agent's arguments that its sampler needs."""

    @property
    def folder(self) -> NodeFolder: ...

    @property
    def record(self) -> NodeRecord: ...

    @property
    def plan(self) -> NodePlan: ...

    @property
    def secrets(self) -> Mapping[str, str]: ...

    @property
    def gpus(self) -> Sequence[str]: ...


def create_sampler(node: SampledNode, paths: NodePaths, runner: Runner) -> NodeSampler:
    """Return the sampler, which is not started."""
    plan = node.plan
    meter = runner.create_meter()
    written = {kind: paths.folders[kind] for kind in _WRITTEN_KINDS if kind in paths.folders}
    scratch = written.get(VolumeKind.SCRATCH)
    return NodeSampler(
        SamplerConfig(
            file=node.folder.metrics,
            facts=_describe(plan, in_pod=node.record.in_pod),
            meter=meter,
            scratch=scratch,
            volumes=list(written.values()),
            values=TrainingValuesReader(
                [folder for folder in written.values() if folder != scratch],
                scratch / PurePosixPath(METRICS_FILE).name if scratch is not None else None,
                redact=Redactor(node.secrets.values()),
            ),
            open_gpus=lambda: meter.open_gpus(node.gpus) if plan.resources.gpus else None,
        )
    )


def _describe(plan: NodePlan, *, in_pod: bool) -> NodeFacts:
    """Return what the node may use: its limits, else the machine."""
    have = plan.resources
    if have.limits:
        return NodeFacts(have.cpus, have.memory, POLL_INTERVAL)
    if in_pod:  # the group of this process is the agent's own container
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        return NodeFacts(os.cpu_count() or 1, memory, POLL_INTERVAL)
    return NodeFacts(count_cpus(), measure_memory(), POLL_INTERVAL)
