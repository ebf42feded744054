"""Run nodes as containers of this machine's Docker Engine.

Guard, agent and uploader of a node are processes of this machine, as on the local substrate; only
the commands run in a container, through pipes (host.nodes.container_pipes). So the image needs
nothing of this package, a node continues while the Engine is down, and its files are in its folder.
Objects of the Engine have the node's labels.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Any

from prefect_bt import codec
from prefect_bt.errors import SubstrateError
from prefect_bt.host.cgroup import process_limit
from prefect_bt.host.container_privileges import Privileges
from prefect_bt.host.gpu_reservation import NotEnoughGpus, list_gpus, reserve_gpus
from prefect_bt.host.mounts.container_check import find_wrong_mount
from prefect_bt.host.mounts.namespace_plan import Bind, ViewError, VolumeFolderError
from prefect_bt.host.mounts.volumes import ensure_volumes
from prefect_bt.host.nodes.container_pipes import ContainerRecord, create_pipes
from prefect_bt.host.nodes.files import free_disk_bytes, write_text_atomic
from prefect_bt.host.nodes.launch import NodeLauncher, iter_nodes, launch_nodes
from prefect_bt.host.processes import read_start_time
from prefect_bt.host.state_folder import JobFolder, NodeRecord
from prefect_bt.ledger.records import Cause
from prefect_bt.planning.plan import GangPlan, ImagePlan, NodePlan
from prefect_bt.registries.pull import pull_image
from prefect_bt.substrates.checks.machine import check_folder, check_gpus
from prefect_bt.substrates.docker.container_arguments import (
    ContainerSpec,
    host_name,
    render_create_arguments,
    render_host_config,
    render_labels,
)
from prefect_bt.substrates.docker.endpoints import can_raise_limits, record_engine
from prefect_bt.substrates.docker.engine import (
    SUBSTRATE_NAME,
    DockerEngine,
    LimitsRefused,
    validate_same_kernel,
)
from prefect_bt.substrates.docker.node_handle import (
    CREATE_GRACE,
    DockerNodeHandle,
    find_container_address,
)
from prefect_bt.substrates.protocol import (
    Capacity,
    CheckResult,
    CheckStatus,
    Enforcement,
    PreparedImage,
)
from prefect_bt.text.progress import ProgressCallback


class DockerContainerSubstrate:
    """Runs nodes in containers. The arguments are those of NodeLauncher.

    `environment` names the Engine by DOCKER_HOST, as the `docker` command has it.
    `enforce_limits` holds every container to the CPUs and the memory that its node gets; otherwise
    they are reservations, and a container may use what is free. `privileges`: of every container.
    """

    def __init__(
        self,
        state_dir: Path,
        *,
        orphan_deadline: float | None = None,
        environment: Mapping[str, str] | None = None,
        enforce_limits: bool = False,
        privileges: Privileges | None = None,
    ) -> None:
        self.enforce_limits = enforce_limits
        given = privileges or Privileges()
        self.privileges = replace(given, max_processes=given.max_processes or process_limit())
        self.launcher = NodeLauncher(
            state_dir, orphan_deadline=orphan_deadline, environment=environment
        )
        self.state_dir = self.launcher.state_dir
        self.engine = DockerEngine(self.launcher.environment)
        self._info: dict[str, Any] = {}
        self._host = self.launcher.environment.get("DOCKER_HOST", "")
        self._raises_limits = can_raise_limits(self.state_dir, self._host)

    @property
    def name(self) -> str:
        return SUBSTRATE_NAME

    @property
    def supports_images(self) -> bool:
        return True

    def capacity(self) -> Capacity:
        """Return the capacity; SubstrateError without an Engine that can mount local folders."""
        info = self._engine_info()
        gpus = list_gpus(self.launcher.environment)
        return Capacity(
            cpus=int(info["NCPU"]),
            memory=int(info["MemTotal"]),
            gpus=len(gpus),
            gpu_types=tuple(dict.fromkeys(gpu.type for gpu in gpus)),
            disk=free_disk_bytes(self.state_dir),
            enforcement=Enforcement.LIMITS if self.enforce_limits else Enforcement.RESERVED,
        )

    def leader_address(self, job_id: str, attempt: int) -> str:
        return host_name(job_id, 0)

    def warm_up(self) -> None:
        self.engine.connect_in_background()

    def check_access(self) -> Iterator[CheckResult]:
        info = self._engine_info()
        detail = f"version {info.get('ServerVersion', '?')} at {self.engine.address}"
        yield CheckResult("Docker Engine", CheckStatus.PASSED, detail)
        yield check_folder(self.state_dir)
        yield check_gpus(self.launcher.environment)

    def prepare_image(
        self,
        image: ImagePlan,
        *,
        secrets: Mapping[str, str],
        on_progress: ProgressCallback | None = None,
        cancelled: Event | None = None,
    ) -> PreparedImage:
        """Pull the image, unless the Engine has it. ImageError, SecretError."""
        pulled = pull_image(
            self.engine.client,
            image.reference,
            image.auth,
            secrets=secrets,
            on_progress=on_progress,
            cancelled=cancelled,
        )
        return PreparedImage(pulled.reference, pulled.notes)

    def launch(self, gang: GangPlan, *, secrets: Mapping[str, str]) -> list[DockerNodeHandle]:
        """Launch the nodes one by one, as processes of this machine; see the protocol."""
        return launch_nodes(gang, self.launch_node, secrets=secrets)

    def launch_node(self, node: NodePlan, *, secrets: Mapping[str, str]) -> DockerNodeHandle:
        """Start the node and return once its container runs; SubstrateError leaves nothing."""
        handle = self._handle(node.job_id, node.attempt, node.rank)
        try:
            with self._claim_gpus(node) as gpus:
                self._start(node, handle, gpus, secrets)
        except BaseException as error:
            if isinstance(error, FileExistsError):
                raise _already_launched_error(node) from error
            with suppress(SubstrateError):  # the first error is more precise
                handle.remove(create_grace=0 if isinstance(error, Exception) else CREATE_GRACE)
            if isinstance(error, (OSError, ValueError, NotEnoughGpus, ViewError)):
                raise _launch_error(node, error) from error
            raise
        return handle

    def _start(
        self,
        node: NodePlan,
        handle: DockerNodeHandle,
        gpus: Mapping[str, int],
        secrets: Mapping[str, str],
    ) -> None:
        """Start a node. `gpus`: devices, each with the descriptor that reserves it."""
        lock = self.launcher.create_node_folder(node, contained=True)
        try:
            create_pipes(handle.folder)
            # The container takes as long to start as our own processes, so both start at once.
            started = self.launcher.start(handle.folder, (lock, *gpus.values()))
            try:
                self._start_container(node, handle, list(gpus))
                started.send_secrets(secrets)
            finally:
                started.close()
        finally:
            os.close(lock)

    @contextmanager
    def _claim_gpus(self, node: NodePlan) -> Generator[dict[str, int]]:
        claimed = reserve_gpus(
            node.resources.gpus,
            state_dir=self.state_dir,
            environment=self.launcher.environment,
        )
        try:
            yield {gpu.device: descriptor for gpu, descriptor in claimed}
        finally:
            for _, descriptor in claimed:
                os.close(descriptor)

    def list_nodes(self, job_id: str) -> Sequence[DockerNodeHandle]:
        job = JobFolder(self.state_dir, job_id)
        return [self._handle(job_id, attempt, rank) for attempt, rank in iter_nodes(job)]

    def _handle(self, job_id: str, attempt: int, rank: int) -> DockerNodeHandle:
        return DockerNodeHandle(JobFolder(self.state_dir, job_id), attempt, rank, self.engine)

    def _engine_info(self) -> dict[str, Any]:
        if not self._info:
            info = self.engine.info()
            validate_same_kernel(info)
            self._info = info
        return self._info

    def _start_container(
        self, node: NodePlan, handle: DockerNodeHandle, gpus: Sequence[str]
    ) -> None:
        """Create and start the container, and record its identity."""
        record = codec.loads(NodeRecord, handle.folder.record.read_bytes())
        paths = ensure_volumes(node, state_dir=self.state_dir, node=handle.folder)
        image = self.engine.call(
            lambda client: client.inspect_image(node.image.reference),
            action="created",
            rank=node.rank,
        )
        info = self._engine_info()
        spec = ContainerSpec(
            node,
            record.mark,
            str(image["Id"]),
            paths.binds,
            handle.folder.control,
            gpus,
            handle.network if node.group_size > 1 else "",
            self.enforce_limits,
            self.privileges,
        )
        record_engine(self.state_dir, self._host)
        if spec.network:
            self._make_network(spec)
        container = self._inspect_started(self._run(spec, info), spec, image, info)
        write_text_atomic(handle.folder.container_record, codec.dumps(container))

    def _inspect_started(
        self, made: str, spec: ContainerSpec, image: Mapping[str, Any], info: Mapping[str, Any]
    ) -> ContainerRecord:
        """Return the record of a started container, in which nothing of the job runs yet."""
        node = spec.plan
        seen = self._inspect(made, node.rank)
        pid = int(seen["State"]["Pid"])
        try:
            foreign = find_wrong_mount(pid, spec.binds) if pid else None
        except ProcessLookupError:
            self.engine.call(lambda client: client.wait(made), action="waited for", rank=node.rank)
            pid, foreign, seen = 0, None, self._inspect(made, node.rank)
        if not pid:
            raise _early_exit_error(node, seen["State"], image, info)
        _validate_mounts(node, foreign)
        workdir = str(image.get("Config", {}).get("WorkingDir") or "")
        began, address = read_start_time(pid), find_container_address(seen)
        return ContainerRecord(made, pid, workdir, began, address, tuple(spec.gpus))

    def _inspect(self, container: str, rank: int) -> dict[str, Any]:
        return self.engine.call(
            lambda client: client.inspect_container(container), action="looked at", rank=rank
        )

    def _run(self, spec: ContainerSpec, info: Mapping[str, Any]) -> str:
        """Return the id of the running container."""
        rank = spec.plan.rank
        made = self._create(spec, info)
        try:
            self.engine.call(lambda client: client.start(made), action="started", rank=rank)
        except LimitsRefused:
            if not self._raises_limits:
                raise
            self._raises_limits = False  # an Engine that may not raise limits: its own apply
            record_engine(self.state_dir, self._host, raises_limits=False)
            self.engine.call(
                lambda client: client.remove_container(made, force=True), action="made"
            )
            return self._run(spec, info)
        return made

    def _create(self, spec: ContainerSpec, info: Mapping[str, Any]) -> str:
        given = render_host_config(spec, info)
        if not self._raises_limits:
            given["ulimits"] = None

        def create(client: Any) -> str:
            made = client.create_container(
                **render_create_arguments(spec),
                host_config=client.create_host_config(**given),
                networking_config=_networking(client, spec),
            )
            return str(made["Id"])

        return self.engine.call(create, action="created", rank=spec.plan.rank)

    def _make_network(self, spec: ContainerSpec) -> None:
        """Create the gang's network for its first node."""
        node, name = spec.plan, spec.network

        def make(client: Any) -> None:
            if not client.networks(names=[f"^{name}$"]):
                client.create_network(
                    name,
                    driver="bridge",
                    labels=render_labels(node.job_id, node.attempt, None, spec.mark),
                    check_duplicate=True,
                )

        self.engine.call(make, action="given a network", rank=node.rank)


