"""A Docker Engine of the tests' own: `dockerd` with its folders, socket and bridge in one place."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import docker

_PDEATHSIG = 1
_POOLS = range(100, 200)
"""Of which each daemon has 10.<one>.0.0/16, so that none share addresses."""


def can_start() -> str:
    """Why no `dockerd` can be started here; empty when one can."""
    if os.geteuid() != 0:
        return "dockerd needs root"
    for program in ("dockerd", "ip"):
        if _which(program) is None:
            return f"{program} is not installed"
    return ""


class Daemon:
    """One `dockerd`; `restart` and `kill` are for tests of what outlives it."""

    def __init__(self, folder: Path, *, bridge: str) -> None:
        self.folder, self.bridge = folder, bridge
        self.address = f"unix://{folder}/docker.sock"
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> str:
        return (self.folder / "dockerd.log").read_text(errors="replace")

    def start(self) -> None:
        """Returns when it answers."""
        # With its old bridge in there, it would take the machine's away when it starts again.
        (self.folder / "data/network/files/local-kv.db").unlink(missing_ok=True)
        # Rules would outlive it: the one that is needed, running_daemon adds and takes away.
        command = [_which("dockerd") or "dockerd", "--iptables=false", "--ip-forward=false"]
        command += ["--data-root", f"{self.folder}/data", "--exec-root", f"{self.folder}/exec"]
        command += ["--pidfile", f"{self.folder}/pid", "-H", self.address]
        # Never `none`: with that a daemon removes the bridge of the machine's own.
        command += ["--bridge", self.bridge, "--shutdown-timeout", "5"]
        command += ["--default-address-pool", f"base={_pool(self.bridge)},size=24"]
        with (self.folder / "dockerd.log").open("ab") as log:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=_die_with_parent,  # noqa: PLW1509 (calls one C function)
            )
        self._await()

    def client(self) -> docker.APIClient:
        return docker.APIClient(self.address, version="auto", timeout=60)

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def _end(self, how: signal.Signals) -> None:
        if self.process is None:
            return
        self.process.send_signal(how)
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process = None

    def _await(self) -> None:
        for _ in range(600):
            assert self.process is not None
            assert self.process.poll() is None, f"dockerd ended:\n{self.log[-2000:]}"
            with contextlib.suppress(docker.errors.DockerException, OSError):
                client = self.client()
                client.ping()
                client.close()
                return
            time.sleep(0.1)
        raise AssertionError(f"dockerd does not answer:\n{self.log[-2000:]}")


@contextlib.contextmanager
def running_daemon(*, disk: str = "") -> Iterator[Daemon]:
    """A daemon until the end of the block; then its processes, mounts and bridge are gone.

    `disk`: the size of a file system of its own for its data, such as "10m".
    """
    folder = Path(tempfile.mkdtemp(prefix="pbt-docker-"))
    (folder / "data").mkdir()
    bridge = _claimed_bridge()
    daemon = Daemon(folder, bridge=bridge)
    try:
        if disk:
            _run("mount", "-t", "tmpfs", "-o", f"size={disk}", "none", f"{folder}/data")
        _run("ip", "address", "add", _gateway(bridge), "dev", bridge)
        _run("ip", "link", "set", bridge, "up")
        _try(*_forwarding("-I", bridge))
        daemon.start()
        yield daemon
    finally:
        _kill_containers(folder)
        daemon.stop()
        _kill_rest(folder)
        _try(*_forwarding("-D", bridge))
        _try("ip", "link", "delete", bridge)
        _unmount_all(folder)
        shutil.rmtree(folder)


@contextlib.contextmanager
def serve(_: Path) -> Iterator[dict[str, str]]:
    """The daemon of a whole test run, for tests.shared_service."""
    with running_daemon() as daemon:
        yield {"folder": str(daemon.folder), "bridge": daemon.bridge}


def _forwarding(verb: str, bridge: str) -> tuple[str, ...]:
    """Another daemon may have made the kernel drop what bridges forward."""
    pool = _pool(bridge)
    return ("iptables", "-w", verb, "FORWARD", "-s", pool, "-d", pool, "-j", "ACCEPT")


def _kill_containers(folder: Path) -> None:
    """Those that run, also when their daemon is gone; each would be waited for, for ten seconds."""
    for path in folder.glob("exec/runtime-*/moby/*/state.json"):
        with contextlib.suppress(OSError, ValueError, KeyError):
            os.kill(json.loads(path.read_text())["init_process_pid"], signal.SIGKILL)


def _kill_rest(folder: Path) -> None:
    """containerd and its shims, if a daemon was killed: their arguments name the folder."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            first, _, arguments = path.read_bytes().partition(b"\0")
            if b"containerd" in first and bytes(folder) in arguments:
                os.kill(int(path.parent.name), signal.SIGKILL)


def _unmount_all(folder: Path) -> None:
    for where in reversed(_mounts(folder)):
        _try("umount", where)
    for where in reversed(_mounts(folder)):
        _try("umount", "--lazy", where)
    assert not _mounts(folder)


def _mounts(folder: Path) -> list[str]:
    lines = Path("/proc/self/mounts").read_text().splitlines()
    return [line.split()[1] for line in lines if line.split()[1].startswith(f"{folder}/")]


def _claimed_bridge() -> str:
    """A new one, named after its pool: the kernel has each name once, so a pool has one daemon."""
    ip, begin = _which("ip") or "ip", os.getpid() % len(_POOLS)
    said = ""
    for number in (*_POOLS[begin:], *_POOLS[:begin]):
        bridge = f"pbt{number}"
        if f"10.{number}." in subprocess.check_output([ip, "-4", "route"], text=True):
            continue
        command = [ip, "link", "add", "name", bridge, "type", "bridge"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            return bridge
        said = done.stderr
        if "exists" not in said:
            break
    raise AssertionError(f"no bridge for a dockerd; `ip link delete` those left over: {said}")


def _pool(bridge: str) -> str:
    return f"10.{bridge.removeprefix('pbt')}.0.0/16"


def _gateway(bridge: str) -> str:
    return _pool(bridge).replace(".0.0/16", ".255.1/24")


def _which(program: str) -> str | None:
    return shutil.which(program, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")


def _run(*command: str) -> None:
    subprocess.run([_which(command[0]) or command[0], *command[1:]], check=True)


def _try(*command: str) -> None:
    if program := _which(command[0]):
        subprocess.run([program, *command[1:]], check=False, capture_output=True)


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PDEATHSIG, signal.SIGTERM)
