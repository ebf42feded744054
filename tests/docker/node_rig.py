"""Nodes in containers for tests: a machine to launch them on, and images of local files."""

from __future__ import annotations

import io
import os
import re
import shutil
import subprocess
import tarfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import docker

from prefect_bt import codec
from prefect_bt.host.nodes.container_pipes import (
    INIT_SCRIPT,
    MOUNTED_AT,
    ContainerRecord,
    create_pipes,
    open_pipes,
)
from prefect_bt.host.processes import find_marked_processes, read_start_time
from prefect_bt.host.state_folder import JobFolder, NodeFolder, state_dir_id
from prefect_bt.ledger.records import NodeStatus
from prefect_bt.node_agent.commands.container_runner import ContainerRunner
from prefect_bt.node_agent.commands.runner import ExitStatus
from prefect_bt.planning.plan import ImagePlan, NodePlan
from prefect_bt.substrates.docker.container_arguments import container_name
from prefect_bt.substrates.docker.node_handle import DockerNodeHandle
from prefect_bt.substrates.docker.substrate import DockerContainerSubstrate
from tests.node_agent.rig import make_plan, mark_of, own_lines, wait_over, wait_until

from .conftest import BASE
from .removal import find_networks

WORKER = os.environ.get("PYTEST_XDIST_WORKER", "1")


