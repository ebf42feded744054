"""Nodes as containers of this machine's Docker Engine.

Guard, agent and uploader of a node are processes of this machine, as on the local substrate; only
the commands run in a container, through pipes (host.container). So nothing of ours is in the image,
a node goes on while the Engine is away, and what is found, observed and kept is in its folder.
What is created on the Engine carries the node's labels.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Any

from prefect_bt import codec
from prefect_bt.errors import SubstrateError
from prefect_bt.host.cgroup import process_share
from prefect_bt.host.container import ContainerRecord, make_pipes
from prefect_bt.host.files import free_disk, write_text
from prefect_bt.host.gpus import NotEnoughGpus, claim_gpus, list_gpus
from prefect_bt.host.launch import NodeLauncher, nodes_of
from prefect_bt.host.layout import JobFolder, NodeRecord
from prefect_bt.host.mounted import find_foreign
from prefect_bt.host.processes import began_at
from prefect_bt.host.view_plan import Bind, FolderRefused, ViewError
from prefect_bt.host.volumes import ensure_volumes
from prefect_bt.plan import ImagePlan, NodePlan
from prefect_bt.privileges import Privileges
from prefect_bt.records import Cause
from prefect_bt.registries import Tell, pull
from prefect_bt.substrates.docker_container import (
    Spec,
    create_arguments,
    host_arguments,
    host_name,
    labels,
)
from prefect_bt.substrates.docker_engine import NAME, DockerEngine, refuse_other_kernel
from prefect_bt.substrates.docker_handle import LATE, DockerHandle, address_of
from prefect_bt.substrates.docker_used import note_engine, raises_limits
from prefect_bt.substrates.protocol import Capacity, Enforcement, PreparedImage


class DockerSubstrate:
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
        self.privileges = replace(given, processes=given.processes or process_share())
        self.launcher = NodeLauncher(
            state_dir, orphan_deadline=orphan_deadline, environment=environment
        )
        self.state_dir = self.launcher.state_dir
        self.engine = DockerEngine(self.launcher.environment)
        self._info: dict[str, Any] = {}
        self._host = self.launcher.environment.get("DOCKER_HOST", "")
        self._raises_limits = raises_limits(self.state_dir, self._host)

    @property
    def name(self) -> str:
        return NAME

    @property
    def images(self) -> bool:
        return True

    def capacity(self) -> Capacity:
        """SubstrateError where there is no Engine, or one that cannot mount our folders."""
        info = self._facts()
        gpus = list_gpus(self.launcher.environment)
        return Capacity(
            cpus=int(info["NCPU"]),
            memory=int(info["MemTotal"]),
            gpus=len(gpus),
            gpu_types=tuple(dict.fromkeys(gpu.type for gpu in gpus)),
            disk=free_disk(self.state_dir),
            enforcement=Enforcement.LIMITS if self.enforce_limits else Enforcement.RESERVED,
        )

    def leader_address(self, job_id: str, attempt: int) -> str:
        return host_name(job_id, 0)

    def warm_up(self) -> None:
        self.engine.connect_soon()

    def prepare_image(
        self,
        image: ImagePlan,
        *,
        secrets: Mapping[str, str],
        tell: Tell | None = None,
        cancelled: Event | None = None,
    ) -> PreparedImage:
        """Pull it, unless it is here. ImageError, SecretError."""
        pulled = pull(
            self.engine.client,
            image.reference,
            image.auth,
            secrets=secrets,
            tell=tell,
            cancelled=cancelled,
        )
        return PreparedImage(pulled.reference, pulled.notes)

    def launch(self, node: NodePlan, *, secrets: Mapping[str, str]) -> DockerHandle:
        """Start the node and return once its container runs; SubstrateError leaves nothing."""
        handle = self._handle(node.job_id, node.attempt, node.rank)
        try:
            with self._gpus(node) as gpus:
                self._start(node, handle, gpus, secrets)
        except BaseException as error:
            if isinstance(error, FileExistsError):
                raise _launched_before(node) from error
            with suppress(SubstrateError):  # the one that is being raised says more
                handle.remove(late=0 if isinstance(error, Exception) else LATE)
            if isinstance(error, (OSError, ValueError, NotEnoughGpus, ViewError)):
                raise _launch_error(node, error) from error
            raise
        return handle

    def _start(
        self,
        node: NodePlan,
        handle: DockerHandle,
        gpus: Mapping[str, int],
        secrets: Mapping[str, str],
    ) -> None:
        """`gpus`: devices, each with the descriptor that claims it for whoever has that."""
        lock = self.launcher.write_down(node, contained=True)
        try:
            make_pipes(handle.folder)
            # Both begin at once: the container takes as long as our own processes.
            started = self.launcher.start(handle.folder, (lock, *gpus.values()))
            try:
                self._contain(node, handle, list(gpus))
                started.hand_over(secrets)
            finally:
                started.give_up()
        finally:
            os.close(lock)

    @contextmanager
    def _gpus(self, node: NodePlan) -> Generator[dict[str, int]]:
        claimed = claim_gpus(
            node.resources.gpus,
            state_dir=self.state_dir,
            environment=self.launcher.environment,
        )
        try:
            yield {gpu.device: descriptor for gpu, descriptor in claimed}
        finally:
            for _, descriptor in claimed:
                os.close(descriptor)

    def find(self, job_id: str) -> Sequence[DockerHandle]:
        job = JobFolder(self.state_dir, job_id)
        return [self._handle(job_id, attempt, rank) for attempt, rank in nodes_of(job)]

    def _handle(self, job_id: str, attempt: int, rank: int) -> DockerHandle:
        return DockerHandle(JobFolder(self.state_dir, job_id), attempt, rank, self.engine)

    def _facts(self) -> dict[str, Any]:
        if not self._info:
            info = self.engine.info()
            refuse_other_kernel(info)
            self._info = info
        return self._info

    def _contain(self, node: NodePlan, handle: DockerHandle, gpus: Sequence[str]) -> None:
        """Create and start it, and write down which it is."""
        record = codec.loads(NodeRecord, handle.folder.record.read_bytes())
        paths = ensure_volumes(node, state_dir=self.state_dir, node=handle.folder)
        image = self._image(node)
        info = self._facts()
        spec = Spec(
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
        note_engine(self.state_dir, self._host)
        if spec.network:
            self._make_network(spec)
        container = self._look_at(self._run(spec, info), spec, image, info)
        write_text(handle.folder.container, codec.dumps(container))

    def _look_at(
        self, made: str, spec: Spec, image: Mapping[str, Any], info: Mapping[str, Any]
    ) -> ContainerRecord:
        """Return the record of a started container, in which nothing of the job runs yet."""
        node = spec.plan
        seen = self._inspect(made, node.rank)
        pid = int(seen["State"]["Pid"])
        try:
            foreign = find_foreign(pid, spec.binds) if pid else None
        except ProcessLookupError:
            self.engine.ask(lambda client: client.wait(made), doing="waited for", rank=node.rank)
            pid, foreign, seen = 0, None, self._inspect(made, node.rank)
        if not pid:
            raise _ended_at_once(node, seen["State"], image, info)
        _refuse_foreign(node, foreign)
        workdir = str(image.get("Config", {}).get("WorkingDir") or "")
        return ContainerRecord(made, pid, workdir, began_at(pid), address_of(seen))

    def _inspect(self, container: str, rank: int) -> dict[str, Any]:
        return self.engine.ask(
            lambda client: client.inspect_container(container), doing="looked at", rank=rank
        )

    def _run(self, spec: Spec, info: Mapping[str, Any]) -> str:
        """The id of the container, which runs."""
        rank = spec.plan.rank
        made = self._create(spec, info)
        try:
            self.engine.ask(lambda client: client.start(made), doing="started", rank=rank)
        except SubstrateError as error:
            if "rlimit" not in str(error) or not self._raises_limits:
                raise
            self._raises_limits = False  # an Engine without that right: its own limits have to do
            note_engine(self.state_dir, self._host, raises_limits=False)
            self.engine.ask(lambda client: client.remove_container(made, force=True), doing="made")
            return self._run(spec, info)
        return made

    def _create(self, spec: Spec, info: Mapping[str, Any]) -> str:
        given = host_arguments(spec, info)
        if not self._raises_limits:
            given["ulimits"] = None

        def create(client: Any) -> str:
            made = client.create_container(
                **create_arguments(spec),
                host_config=client.create_host_config(**given),
                networking_config=_networking(client, spec),
            )
            return str(made["Id"])

        return self.engine.ask(create, doing="created", rank=spec.plan.rank)

    def _image(self, node: NodePlan) -> dict[str, Any]:
        return self.engine.ask(
            lambda client: client.inspect_image(node.image.reference),
            doing="created",
            rank=node.rank,
        )

    def _make_network(self, spec: Spec) -> None:
        """One a gang; the node that comes first makes it."""
        node, name = spec.plan, spec.network

        def make(client: Any) -> None:
            if not client.networks(names=[f"^{name}$"]):
                client.create_network(
                    name,
                    driver="bridge",
                    labels=labels(node.job_id, node.attempt, None, spec.mark),
                    check_duplicate=True,
                )

        self.engine.ask(make, doing="given a network", rank=node.rank)


def make_substrate(
    state_dir: Path,
    *,
    orphan_deadline: float | None,
    docker_host: str = "",
    enforce_limits: bool = False,
    privileges: Privileges | None = None,
) -> DockerSubstrate:
    """For the table of substrates; see DockerSubstrate."""
    told = {"DOCKER_HOST": docker_host} if docker_host else {}
    return DockerSubstrate(
        state_dir,
        orphan_deadline=orphan_deadline,
        environment={**os.environ, **told},
        enforce_limits=enforce_limits,
        privileges=privileges,
    )


def _networking(client: Any, spec: Spec) -> Any:
    if not spec.network:
        return None
    alias = host_name(spec.plan.job_id, spec.plan.rank)
    endpoint = client.create_endpoint_config(aliases=[alias])
    return client.create_networking_config({spec.network: endpoint})


def _ended_at_once(
    node: NodePlan, state: Mapping[str, Any], image: Mapping[str, Any], info: Mapping[str, Any]
) -> SubstrateError:
    """The image's /bin/sh did not live long enough to be asked anything."""
    theirs, ours = image.get("Architecture", ""), str(info.get("Architecture", ""))
    why = str(state.get("Error") or f"its /bin/sh ended with {state.get('ExitCode')}").rstrip(".")
    return SubstrateError(
        f"The container of rank {node.rank} ended before a command could run in it: {why} "
        f"(the image is for {theirs}, the machine is {ours}).",
        substrate=NAME,
        rank=node.rank,
        next_step="Use an image for this machine's processor, with a POSIX /bin/sh in it.",
        cause=Cause.IMAGE_UNUSABLE,
    )


