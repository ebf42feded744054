"""A machine as a user has it: a store, a state folder, a Prefect server, the real command line."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path
from typing import Any
from unittest import mock

import psutil
import pytest

from prefect_bt.cli.app import main as command_line
from prefect_bt.garbage.looking import look_for_garbage
from prefect_bt.garbage.words import LeftOver
from prefect_bt.jobs import open_ledger
from prefect_bt.ledger import Ledger
from prefect_bt.records import JobState
from prefect_bt.settings import Settings

CONFIG = """
import json, os
from pathlib import Path
from truss_train import definitions as d

given = json.loads((Path(__file__).parent / "given.json").read_text())
environment = {
    k: d.SecretReference(name=v["name"]) if isinstance(v, dict) else v
    for k, v in given.get("env", {}).items()
}
project = d.TrainingProject(
    name=given.get("project", "e2e"),
    job=d.TrainingJob(
        image=d.Image(base_image="none"),
        compute=d.Compute(node_count=given.get("nodes", 1), memory="64Mi"),
        runtime=d.Runtime(
            start_commands=given.get("commands", ["/bin/sh -c 'chmod +x ./run.sh && ./run.sh'"]),
            environment_variables=environment,
            checkpointing_config=d.CheckpointingConfig(enabled=given.get("checkpointing", True)),
            cache_config=d.CacheConfig(enabled=given.get("cache", False)),
        ),
    ),
)
"""


LENIENCE = 3
"""A busy machine has that much longer than a test says."""


@dataclass
class Machine:
    root: Path
    environment: dict[str, str]
    known_garbage: set[str] = field(default_factory=set[str])
    """What failed one test already."""

    @property
    def ledger(self) -> Ledger:
        return open_ledger(str(self.root / "store"))

    @property
    def state_dir(self) -> Path:
        return self.root / "state"

    def folder(self, run_sh: str, **given: Any) -> Path:
        """A training folder; `given` feeds its config."""
        folder = self.root / f"work-{time.monotonic_ns()}"
        folder.mkdir()
        (folder / "config.py").write_text(CONFIG)
        (folder / "given.json").write_text(json.dumps(given))
        (folder / "run.sh").write_text(textwrap.dedent(run_sh))
        return folder / "config.py"

    def run(
        self, *words: str, check: bool = True, **extra: str
    ) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            self.command(*words),
            env={**self.environment, **extra},
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        if check and done.returncode != 0:
            raise AssertionError(f"{words} ended with {done.returncode}:\n{done.stderr}")
        return done

    def command(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "prefect_bt.cli.entry", *words]

    def push(self, config: Path, *words: str, **extra: str) -> dict[str, Any]:
        """Push and return at once; the job's document."""
        return json.loads(self.run("push", str(config), *words, "-o", "json", **extra).stdout)

    def push_wait(self, config: Path, *words: str, **extra: str) -> tuple[int, dict[str, Any]]:
        done = self.run("push", str(config), "--wait", "-o", "json", *words, check=False, **extra)
        assert done.stdout, done.stderr
        return done.returncode, json.loads(done.stdout)

    def view(self, job_id: str) -> dict[str, Any]:
        return json.loads(self.look(job_id, "view", "--job-id", job_id, "-o", "json"))

    def logs(self, job_id: str) -> str:
        return self.look(job_id, "logs", "--job-id", job_id)

    def look(self, job_id: str, *words: str) -> str:
        """As `run`, in this process, where a command starts a second sooner; its output.

        For a job that waits, a command may ask Prefect, which keeps a process's first settings; and
        what is replaced here is the whole process's, so no other thread may be at it.
        """
        alone = threading.current_thread() is threading.main_thread()
        if not alone or self.ledger.state(job_id) is JobState.PENDING:
            return self.run(*words).stdout
        out, errors = StringIO(), StringIO()
        with (
            mock.patch.dict(os.environ, self.environment, clear=True),
            redirect_stdout(out),
            redirect_stderr(errors),
        ):
            code = command_line(words)
        if code != 0:
            raise AssertionError(f"{words} ended with {code}:\n{errors.getvalue()}")
        return out.getvalue()

    def wait(self, job_id: str, *states: str, seconds: float = 90) -> str:
        wanted = [f"TRAINING_JOB_{state}" for state in states]
        return until(lambda: self._in(job_id, wanted), seconds=seconds, what=f"{job_id} {states}")

    def _in(self, job_id: str, wanted: list[str]) -> str:
        state = self.ledger.state(job_id).value
        return state if state in wanted else ""

    def checkpoints(self, job_id: str) -> list[str]:
        listed = self.look(job_id, "checkpoints", "list", "--job-id", job_id, "-o", "json")
        return [c["checkpoint_id"] for c in json.loads(listed)["checkpoints"]]

    def processes(self, *words: str) -> list[psutil.Process]:
        """Processes of this machine's jobs whose command line holds all the words."""
        found: list[psutil.Process] = []
        for process in psutil.process_iter():
            try:
                ours = str(self.root) in process.environ().get("PREFECT_BT_STATE_DIR", "") or str(
                    self.root
                ) in " ".join([*process.cmdline(), process.cwd()])
                if ours and all(word in " ".join(process.cmdline()) for word in words):
                    found.append(process)
            except psutil.Error:
                continue
        return found

    def job_processes(self, job_id: str) -> list[int]:
        """Everything that carries the job in its environment or its command line."""
        return [
            int(entry.name)
            for entry in Path("/proc").iterdir()
            if entry.name.isdigit()
            and int(entry.name) != os.getpid()
            and job_id in read_all(entry / "environ", entry / "cmdline")
        ]

    def nothing_left(self, job_id: str) -> None:
        """No process, mount or folder of the job remains, and no garbage of anybody."""
        until(lambda: not self.job_processes(job_id), seconds=30, what="no process left")
        assert job_id not in Path("/proc/self/mountinfo").read_text()
        folder = self.state_dir / "jobs" / job_id
        until(
            lambda: not folder.exists(),
            seconds=30,
            what=lambda: f"{folder} removed, which holds {sorted(folder.rglob('*'))}",
        )
        left = self.garbage(job_id)
        deadline = time.monotonic() + 30
        while left and time.monotonic() < deadline:
            time.sleep(0.1)
            left = self.garbage(job_id)
        self.known_garbage.update(one.where for one in left)
        assert not left

    def garbage(self, job_id: str) -> list[LeftOver]:
        """What `prefect-bt gc` would remove, and what it would keep of this job."""
        settings = Settings(store=str(self.root / "store"), state_dir=self.state_dir)
        found = look_for_garbage(settings)
        assert not found.notes
        ours = [one for one in found.items if not one.kept or one.job == job_id]
        return [one for one in ours if one.where not in self.known_garbage]


