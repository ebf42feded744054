"""The image of hostile jobs: BASE, with the Python of this machine without its packages."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
import sysconfig
import tarfile
from pathlib import Path

import docker

from tests.docker.conftest import BASE
from tests.docker.node_rig import archive

LEFT_OUT = {"__pycache__", "test", "site-packages", "dist-packages", "idlelib", "ensurepip"}


def python_image(engine: docker.APIClient, worker: str) -> str:
    """Build the image; return its name."""
    python = Path(os.path.realpath(getattr(sys, "_base_executable", sys.executable)))
    libraries = Path(sysconfig.get_path("stdlib"))
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        tar.add(python, str(python))
        tar.add(libraries, str(libraries), filter=_needed)
        for path in sorted(_linked(python, *libraries.glob("lib-dynload/*.so"))):
            tar.add(os.path.realpath(path), path)
    lines = [f"FROM {BASE}", "ADD python.tar /"]
    if str(python) != "/bin/python3":
        lines.append(f"RUN /bin/ln -sf {python} /bin/python3")
    files = {"Dockerfile": "\n".join(lines).encode(), "python.tar": buffer.getvalue()}
    tag = f"prefect-bt-test/hostile:{worker}"
    context = io.BytesIO(archive(files))
    for event in engine.build(
        fileobj=context, custom_context=True, tag=tag, rm=True, decode=True, network_mode="none"
    ):
        assert "error" not in event, event
    return tag


def _needed(info: tarfile.TarInfo) -> tarfile.TarInfo | None:
    path = Path(info.name)
    return None if path.name in LEFT_OUT or path.name.startswith("config-") else info


def _linked(*programs: Path) -> set[str]:
    """Return the libraries that the programs are linked with."""
    told = subprocess.run(["ldd", *programs], capture_output=True, text=True, check=False).stdout
    return set(re.findall(r"(?:=> )?(/\S+) \(0x", told))
