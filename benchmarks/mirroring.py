"""Who mirrors: ours, `hf download`, s5cmd. Each a fresh process with a fresh target."""

from __future__ import annotations

import os
import resource
import shutil
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from contenders import s5cmd_binary

_OURS = ("PREFECT_BT_", "AWS_", "HF_")
_HF = {
    "HF_HUB_DISABLE_XET": "1",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "HF_HUB_DISABLE_UPDATE_CHECK": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
}


@dataclass(frozen=True)
class Setup:
    """What the command line says; `delay` is seconds before every answer."""

    work: Path
    runs: int = 3
    scale: float = 1.0
    delay: float = 0.0


@dataclass(frozen=True)
class Upstream:
    """Where sources are. `environment` is all that a contender's process is given of it."""

    environment: dict[str, str]
    endpoint: str = ""
    """Of an S3 server; s5cmd wants it as an option."""


def hub_upstream(url: str) -> Upstream:
    return Upstream({**_plain(), **_HF, "HF_ENDPOINT": url})


def bucket_upstream(endpoint: str) -> Upstream:
    told = {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ALLOW_HTTP": "true",
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "testtesttest",
        "AWS_REGION": "us-east-1",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    return Upstream({**_plain(), **told}, endpoint)


def _plain() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith(_OURS)}


@dataclass(frozen=True)
class Machine:
    """A state directory, and a folder store on the same disk, as one host's job has them."""

    root: Path
    store: Path

    @property
    def state(self) -> Path:
        return self.root / "state"

    def environment(self, upstream: Upstream) -> dict[str, str]:
        return {
            **upstream.environment,
            "HF_HOME": str(self.root / "hf"),
            "PREFECT_BT_STATE_DIR": str(self.state),
            "PREFECT_BT_STORE": str(self.store),
        }

    def command(self, source: str) -> list[str]:
        program = str(Path(sys.executable).with_name("prefect-bt"))
        return [program, "weights", "mirror", "--source", source, "-o", "json"]

    def start(self, source: str, upstream: Upstream) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            self.command(source),
            env=self.environment(upstream),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )

    def published(self) -> list[Path]:
        """Folders of files that nodes could mount."""
        return sorted(self.state.glob("weights/trees/*/files"))


def machine(root: Path) -> Machine:
    return Machine(root, root / "store")


@dataclass
class Took:
    """Seconds from start to exit, of the sync of the disk after it, and of the process's CPUs;
    `digests`: of taking the sha256 of what came, where that was not done on the way."""

    seconds: float
    sync: float = 0.0
    cpu: float = 0.0
    digests: float = 0.0


def ours(source: str, upstream: Upstream, at: Machine) -> Took:
    return _timed(at.command(source), at.environment(upstream))


def hf_download(repo_id: str, upstream: Upstream, home: Path) -> Took:
    """As its users run it: into its cache, which is below `home`."""
    command = [str(Path(sys.executable).with_name("hf")), "download", repo_id, "--quiet"]
    return _timed(command, {**upstream.environment, "HF_HOME": str(home)})


def s5cmd(url: str, upstream: Upstream, target: Path) -> Took:
    """`url` is `s3://bucket/prefix`. It hashes nothing: `openssl dgst` does, after it."""
    command = [str(s5cmd_binary()), "--log", "error"]
    if upstream.endpoint:
        command += ["--endpoint-url", upstream.endpoint]
    took = _timed([*command, "cp", f"{url}/*", f"{target}/"], upstream.environment)
    sums = ["find", str(target), "-type", "f", "-exec", "openssl", "dgst", "-sha256", "{}", "+"]
    return replace(took, digests=_timed(sums, upstream.environment).seconds)


def _timed(command: list[str], environment: dict[str, str]) -> Took:
    used = _cpu_of_children()
    began = time.perf_counter()
    ran = subprocess.run(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        check=False,
    )
    seconds = time.perf_counter() - began
    if ran.returncode:
        sys.exit(f"{' '.join(command)} ended with {ran.returncode}; see above.")
    cpu = _cpu_of_children() - used
    began = time.perf_counter()
    os.sync()
    return Took(seconds, time.perf_counter() - began, cpu)


def _cpu_of_children() -> float:
    """Seconds of those that have ended: the servers are not among them."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


@contextmanager
def fresh(folder: Path) -> Iterator[Path]:
    """An empty folder, gone and synced afterwards whatever happens."""
    clear(folder)
    folder.mkdir(parents=True)
    try:
        yield folder
    finally:
        clear(folder)
        os.sync()


def clear(folder: Path) -> None:
    """Delete it; published folders may be read only."""
    if not folder.exists():
        return
    for path, _, _ in os.walk(folder):
        Path(path).chmod(stat.S_IRWXU)
    shutil.rmtree(folder)


@dataclass
class Volume:
    """What lies below some folders: every inode once, links followed for `apparent` alone."""

    files: int = 0
    apparent: int = 0
    on_disk: int = 0
    _seen: set[tuple[int, int]] = field(default_factory=set[tuple[int, int]], repr=False)


def measure(*folders: Path) -> Volume:
    volume = Volume()
    for folder in folders:
        for path in folder.rglob("*"):
            if not path.is_file():
                continue
            volume.files += 1
            volume.apparent += path.stat().st_size
            facts = path.lstat()
            if (facts.st_dev, facts.st_ino) not in volume._seen:
                volume._seen.add((facts.st_dev, facts.st_ino))
                volume.on_disk += facts.st_blocks * 512
    return volume
