"""A machine as a user has it: a store, a state folder, a Prefect server, the real command line.

`machine` is one for each process of pytest, without a worker of Prefect; its server, and the worker
of `served_machine`, are those of the whole run. Commands and `Machine.train` run in this process,
which has imported everything; `Machine.push` starts processes as the user's command does.
"""

import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from base64 import b64encode
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from prefect_bt.checkpoints.committed.catalog import list_checkpoints
from prefect_bt.gc.collector import scan_for_orphans
from prefect_bt.gc.findings import Orphan
from prefect_bt.host.job_lock import is_owned
from prefect_bt.ledger.ledger import Ledger
from prefect_bt.ledger.open_ledger import open_ledger
from prefect_bt.local_server.discovery import read_server
from prefect_bt.local_server.password import CLIENT_VARIABLE, read_auth
from prefect_bt.settings import Settings
from tests.in_process import command, environment_of
from tests.ports import free_port
from tests.prefect_database import copy_database
from tests.shared_service import run_folder, shared_service

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


LENIENCE = int(os.environ.get("TEST_LENIENCE", "10"))
"""A busy machine has that much longer than a test says: only what never comes takes it."""
CLIENT = httpx.Client(timeout=60, limits=httpx.Limits(max_keepalive_connections=0))
"""A new client reads all certificates, which takes longer than its request."""
LONGEST = 600
"""Seconds of one wait at most: pytest's own limit is 900, and says less."""


@dataclass
class Done:
    returncode: int
    stdout: str
    stderr: str