def read_all(*paths: Path) -> str:
    text = ""
    for path in paths:
        try:
            text += path.read_bytes().decode(errors="replace")
        except OSError:
            continue
    return text


def until(condition: Callable[[], Any], *, seconds: float, what: str | Callable[[], str]) -> Any:
    deadline = time.monotonic() + LENIENCE * seconds
    while time.monotonic() < deadline:
        value = condition()
        if value:
            return value
        time.sleep(0.1)
    told = what if isinstance(what, str) else what()
    raise AssertionError(f"not within {LENIENCE} x {seconds} s: {told}")


@pytest.fixture(scope="session")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """With a warm local server that `prefect-bt up` started."""
    root = tmp_path_factory.mktemp("machine")
    machine = Machine(root, machine_environment(root))
    machine.run("up")
    yield machine
    machine.run("down", check=False)
    for process in machine.processes():
        process.send_signal(signal.SIGKILL)
    for job in machine.ledger.jobs():
        for pid in machine.job_processes(job.id):
            os.kill(pid, signal.SIGKILL)


@pytest.fixture(scope="session")
def serverless(tmp_path_factory: pytest.TempPathFactory) -> Machine:
    """Without any server: Prefect's temporary one is used."""
    root = tmp_path_factory.mktemp("serverless")
    return Machine(root, machine_environment(root))


def machine_environment(root: Path) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PREFECT", "BT_"))}
    return {
        **kept,
        "PREFECT_HOME": str(root / "prefect"),
        "PREFECT_BT_STORE": str(root / "store"),
        "PREFECT_BT_STATE_DIR": str(root / "state"),
        "PREFECT_BT_SETTLE": "0.5",
        "PREFECT_BT_GRACE": "5",
        "PREFECT_BT_ORPHAN_DEADLINE": "6",
        "PREFECT_BT_SERVER_PORT": str(18500 + os.getpid() % 900),
        "PYTHONPATH": str(Path(__file__).parents[2]),
    }
