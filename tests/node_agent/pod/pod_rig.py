"""A pod without Kubernetes: two processes with a root each, and the folders that they share.

The agent is the real `python -m prefect_bt.node_agent.pod` as its image's user; beside it a shell
runs INIT_SCRIPT as the first process of a PID namespace. Both have the mounts of a pod, as
pod_manifest gives them. It takes root and `unshare`.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path

from prefect_bt import codec
from prefect_bt.host.nodes import pod_layout
from prefect_bt.host.nodes.container_pipes import INIT_SCRIPT, MOUNTED_AT
from prefect_bt.host.state_folder import JobFolder
from prefect_bt.ledger.node_objects import GangObjects
from prefect_bt.ledger.records import NodeStatus
from prefect_bt.ledger.requests import StopRequest
from prefect_bt.logs.line_format import PLATFORM_PREFIX, parse_lines
from prefect_bt.object_store import open_store
from prefect_bt.planning.plan import WeightsPlan
from tests.node_agent.rig import JOB, make_plan, wait_until

ROOT = Path(__file__).parents[3]
STORE, SOURCE = "/bt-store", "/bt-source"
"""Where the agent has the store, and a folder to mirror weights from."""
ENTER = """
set -e
root=$1 base=$2 shell=$3; shift 3
mount --make-rprivate /
mount -t tmpfs -o mode=755 none "$root"
for place in /*; do
  if [ -L "$place" ]; then cp -P "$place" "$root/"
  elif [ -d "$place" ]; then
    case $place in
      /root | /proc | /mnt) ;;  # the volumes of plans are in /mnt, and no folder is made there
      *) mkdir "$root$place"; mount --rbind "$place" "$root$place" ;;
    esac
  fi
done
mkdir "$root/proc"; mount -t proc proc "$root/proc"
case $base in /root/*) mkdir -p "$root$base"; mount --rbind "$base" "$root$base" ;; esac
[ -z "$shell" ] || mount --bind "$shell" "$root/usr/bin/sh"
while [ "$1" != -- ]; do
  mkdir -p "$root$2"; mount --bind "$1" "$root$2"
  case $3 in ro) mount -o remount,bind,ro "$root$2" ;; esac
  shift 3
done
shift
exec chroot "$root" "$@"
"""
"""Build a root of this machine's folders and the mounts (source, target, mode), and enter it."""


def why_not() -> str:
    """Why this machine cannot play a pod; "" if it can."""
    if os.geteuid():
        return "takes root, for namespaces and a second user"
    tried = subprocess.run(
        ["unshare", "-m", "-p", "--fork", "mount", "-t", "tmpfs", "none", "/mnt"],
        capture_output=True,
        text=True,
        check=False,
    )
    return f"unshare is not permitted: {tried.stderr.strip()}" if tried.returncode else ""


@dataclass
class Pod:
    """One pod. `close` ends what is left of it, and says so if something is."""

    folder: Path
    shell: str = ""
    secrets: dict[str, str] = field(default_factory=dict[str, str])
    weights: tuple[WeightsPlan, ...] = ()
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def __post_init__(self) -> None:
        for name in ("secret", "state", "control", "weights", "store", "source", "agent", "image"):
            self._folder(name)
        self.plan = replace(make_plan(self.folder, ()), store=STORE, grace=5.0)
        prefix = GangObjects.of_attempt(None, self.plan.project_id, JOB, 0).prefix
        self.objects = GangObjects(open_store(str(self.folder / "store")), prefix)

    def _folder(self, name: str) -> Path:
        """An empty volume with the agent's group, as fsGroup gives it."""
        path = self.folder / name
        path.mkdir(parents=True, exist_ok=True)
        os.chown(path, pod_layout.AGENT_USER, pod_layout.AGENT_USER)
        path.chmod(0o2777)
        return path

    def volume(self, number: int) -> Path:
        return self._folder(f"volume-{number}")

    def start(self, *commands: str, **changes: object) -> None:
        """Start both containers."""
        self.plan = replace(self.plan, commands=commands, **changes)  # type: ignore[arg-type]
        self.agent = self.start_agent()
        self.container = self.start_container()

    def start_agent(self, *arguments: str) -> subprocess.Popen[bytes]:
        plan = self.plan
        files = {
            pod_layout.PLAN_FILE: codec.dumps(plan),
            pod_layout.WEIGHTS_FILE: json.dumps([codec.encode(one) for one in self.weights]),
            pod_layout.SECRETS_FILE: json.dumps(self.secrets),
            pod_layout.ENVIRONMENT_FILE: json.dumps({"HF_TOKEN": "hf_of_the_agent"}),
        }
        for name, text in files.items():
            (self.folder / "secret" / name).write_text(text)
        names = ("secret", "state", "control", "weights")
        mounts = [(name, f"{pod_layout.ROOT}/{name}", "rw") for name in names]
        mounts += [("store", STORE, "rw"), ("source", SOURCE, "ro")]
        mounts += [
            (self.volume(n).name, str(pod_layout.volume_folder(n)), "rw")
            for n in range(len(plan.volumes))
        ]
        user = str(pod_layout.AGENT_USER)
        identity = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups"]
        variables = ["env", "-i", "HOME=/tmp", f"PATH={os.environ['PATH']}"]
        variables += [f"PYTHONPATH={ROOT}", f"{pod_layout.INDEX_VARIABLE}={plan.rank}"]
        command = [sys.executable, "-m", "prefect_bt.node_agent.pod", *arguments]
        return self._enter("agent", mounts, [*identity, *variables, *command])

    def start_container(self) -> subprocess.Popen[bytes]:
        mounts = [("control", MOUNTED_AT, "ro")]
        mounts += [(self.volume(n).name, v.target, "rw") for n, v in enumerate(self.plan.volumes)]
        variables = [f"{name}={value}" for name, value in self.plan.environment.items()]
        shared = self.plan.checkpoints.directory if self.plan.checkpoints else ""
        folders = [self.plan.workspace.directory, shared]
        command = ["/bin/sh", "-c", INIT_SCRIPT, "prefect-bt", *folders]
        given = ["env", "-i", "PATH=/usr/bin:/bin", *variables, *command]
        return self._enter("image", mounts, given, shell=self.shell)

    def _enter(
        self, root: str, mounts: list[tuple[str, str, str]], command: list[str], shell: str = ""
    ) -> subprocess.Popen[bytes]:
        places = [
            word
            for source, target, mode in mounts
            for word in (str(self.folder / source), target, mode)
        ]
        unshare = ["unshare", "-m", "-p", "--fork", "--kill-child", "/bin/bash", "-c", ENTER, "-"]
        base = [str(self.folder / root), sys.base_prefix, shutil.which(shell) or ""]
        with (self.folder / f"{root}.txt").open("ab") as output:
            process = subprocess.Popen(
                [*unshare, *base, *places, "--", *command], stdout=output, stderr=output
            )
        self.processes.append(process)
        return process

    # -- looking --------------------------------------------------------------------------------

    def status(self) -> NodeStatus:
        return self.objects.read_latest_status(0) or NodeStatus(0)

    def log(self) -> list[str]:
        self.objects.read_latest_status(0)
        data = b""
        while chunk := self.objects.read_log(0, offset=len(data), limit=1 << 20):
            data += chunk
        return [line.message for line in parse_lines(data)]

    def own_lines(self) -> list[str]:
        return [line for line in self.log() if not line.startswith(PLATFORM_PREFIX)]

    def wait_line(self, text: str) -> None:
        """Wait for a line in the pod, where it is sooner than in the store."""
        state = self.folder / "state"
        paths = [state / "staging.log", JobFolder(state, JOB).node_folder(0, 0).log]

        def has_line() -> bool:
            logs = [parse_lines(path.read_bytes()) for path in paths if path.exists()]
            messages = [line.message for lines in logs for line in lines]
            return any(text in m for m in messages if not m.startswith(PLATFORM_PREFIX))

        wait_until(lambda: has_line() or self.status().is_over, f"no line {text!r}")
        assert has_line(), (text, self.log(), self.said())

    def said(self) -> str:
        """Return what the two processes wrote to their own output."""
        texts = [self.folder / "agent.txt", self.folder / "image.txt"]
        texts += (self.folder / "state").rglob("agent.log")
        return "\n".join(path.read_text(errors="replace") for path in texts if path.exists())

    def ask(self, **request: object) -> None:
        self.objects.requests.write(0, StopRequest(**request))  # type: ignore[arg-type]

    def signal(self, process: subprocess.Popen[bytes], number: signal.Signals) -> None:
        """Send it to the first process of the container, as a kubelet does."""
        [first] = children_of(process.pid)
        os.kill(first, number)

    def wait(self) -> tuple[int, NodeStatus]:
        """Return the agent container's exit code and the last status, once both are over."""
        code = self.agent.wait(600)
        status = self.status()
        assert status.is_over, (status, self.log(), self.said())
        self.container.wait(600)
        return code, status

    def close(self) -> None:
        for process in self.processes:
            for first in children_of(process.pid):
                os.kill(first, signal.SIGKILL)  # and with it, all of its namespace
            process.wait(600)


def run(pod: Pod, *commands: str, **changes: object) -> tuple[int, NodeStatus]:
    pod.start(*commands, **changes)
    return pod.wait()


def children_of(pid: int) -> list[int]:
    """Return its children; none if it is gone."""
    try:
        return list(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))
    except FileNotFoundError:
        return []
