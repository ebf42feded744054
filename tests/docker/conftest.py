"""A Docker Engine, an image made of local files, and registries: all real.

`engine` is whoever answers at DOCKER_HOST or the usual socket, else a `dockerd` of our own. Nothing
is pulled from outside. On Debian: `make engines`, or apt-get install docker.io docker-registry
busybox-static.
"""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import docker
import pytest

from tests.e2e.conftest import Machine, served_machine
from tests.shared_service import run_folder, shared_service

from .daemons import Daemon, can_start
from .registry import Registry, program
from .removal import remove_image

if TYPE_CHECKING:
    from .job_site import Site
    from .node_rig import DockerRig

__all__ = ["served_machine"]  # a fixture, as every function here that pytest finds

WORKER = os.environ.get("PYTEST_XDIST_WORKER", str(os.getpid()))
"""In the names of what a fixture brings: the Engine and the registries are all workers'."""
BASE = f"prefect-bt-test/base:{WORKER}"


@pytest.fixture(scope="session")
def own_daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon | None]:
    """The `dockerd` that the tests started; None when one was there that answers."""
    if _answering() is not None:
        yield None
        return
    why = can_start()
    if why:
        pytest.skip(f"no Docker Engine answers, and none can be started: {why}")
    folder = run_folder(tmp_path_factory) / "dockerd"
    with shared_service("tests.docker.daemons:serve", folder) as given:
        yield Daemon(Path(given["folder"]), bridge=given["bridge"])


@pytest.fixture(scope="session")
def engine(own_daemon: Daemon | None) -> Iterator[docker.APIClient]:
    client = own_daemon.client() if own_daemon else _answering()
    assert client is not None
    yield client
    client.close()


def _answering() -> docker.APIClient | None:
    try:
        client = docker.DockerClient.from_env(version="auto", timeout=60).api
        client.ping()
    except (docker.errors.DockerException, OSError):
        return None
    return client


@pytest.fixture(scope="session")
def base_image(engine: docker.APIClient) -> Iterator[str]:
    """BASE: /bin/busybox under all its names, no other file that runs, /bin/sh as command."""
    busybox = shutil.which("busybox")
    if busybox is None or not _is_static(busybox):
        pytest.skip("no static busybox: apt-get install busybox-static")
    repository, _, tag = BASE.partition(":")
    if not engine.images(name=BASE):
        engine.import_image_from_data(
            _root_files(Path(busybox)),
            repository=repository,
            tag=tag,
            changes=["ENV PATH=/bin", 'CMD ["/bin/sh"]', "WORKDIR /"],
        )
    yield BASE
    # Each package of tests that takes this fixture has one of its own, of the same image.
    remove_image(engine, BASE)


def _is_static(program: str) -> bool:
    told = subprocess.run(["ldd", program], capture_output=True, text=True, check=False)
    return "not a dynamic executable" in told.stdout + told.stderr


def _root_files(busybox: Path) -> bytes:
    names = subprocess.run([busybox, "--list"], capture_output=True, text=True, check=True).stdout
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        tar.add(busybox, "bin/busybox")
        for name in names.split():
            if name != "busybox":
                link = tarfile.TarInfo(f"bin/{name}")
                link.type, link.linkname = tarfile.SYMTYPE, "busybox"
                tar.addfile(link)
        for folder in ("tmp", "etc", "root", "proc", "sys", "dev"):
            info = tarfile.TarInfo(folder)
            info.type, info.mode = tarfile.DIRTYPE, 0o1777 if folder == "tmp" else 0o755
            tar.addfile(info)
        _add_file(tar, "etc/passwd", b"root:x:0:0:root:/root:/bin/sh\n")
    return buffer.getvalue()


def _add_file(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size, info.mode = len(data), 0o644
    tar.addfile(info, io.BytesIO(data))


@pytest.fixture
def rig(
    engine: docker.APIClient, own_daemon: Daemon | None, base_image: str, tmp_path: Path
) -> Iterator[DockerRig]:
    """A machine to launch nodes on."""
    from .node_rig import docker_rig  # which needs BASE

    host = own_daemon.address if own_daemon else ""
    with docker_rig(engine, tmp_path, host=host, image=base_image) as made:
        yield made


def build(engine: docker.APIClient, tag: str, *sizes: int, base: str = BASE, **given: str) -> str:
    """The id of an image with a layer of so many random bytes for each of `sizes`."""
    lines = [f"FROM {base}", *(f"COPY {n} /layer-{n}" for n in range(len(sizes)))]
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        _add_file(tar, "Dockerfile", "\n".join(lines).encode())
        for number, size in enumerate(sizes):
            _add_file(tar, str(number), os.urandom(size))
    buffer.seek(0)
    events = engine.build(
        fileobj=buffer, custom_context=True, tag=tag, rm=True, decode=True, **given
    )
    for event in events:
        assert "error" not in event, event
    return str(engine.inspect_image(tag)["Id"])


def push(engine: docker.APIClient, name: str, registry: Registry) -> str:
    """The digest under which the registry has `name`, whose tag is removed here."""
    digest = ""
    for event in engine.push(name, stream=True, decode=True, auth_config=registry.auth):
        assert "error" not in event, event
        digest = event.get("aux", {}).get("Digest", digest)
    engine.remove_image(name, force=True)
    return digest


@pytest.fixture(scope="session")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    """One that wants a login."""
    _need_registry()
    folder = run_folder(tmp_path_factory) / "registry"
    with shared_service("tests.docker.registry:serve_with_login", folder) as given:
        yield Registry(**given)


@pytest.fixture(scope="session")
def open_registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    """One that gives to everybody."""
    _need_registry()
    folder = run_folder(tmp_path_factory) / "open_registry"
    with shared_service("tests.docker.registry:serve_to_all", folder) as given:
        yield Registry(**given)


def _need_registry() -> None:
    if program() is None:
        pytest.skip("no docker-registry: apt-get install docker-registry")
    address = os.environ.get("DOCKER_HOST", "")
    if address and not address.startswith("unix://"):
        pytest.skip(f"the Docker Engine at {address} does not reach a registry on 127.0.0.1")


@pytest.fixture(scope="session")
def site(
    tmp_path_factory: pytest.TempPathFactory,
    engine: docker.APIClient,
    own_daemon: Daemon | None,
    base_image: str,
    served_machine: Machine,
) -> Iterator[Site]:
    from .job_site import running_site

    root = tmp_path_factory.mktemp("docker-machine")
    with running_site(root, engine, own_daemon, base_image, served_machine.api) as site:
        yield site
