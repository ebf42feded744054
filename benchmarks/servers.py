"""The S3 servers that uploads are measured against, each a process of its own."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

_KEY, _SECRET = "test", "testtesttest"
_BUCKET = "bench"


@dataclass(frozen=True)
class Server:
    """`endpoint` is empty for AWS itself; `folder` is the bucket where the server has one."""

    name: str
    endpoint: str
    bucket: str
    environment: dict[str, str]
    folder: Path | None = None

    def client(self):
        import boto3

        kept = {k: v for k, v in self.environment.items() if k.startswith("AWS_")}
        os.environ.update(kept)
        return boto3.client("s3", endpoint_url=self.endpoint or None)

    def clear(self, prefix: str) -> None:
        """Delete all objects under `prefix`; what a server that keeps folders wrote is synced."""
        if self.folder is not None:
            shutil.rmtree(self.folder / prefix, ignore_errors=True)
            os.sync()
            return
        client = self.client()
        pages = client.get_paginator("list_objects_v2").paginate(Bucket=self.bucket, Prefix=prefix)
        for page in pages:
            for one in page.get("Contents", []):
                client.delete_object(Bucket=self.bucket, Key=one["Key"])

    def count(self, prefix: str) -> tuple[int, int]:
        """Objects and bytes under `prefix`."""
        pages = self.client().get_paginator("list_objects_v2")
        sizes = [
            one["Size"]
            for page in pages.paginate(Bucket=self.bucket, Prefix=prefix)
            for one in page.get("Contents", [])
        ]
        return len(sizes), sum(sizes)


@contextmanager
def serving(kind: str, root: Path, *, endpoint: str = "", bucket: str = "") -> Iterator[Server]:
    """A server of `kind` (rclone, moto), or the one at `endpoint`, with a bucket to write to."""
    if endpoint or bucket:
        kept = {"AWS_ENDPOINT_URL": endpoint} if endpoint else {}
        yield Server(endpoint or "AWS", endpoint, bucket, {**os.environ, **kept})
        return
    port = _free_port()
    address = f"127.0.0.1:{port}"
    start = _rclone if kind == "rclone" else _moto
    with (root / f"{kind}.log").open("wb") as log:
        process, folder = start(address, root, log)
        try:
            server = Server(kind, f"http://{address}", _BUCKET, _environment(address), folder)
            _await(port, process)
            if folder is None:
                server.client().create_bucket(Bucket=_BUCKET)
            yield server
        finally:
            process.kill()
            process.wait()


def _rclone(address: str, root: Path, log: IO[bytes]) -> tuple[subprocess.Popen[bytes], Path]:
    folder = root / "served" / _BUCKET
    folder.mkdir(parents=True)
    command = [_tool("rclone"), "serve", "s3", "--addr", address, "--auth-key"]
    command += [f"{_KEY},{_SECRET}", "--vfs-cache-mode", "off", "--dir-cache-time", "1s"]
    command += ["--config", str(root / "rclone.conf"), str(folder.parent)]
    return subprocess.Popen(command, stdout=log, stderr=log), folder


def _moto(address: str, root: Path, log: IO[bytes]) -> tuple[subprocess.Popen[bytes], None]:
    host, _, port = address.partition(":")
    command = [sys.executable, "-m", "moto.server", "-H", host, "-p", port]
    return subprocess.Popen(command, stdout=log, stderr=log), None


def _environment(address: str) -> dict[str, str]:
    return {
        **{k: v for k, v in os.environ.items() if not k.startswith("AWS_")},
        "AWS_ENDPOINT_URL": f"http://{address}",
        "AWS_ACCESS_KEY_ID": _KEY,
        "AWS_SECRET_ACCESS_KEY": _SECRET,
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
    }


def _await(port: int, process: subprocess.Popen[bytes]) -> None:
    for _ in range(300):
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            with suppress(OSError):
                urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=2).close()
            return
        if process.poll() is not None:
            break
        time.sleep(0.1)
    sys.exit("The S3 server did not start; its log is in the work folder.")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _tool(name: str) -> str:
    beside = Path(sys.executable).parent / name
    found = str(beside) if beside.exists() else shutil.which(name)
    if not found:
        sys.exit(f"{name} is not installed: pip install 'prefect-bt[bench]'.")
    return found