def _checked(done: Done, words: tuple[str, ...], check: bool) -> Done:
    if check and done.returncode != 0:
        raise AssertionError(f"{words} ended with {done.returncode}:\n{done.stderr}")
    return done


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

    @property
    def api_url(self) -> str:
        """Of the Prefect server that its jobs report to."""
        return self.environment.get("PREFECT_API_URL") or str(
            (read_server(self.state_dir) or {})["api_url"]
        )

    @property
    def new_database(self) -> Path:
        """The database of its server as `up` made it."""
        return self.root / "new-database" / "prefect.db"

    @property
    def api(self) -> dict[str, str]:
        """Return the variables that the output of `up` exports, for Prefect's own commands."""
        auth = self.environment.get(CLIENT_VARIABLE) or read_auth(self.state_dir)
        return {"PREFECT_API_URL": self.api_url, CLIENT_VARIABLE: auth}

    def folder(self, run_sh: str, **given: Any) -> Path:
        """A training folder; `given` feeds its config."""
        folder = self.root / f"work-{time.monotonic_ns()}"
        folder.mkdir()
        (folder / "config.py").write_text(CONFIG)
        (folder / "given.json").write_text(json.dumps(given))
        (folder / "run.sh").write_text(textwrap.dedent(run_sh))
        return folder / "config.py"

    def run(self, *words: str, check: bool = True, **extra: str) -> Done:
        """Run a command, in this process if this is its main thread."""
        if threading.current_thread() is not threading.main_thread():
            return self.process(*words, check=check, **extra)
        environment = {**self.environment, **extra}
        ended = command(*words, environment=environment, folder=self.root)
        return _checked(Done(ended.code, ended.out, ended.err), words, check)

    def process(self, *words: str, check: bool = True, **extra: str) -> Done:
        """Run a command in a process of its own."""
        return _checked(self._process(self.command(*words), extra), words, check)

    def python(self, code: str) -> Done:
        """Run Python code in a process of its own."""
        return self._process([sys.executable, "-c", code], {})

    def _process(self, arguments: list[str], extra: Mapping[str, str]) -> Done:
        done = subprocess.run(
            arguments,
            env={**self.environment, **extra},
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        return Done(done.returncode, done.stdout, done.stderr)

    def command(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "prefect_bt.cli.entry", *words]

    def push(self, config: Path, *words: str, **extra: str) -> dict[str, Any]:
        """Push and return at once; the job's document."""
        return json.loads(self.run("push", str(config), *words, "-o", "json", **extra).stdout)

    def push_wait(self, config: Path, *words: str, **extra: str) -> tuple[int, dict[str, Any]]:
        done = self.run("push", str(config), "--wait", "-o", "json", *words, check=False, **extra)
        assert done.stdout, done.stderr
        return done.returncode, json.loads(done.stdout)

    def train(
        self, config: Path | None, *, extra: Mapping[str, str] | None = None, **given: Any
    ) -> dict[str, Any]:
        """Run the flow in this process until the job is over; the job's document.

        `extra` are environment variables, `given` the parameters of the flow.
        """
        from prefect_bt.flows.train import train

        with environment_of({**self.environment, **(extra or {})}):
            state: Any = train(config and str(config), **given, return_state=True)
        run_id = str(state.state_details.flow_run_id)
        job_id = self.ledger.runs.find_job(run_id)
        assert job_id, state
        return self.view(job_id)

    def finish(self, config: Path, **given: Any) -> tuple[int, dict[str, Any]]:
        """As `push_wait`, with `train`: the exit code and the job's document."""
        job = self.train(config, **given)
        return int(job["current_status"] != "TRAINING_JOB_COMPLETED"), job

    def completed(self, config: Path, **given: Any) -> dict[str, Any]:
        """As `train`, for a job that is to complete."""
        job = self.train(config, **given)
        said = (job["error_message"], self.logs(job["id"]))
        assert job["current_status"] == "TRAINING_JOB_COMPLETED", said
        return job

    def view(self, job_id: str) -> dict[str, Any]:
        return json.loads(self.run("view", "--job-id", job_id, "-o", "json").stdout)

    def logs(self, job_id: str) -> str:
        return self.run("logs", "--job-id", job_id).stdout

    def jobs_of(self, project: str) -> list[str]:
        return [job.id for job in self.ledger.list_jobs() if job.project_name == project]

    def wait(self, job_id: str, *states: str, seconds: float = 90) -> str:
        wanted = [f"TRAINING_JOB_{state}" for state in states]
        return until(
            lambda: self._in(job_id, wanted),
            seconds=seconds,
            what=lambda: f"{job_id} {states}, but {self.ledger.get_state(job_id).value}",
        )

    def _in(self, job_id: str, wanted: list[str]) -> str:
        state = self.ledger.get_state(job_id).value
        return state if state in wanted else ""

    def checkpoints(self, job_id: str) -> list[str]:
        """The committed ones, by their ids."""
        found = list_checkpoints(self.ledger.store, self.ledger.get_job(job_id).project_id, job_id)
        return sorted(one.checkpoint_id for one in found)

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

    def kill_all(self, job_id: str) -> None:
        """Kill every process of the job, as when the machine stops.

        A process that is being killed loses its environment before it closes its files, so the
        job's lock is waited for, too: until then a command that looks finds the job owned.
        """

        def gone() -> bool:
            left = self.job_processes(job_id)
            for pid in left:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            return not left and not is_owned(self.state_dir, job_id)

        until(gone, seconds=10, what="all processes to be gone")

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
        deadline = time.monotonic() + LENIENCE * 30
        while left and time.monotonic() < deadline:
            time.sleep(0.25)
            left = self.garbage(job_id)
        self.known_garbage.update(one.location for one in left)
        assert not left

    def garbage(self, job_id: str) -> list[Orphan]:
        """What `prefect-bt gc` would remove, and what it would keep of this job."""
        settings = Settings(store=self.environment["PREFECT_BT_STORE"], state_dir=self.state_dir)
        found = scan_for_orphans(settings)
        # The bucket of another test in this state folder takes its credentials with it.
        assert not [note for note in found.notes if "No credentials for s3://" not in note]
        ours = [one for one in found.orphans if not one.kept_reason or one.job == job_id]
        return [one for one in ours if one.location not in self.known_garbage]


def read_all(*paths: Path) -> str:
    text = ""
    for path in paths:
        try:
            text += path.read_bytes().decode(errors="replace")
        except OSError:
            continue
    return text


def until(condition: Callable[[], Any], *, seconds: float, what: str | Callable[[], str]) -> Any:
    patience = min(LENIENCE * seconds, LONGEST)
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline:
        value = condition()
        if value:
            return value
        time.sleep(0.25)  # a look at the whole machine costs as much as a job does meanwhile
    told = what if isinstance(what, str) else what()
    raise AssertionError(f"not within {patience:g} s: {told}")


def call(machine: Machine, method: str, path: str, **body: Any) -> Any:
    """What Prefect's API answers; None for an empty answer."""
    return call_url(machine.api[CLIENT_VARIABLE], method, f"{machine.api_url}/{path}", **body)


def call_url(auth: str, method: str, url: str, **body: Any) -> Any:
    deadline = time.monotonic() + 200
    headers = {"Authorization": f"Basic {b64encode(auth.encode()).decode()}"}
    while True:
        answer = CLIENT.request(method, url, json=body or None, headers=headers)
        if answer.status_code != httpx.codes.SERVICE_UNAVAILABLE or time.monotonic() > deadline:
            break
        time.sleep(0.5)  # its SQLite is busy; Prefect's own client tries again, too
    answer.raise_for_status()
    return answer.json() if answer.content else None


@contextmanager
def serve(root: Path, *words: str, database: Path | None = None) -> Generator[dict[str, str]]:
    """The environment of a machine on which `prefect-bt up` has been run, until the block ends.

    `words` are options of `up`; `database` is that of another new server.
    """
    root.mkdir(parents=True, exist_ok=True)
    copied = copy_database(database, root / "prefect") if database else {}
    machine = Machine(root, {**machine_environment(root), **copied})
    run = machine.run if "prefect" in sys.modules else machine.process
    run("up", *words)
    copy_database(root / "prefect" / "prefect.db", root / "new-database")
    try:
        yield machine.environment
    finally:
        run("down", "--force", check=False)
        end_processes(machine)


def end_processes(machine: Machine) -> None:
    for process in machine.processes():
        with suppress(psutil.Error):
            process.send_signal(signal.SIGKILL)
    for job in machine.ledger.list_jobs():
        for pid in machine.job_processes(job.id):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


@pytest.fixture(scope="session")
def served_machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """The machine with the server, the worker and the watchdog of `up`; one for all workers."""
    root = run_folder(tmp_path_factory) / "served-machine"
    with shared_service("tests.e2e.conftest:serve", root) as environment:
        yield Machine(root, environment)


@pytest.fixture(scope="session")
def machine(served_machine: Machine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """A machine of this process's own that uses the server of `served_machine`."""
    root = tmp_path_factory.mktemp("machine")
    machine = Machine(root, {**machine_environment(root), **served_machine.api})
    yield machine
    end_processes(machine)


@pytest.fixture(scope="session")
def serverless(served_machine: Machine, tmp_path_factory: pytest.TempPathFactory) -> Machine:
    """Without any server: Prefect's temporary one is used, with the tables of another."""
    root = tmp_path_factory.mktemp("serverless")
    copy_database(served_machine.new_database, root / "prefect")
    return Machine(root, machine_environment(root))


def machine_environment(root: Path) -> dict[str, str]:
    """As in a new shell; a port that no other run of the tests on this machine uses."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PREFECT", "BT_"))}
    return {
        **kept,
        "PREFECT_HOME": str(root / "prefect"),
        "PREFECT_BT_STORE": str(root / "store"),
        "PREFECT_BT_STATE_DIR": str(root / "state"),
        "PREFECT_BT_CAPACITY_CPUS": "64",  # jobs of a test run at once, also on two cores
        "PREFECT_BT_SETTLE": "0.5",
        "PREFECT_BT_GRACE": "5",
        "PREFECT_BT_ORPHAN_DEADLINE": "60",
        "PREFECT_BT_SERVER_PORT": str(free_port()),
        "PYTHONPATH": str(Path(__file__).parents[2]),
    }