def create_substrate(
    state_dir: Path,
    *,
    orphan_deadline: float | None,
    docker_host: str = "",
    enforce_limits: bool = False,
    privileges: Privileges | None = None,
) -> DockerContainerSubstrate:
    """Return the substrate, for the table of substrates."""
    return DockerContainerSubstrate(
        state_dir,
        orphan_deadline=orphan_deadline,
        environment={**os.environ, **({"DOCKER_HOST": docker_host} if docker_host else {})},
        enforce_limits=enforce_limits,
        privileges=privileges,
    )


def _networking(client: Any, spec: ContainerSpec) -> Any:
    if not spec.network:
        return None
    alias = host_name(spec.plan.job_id, spec.plan.rank)
    endpoint = client.create_endpoint_config(aliases=[alias])
    return client.create_networking_config({spec.network: endpoint})


def _early_exit_error(
    node: NodePlan, state: Mapping[str, Any], image: Mapping[str, Any], info: Mapping[str, Any]
) -> SubstrateError:
    """Return the error of an image whose /bin/sh ended before its first order."""
    image_type, machine = image.get("Architecture", ""), info.get("Architecture", "")
    why = str(state.get("Error") or f"its /bin/sh ended with {state.get('ExitCode')}").rstrip(".")
    return SubstrateError(
        f"The container of rank {node.rank} ended before a command could run in it: {why} "
        f"(the image is for {image_type}, the machine is {machine}).",
        substrate=SUBSTRATE_NAME,
        rank=node.rank,
        next_step="Use an image for this machine's processor, with a POSIX /bin/sh in it.",
        cause=Cause.IMAGE_UNUSABLE,
    )