@dataclass
class DockerRig:
    """A state folder and an Engine. `close` removes every node and looks for what is left."""

    state: Path
    client: docker.APIClient
    host: str
    job: str
    image: str = BASE
    left: list[tuple[DockerNodeHandle, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.substrate = self.reopen()

    def reopen(self, **given: Any) -> DockerContainerSubstrate:
        """Open the substrate again with these options."""
        environment = {**os.environ, **({"DOCKER_HOST": self.host} if self.host else {})}
        return DockerContainerSubstrate(self.state, environment=environment, **given)

    def plan(self, *commands: str, **changes: Any) -> NodePlan:
        image = ImagePlan(changes.pop("image", self.image))
        return replace(make_plan(self.state, commands), job_id=self.job, image=image, **changes)

    def launch(
        self, *commands: str, secrets: Mapping[str, str] | None = None, **changes: Any
    ) -> DockerNodeHandle:
        return self.launch_plan(self.plan(*commands, **changes), secrets)

    def launch_plan(
        self, plan: NodePlan, secrets: Mapping[str, str] | None = None
    ) -> DockerNodeHandle:
        handle = self.substrate.launch_node(plan, secrets=secrets or {})
        self.left.append((handle, mark_of(handle)))
        return handle

    def run(self, *commands: str, **options: Any) -> tuple[NodeStatus, list[str]]:
        """Launch and wait: the last status and the commands' own lines."""
        handle = self.launch(*commands, **options)
        return wait_over(handle), own_lines(handle)

    def inspect(self, handle: DockerNodeHandle) -> dict[str, Any]:
        return self.client.inspect_container(container_name(mark_of(handle)))

    def traces(self) -> list[object]:
        """What is left on the Engine and in the state folder."""
        if not self.state.exists():
            return []
        mine = {"label": f"prefect-bt/job-id={self.job}", "name": state_dir_id(self.state)}
        found: list[object] = [*self.client.containers(all=True, filters=mine)]
        found += find_networks(self.client, mine)
        job = JobFolder(self.state, self.job).path
        return [*found, *([job] if job.exists() else [])]

    def close(self) -> None:
        for handle, mark in self.left:
            root = handle.folder.root
            handle.remove()
            assert find_marked_processes(mark, root) == []
        assert self.traces() == []


@contextmanager
def docker_rig(
    client: docker.APIClient, folder: Path, *, host: str = "", image: str = BASE
) -> Iterator[DockerRig]:
    """Its job's id is of the test alone, whose folder it is."""
    job = f"{zlib.crc32(f'{WORKER}{folder}'.encode()):08x}"[:7]
    rig = DockerRig(folder / "state", client, host, job, image)
    yield rig
    rig.close()


@dataclass
class Bare:
    """A container and its orders, without a node around it."""

    container: ContainerRunner
    workspace: Path
    printed: str = ""

    def run(self, command: str) -> tuple[ExitStatus, str]:
        """How the command ended and what it printed."""
        self.container.start(command)
        return self.finish()

    def finish(self) -> tuple[ExitStatus, str]:
        """Of the command that runs."""
        wait_until(self._turn)
        ended = self.container.exit_status
        assert ended is not None
        self._read()
        printed, self.printed = self.printed, ""
        return ended, printed

    def _turn(self) -> bool:
        self._read()
        self.container.poll()
        return self.container.exit_status is not None

    def _read(self) -> None:
        with suppress(BlockingIOError):
            while data := os.read(self.container.output, 1 << 16):
                self.printed += data.decode()


@contextmanager
def bare_container(client: docker.APIClient, image: str, folder: Path) -> Iterator[Bare]:
    """Its commands run in `folder`/workspace, which they see as /workspace."""
    node, workspace = NodeFolder(folder), folder / "workspace"
    workspace.mkdir()
    create_pipes(node)
    binds = [f"{node.control}:{MOUNTED_AT}:ro", f"{workspace}:/workspace"]
    pipes = open_pipes(node)
    made = client.create_container(
        image,
        entrypoint=["/bin/sh", "-c", INIT_SCRIPT, "prefect-bt"],
        command=["/workspace"],
        host_config=client.create_host_config(binds=binds, network_mode="none"),
    )["Id"]
    try:
        client.start(made)
        pid = client.inspect_container(made)["State"]["Pid"]
        container = ContainerRunner(ContainerRecord(made, pid, "", read_start_time(pid)), pipes)
        yield Bare(container, workspace)
        container.close()
        wait_until(lambda: _is_gone(container), "the container did not end")
    finally:
        client.remove_container(made, force=True)
        for descriptor in pipes:
            os.close(descriptor)


def _is_gone(container: ContainerRunner) -> bool:
    container.poll()
    return container.gone


def record_of(handle: DockerNodeHandle) -> ContainerRecord:
    return codec.loads(ContainerRecord, handle.folder.container_record.read_bytes())


def wait_file(path: Path) -> str:
    """Its text, once there is some."""
    wait_until(lambda: path.exists() and path.read_text().strip(), f"nothing in {path}")
    return path.read_text().strip()


def archive(files: Mapping[str, bytes | Path], links: Mapping[str, str] | None = None) -> bytes:
    """A tar of a root: bytes, or copies of files of this machine; `links` by where they lie."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, content in files.items():
            data = content.read_bytes() if isinstance(content, Path) else content
            info = tarfile.TarInfo(name)
            info.size, info.mode = len(data), 0o755
            tar.addfile(info, io.BytesIO(data))
        for name, target in (links or {}).items():
            info = tarfile.TarInfo(name)
            info.type, info.linkname = tarfile.SYMTYPE, target
            tar.addfile(info)
    return buffer.getvalue()


def import_image(
    client: docker.APIClient,
    name: str,
    files: Mapping[str, bytes | Path],
    *,
    links: Mapping[str, str] | None = None,
    changes: tuple[str, ...] = ("ENV PATH=/bin",),
) -> str:
    """An image of these files alone; its name, which no other worker uses."""
    tag = f"{WORKER}-{os.getpid()}"
    repository = f"prefect-bt-test/{name}"
    client.import_image_from_data(
        archive(files, links), repository=repository, tag=tag, changes=list(changes)
    )
    return f"{repository}:{tag}"


def build_image(
    client: docker.APIClient, name: str, files: Mapping[str, bytes], *lines: str
) -> str:
    """On BASE, with `files` at their paths; its name, which no other worker uses."""
    copies = [f"COPY {path} /{path}" for path in files]
    text = "\n".join([f"FROM {BASE}", *copies, *lines])
    context = archive({"Dockerfile": text.encode(), **files})
    tag = f"prefect-bt-test/{name}:{WORKER}-{os.getpid()}"
    events = client.build(
        fileobj=io.BytesIO(context), custom_context=True, tag=tag, rm=True, decode=True
    )
    for event in events:
        assert "error" not in event, event
    return tag


def shell_files(shell: str) -> dict[str, bytes | Path] | None:
    """A shell of this machine as /bin/sh, with its libraries; None where there is none."""
    found = shutil.which(shell)
    if found is None:
        return None
    told = subprocess.run(["ldd", found], capture_output=True, text=True, check=False).stdout
    libraries = re.findall(r"(?:=> )?(/\S+) \(0x", told)
    return {"bin/sh": Path(found), **{path.lstrip("/"): Path(path) for path in libraries}}
