"""A real registry: Debian's `docker-registry` on 127.0.0.1, and a line to it that can be cut."""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

from tests.ports import free_port

USER, PASSWORD = "someone", "right-password"
_HTPASSWD = f"{USER}:$2y$04$abcdefghijklmnopqrstuuS80hwFD6gSIL20SCUGvmL7S939BjOHW\n"
"""PASSWORD with bcrypt, which is all that the registry takes."""


def program() -> str | None:
    return shutil.which("docker-registry")


@dataclass
class Registry:
    """`host` is what stands before a repository's name; `login` what a secret holds."""

    port: int
    login: str = ""

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def auth(self) -> dict[str, str] | None:
        """As the SDK's push takes it."""
        if not self.login:
            return {}
        user, _, password = self.login.partition(":")
        return {"username": user, "password": password}


@contextlib.contextmanager
def running_registry(
    folder: Path, *, with_login: bool, address: str = "127.0.0.1", tls: Path | None = None
) -> Iterator[Registry]:
    """`tls` is the file of a certificate and its key."""
    port = free_port()
    http: dict[str, object] = {"addr": f"{address}:{port}"}
    if tls:
        http["tls"] = {"certificate": str(tls), "key": str(tls)}
    config: dict[str, object] = {
        "version": "0.1",
        "log": {"level": "error"},
        "storage": {"filesystem": {"rootdirectory": str(folder / "stored")}},
        "http": http,
    }
    if with_login:
        (folder / "htpasswd").write_text(_HTPASSWD)
        config["auth"] = {"htpasswd": {"realm": "test", "path": str(folder / "htpasswd")}}
    (folder / "config.yml").write_text(json.dumps(config))  # JSON is YAML
    with (folder / "registry.log").open("wb") as log:
        process = subprocess.Popen(
            [program() or "docker-registry", "serve", str(folder / "config.yml")],
            stdout=log,
            stderr=log,
        )
    try:
        _await(port, process)
        yield Registry(port, f"{USER}:{PASSWORD}" if with_login else "")
    finally:
        process.kill()
        process.wait()


@contextlib.contextmanager
def serve_with_login(folder: Path) -> Iterator[dict[str, object]]:
    """A Registry's fields, for tests.shared_service."""
    with running_registry(folder, with_login=True) as registry:
        yield asdict(registry)


@contextlib.contextmanager
def serve_to_all(folder: Path) -> Iterator[dict[str, object]]:
    """A Registry's fields, for tests.shared_service."""
    with running_registry(folder, with_login=False) as registry:
        yield asdict(registry)


def _await(port: int, process: subprocess.Popen[bytes]) -> None:
    for _ in range(6000):
        assert process.poll() is None, "docker-registry ended"
        with contextlib.suppress(OSError):
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        time.sleep(0.05)
    raise AssertionError("docker-registry does not answer")


@dataclass
class Line:
    """A TCP proxy. After `allowance` bytes from the registry it forwards no more; None: goes on.

    A connection that is cut stays open, as one does when a firewall forgot it.
    """

    to: int
    allowance: int | None = None
    port: int = 0
    cut: threading.Event = field(default_factory=threading.Event)
    """Set once something was held back."""
    ended: threading.Event = field(default_factory=threading.Event)
    """Set once a connection was closed by either side after that."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.port}"

    def serve(self, listener: socket.socket) -> None:
        while True:
            try:
                near, _ = listener.accept()
            except OSError:
                return
            far = socket.create_connection(("127.0.0.1", self.to))
            for source, sink, down in ((near, far, False), (far, near, True)):
                threading.Thread(target=self._pump, args=(source, sink, down), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket, down: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(16384):
                if down:
                    self._await_allowance(len(data), sink)
                sink.sendall(data)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        if down and self.cut.is_set():
            self.ended.set()

    def _await_allowance(self, size: int, sink: socket.socket) -> None:
        """OSError when the other end has hung up meanwhile."""
        with self._lock:
            if self.allowance is not None:
                self.allowance -= size
        while self.allowance is not None and self.allowance < 0:
            self.cut.set()
            sink.getpeername()
            time.sleep(0.02)


@contextlib.contextmanager
def line_to(registry: Registry) -> Iterator[Line]:
    line = Line(registry.port)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        line.port = listener.getsockname()[1]
        threading.Thread(target=line.serve, args=(listener,), daemon=True).start()
        yield line
        listener.shutdown(socket.SHUT_RDWR)


def put_manifest(
    registry: Registry, repository: str, tag: str, manifest: dict[str, object]
) -> None:
    """Straight to the registry, for what an Engine would not push."""
    url = f"http://{registry.host}/v2/{repository}/manifests/{tag}"
    body, kind = json.dumps(manifest).encode(), str(manifest["mediaType"])
    request = urllib.request.Request(url, body, {"Content-Type": kind}, method="PUT")
    urllib.request.urlopen(request, timeout=200).close()