def _validate_mounts(node: NodePlan, found: Bind | None) -> None:
    """Raise SubstrateError if `found`, a bind whose target is another folder, is not None.

    No command of the job has run yet.
    """
    if found is not None:
        raise SubstrateError(
            f"The container of rank {node.rank} has another folder at {found.target!r} than "
            f"{str(found.source)!r}: something replaced it while the container was started.",
            substrate=SUBSTRATE_NAME,
            rank=node.rank,
            next_step="Find the process that writes there; the container was removed.",
            cause=Cause.STAGING_FAILED,
        )


def _already_launched_error(node: NodePlan) -> SubstrateError:
    return SubstrateError(
        f"Node {node.rank} of job {node.job_id}, attempt {node.attempt}, was launched before.",
        substrate=SUBSTRATE_NAME,
        rank=node.rank,
        next_step="Give the next attempt a new number.",
    )


def _launch_error(node: NodePlan, error: Exception) -> SubstrateError:
    missing = isinstance(error, NotEnoughGpus)
    if isinstance(error, VolumeFolderError):
        return SubstrateError(
            str(error), substrate=SUBSTRATE_NAME, rank=node.rank, cause=Cause.STAGING_FAILED
        )
    step = "The next attempt fetches them again." if isinstance(error, ViewError) else ""
    step = step or ("" if missing else "Check that PREFECT_BT_STATE_DIR is writable.")
    return SubstrateError(
        f"Node {node.rank} of job {node.job_id}, attempt {node.attempt}, could not be launched: "
        f"{error}",
        substrate=SUBSTRATE_NAME,
        rank=node.rank,
        next_step=step,
        cause=Cause.GPUS_MISSING if missing else "",
    )
