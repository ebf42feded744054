"""A machine whose jobs run in containers: a store, a state folder, a Prefect server, an Engine."""

from __future__ import annotations

import json
import textwrap
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import docker

from tests.e2e.conftest import Machine, end_processes, machine_environment

from .daemons import Daemon
from .removal import find_networks

CONFIG = """
import json
from pathlib import Path
from truss.base.truss_config import DockerAuthType
from truss_train import definitions as d

given = json.loads((Path(__file__).parent / "given.json").read_text())
auth = d.DockerAuth(
    auth_method=DockerAuthType.REGISTRY_SECRET,
    registry=given["registry"],
    registry_secret_docker_auth=d.RegistrySecretDockerAuth(
        secret_ref=d.SecretReference(name="registry_login")
    ),
) if given["registry"] else None
project = d.TrainingProject(
    name="in containers",
    job=d.TrainingJob(
        image=d.Image(base_image=given["image"], docker_auth=auth),
        compute=d.Compute(node_count=given["nodes"], memory="128Mi"),
        runtime=d.Runtime(
            start_commands=["/bin/sh -c 'chmod +x ./run.sh && ./run.sh'"],
            checkpointing_config=d.CheckpointingConfig(enabled=True),
        ),
    ),
)
"""


@dataclass
class Site:
    machine: Machine
    engine: docker.APIClient
    image: str
    """Of jobs that name none."""

    def folder(self, run_sh: str, *, image: str = "", nodes: int = 1, registry: str = "") -> Path:
        folder = self.machine.root / f"work-{time.monotonic_ns()}"
        folder.mkdir()
        (folder / "config.py").write_text(CONFIG)
        given = {"image": image or self.image, "nodes": nodes, "registry": registry}
        (folder / "given.json").write_text(json.dumps(given))
        (folder / "run.sh").write_text(textwrap.dedent(run_sh))
        return folder / "config.py"

    def containers(self, job_id: str) -> list[str]:
        label = {"label": f"prefect-bt/job-id={job_id}"}
        return [one["Id"] for one in self.engine.containers(all=True, filters=label)]

    def nothing_left(self, job_id: str) -> None:
        self.machine.nothing_left(job_id)
        assert self.containers(job_id) == []
        assert find_networks(self.engine, {"label": f"prefect-bt/job-id={job_id}"}) == []


@contextmanager
def running_site(
    root: Path, engine: docker.APIClient, own: Daemon | None, image: str, api: dict[str, str]
) -> Iterator[Site]:
    """Create a machine that uses the Prefect server of `api`, variables that Prefect reads."""
    address = {"DOCKER_HOST": own.address} if own else {}
    environment = {**machine_environment(root), "PREFECT_BT_SUBSTRATE": "docker", **api, **address}
    machine = Machine(root, environment)
    yield Site(machine, engine, image)
    end_processes(machine)