def _refuse_foreign(node: NodePlan, found: Bind | None) -> None:
    """Raise SubstrateError for a foreign folder; nothing of the job has run yet."""
    if found is not None:
        raise SubstrateError(
            f"The container of rank {node.rank} has another folder at {found.target!r} than "
            f"{str(found.source)!r}: something replaced it while the container was started.",
            substrate=NAME,
            rank=node.rank,
            next_step="See which process writes there; the container was removed.",
            cause=Cause.STAGING_FAILED,
        )


def _launched_before(node: NodePlan) -> SubstrateError:
    return SubstrateError(
        f"Node {node.rank} of job {node.job_id}, attempt {node.attempt}, was launched before.",
        substrate=NAME,
        rank=node.rank,
        next_step="Give the next attempt a new number.",
    )


def _launch_error(node: NodePlan, error: Exception) -> SubstrateError:
    missing = isinstance(error, NotEnoughGpus)
    if isinstance(error, FolderRefused):
        return SubstrateError(
            str(error), substrate=NAME, rank=node.rank, cause=Cause.STAGING_FAILED
        )
    step = "The next attempt fetches them again." if isinstance(error, ViewError) else ""
    step = step or ("" if missing else "See that PREFECT_BT_STATE_DIR is writable.")
    return SubstrateError(
        f"Node {node.rank} of job {node.job_id}, attempt {node.attempt}, could not be launched: "
        f"{error}",
        substrate=NAME,
        rank=node.rank,
        next_step=step,
        cause=Cause.GPUS_MISSING if missing else "",
    )
