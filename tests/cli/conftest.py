"""The real command against a store that the test prepares: here, or in a process of its own."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any, TextIO

import pytest

from prefect_bt.checkpoints.manifest import Manifest, ManifestEntry, dump_manifest
from prefect_bt.cli.app import main
from prefect_bt.definitions import Compute
from prefect_bt.ledger.ledger import Ledger
from prefect_bt.ledger.records import JobRecord, Resources, RetentionPolicy
from prefect_bt.ledger.states import JobState
from prefect_bt.logs.line_format import format_line
from prefect_bt.object_keys import job_prefix, log_key, logical_path
from prefect_bt.object_store import open_store
from tests.in_process import command
from tests.jobs.records import new_record, small_project
from tests.weights.hub_server import Hub, Repo, serving_hub
from tests.written_jobs import write_job

from .screens import Screen
from .sources import LARGE, folder

ROOT = Path(__file__).resolve().parents[2]
COMMAND = [sys.executable, "-m", "prefect_bt.cli.entry"]
DAY = 1_700_000_000.0
"""2023-11-14 22:13:20 UTC: long ago, so that no job counts as starting."""


@dataclass
class Run:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    def refusal(self, code: int = 1) -> str:
        """The message of a command that refuses: it writes nothing to standard output."""
        assert (self.code, self.out) == (code, ""), self
        return self.err


@dataclass
class Cli:
    """`cli("view", "-o", "json")` in this process; `process` and `start` in one of its own."""

    folder: Path
    env: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        keep = {k: v for k, v in os.environ.items() if k in {"PATH", "LANG", "LD_LIBRARY_PATH"}}
        (self.folder / "home").mkdir(exist_ok=True)
        self.env = {
            **keep,
            "DO_NOT_TRACK": "1",
            "HOME": str(self.folder / "home"),
            # Of all tests of this process: each new home costs a validation of Prefect's settings.
            "PREFECT_HOME": str(self.folder.parent / "prefect"),
            "TZ": "UTC",
            "PYTHONPATH": str(ROOT),
            "PREFECT_BT_STORE": str(self.folder / "store"),
            "PREFECT_BT_STATE_DIR": str(self.folder / "state"),
            **self.env,
        }

    def __call__(self, *arguments: str, stdin: str | TextIO = "", **env: str) -> Run:
        done = command(*arguments, environment={**self.env, **env}, folder=self.folder, stdin=stdin)
        return Run(done.code, done.out, done.err)

    def process(self, *arguments: str, stdin: str = "", **env: str) -> Run:
        """Run the command as `__call__` does, in a process of its own."""
        done = subprocess.run(
            [*COMMAND, *arguments],
            input=stdin,
            capture_output=True,
            text=True,
            env={**self.env, **env},
            cwd=self.folder,
            timeout=400,
            check=False,
        )
        return Run(done.returncode, done.stdout, done.stderr)

    def start(self, *arguments: str, program: Sequence[str] = COMMAND) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*program, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=self.env,
            cwd=self.folder,
        )


Within = Callable[..., Run]


@dataclass
class Shop:
    """A store with verbs to put jobs in it."""

    url: str
    at: float = DAY

    def __post_init__(self) -> None:
        self.ledger = Ledger(open_store(self.url), clock=self._tick)

    def _tick(self) -> float:
        self.at += 60
        return self.at

    def job(
        self,
        project: str = "tiny",
        *states: JobState,
        name: str = "",
        compute: Compute | None = None,
        priority: int | None = None,
        workspace: bytes = b"",
        sha256: str = "",
        resources: Resources | None = None,
        retention: RetentionPolicy | None = None,
    ) -> JobRecord:
        record = new_record(
            self.ledger,
            small_project(project, compute=compute or Compute(), priority=priority),
            name=name,
            workspace_sha256=sha256,
            workspace_size=len(workspace),
            user="ann",
            resources=resources,
            retention=retention or RetentionPolicy(),
        )
        if workspace:
            key = f"{job_prefix(record.project_id, record.id)}/workspace.tar"
            self.ledger.store.put(key, workspace)
        write_job(self.ledger, record)
        for state in states:
            self.ledger.append_event(record.id, state)
        return record

    def log(self, record: JobRecord, lines: Sequence[str], *, attempt: int = 0, rank: int = 0):
        """A sealed log; one line a second from noon on 2023-11-15."""
        data = b"".join(
            format_line(int((DAY + 49_600 + i) * 1e9), line) for i, line in enumerate(lines)
        )
        self.ledger.store.put(log_key(record.project_id, record.id, attempt, rank), data)

    def checkpoint(self, record: JobRecord, name: str, *, size: int, at: float, **facts: Any):
        """The manifest of a checkpoint whose objects are not there."""
        files = facts.pop("files", ["model.safetensors"])
        found = {path: (f"{n:064d}", size // len(files)) for n, path in enumerate(files)}
        self._commit(record, name, found, size=size, at=at, **facts)

    def commit(self, record: JobRecord, name: str, files: dict[str, bytes], *, rank: int = 0):
        """A checkpoint with all its bytes."""
        found = {path: (sha256(data).hexdigest(), len(data)) for path, data in files.items()}
        for path, data in files.items():
            self.ledger.store.put(_object_key(record, found[path][0]), data)
        size = sum(map(len, files.values()))
        self._commit(record, name, found, size=size, at=0, rank=rank, group_size=2)

    def _commit(
        self, record: JobRecord, name: str, files: dict[str, tuple[str, int]], *, at: float, **facts
    ):
        """`files`: the digest and the size of each."""
        rank = facts.pop("rank", 0)
        entries = tuple(
            ManifestEntry(
                path=path,
                logical=logical_path(record.project_id, record.id, rank, f"{name}/{path}"),
                key=_object_key(record, digest),
                size=size,
                sha256=digest,
                mtime_ns=int((DAY + at) * 1e9),
            )
            for path, (digest, size) in files.items()
        )
        manifest = Manifest(
            format=1,
            project_id=record.project_id,
            job_id=record.id,
            rank=rank,
            name=name,
            attempt=0,
            version=1,
            committed_at=DAY + at,
            entries=entries,
            **{"group_size": 1, **facts},
        )
        self.ledger.store.create(manifest.key, dump_manifest(manifest))


def _object_key(record: JobRecord, digest: str) -> str:
    return f"{job_prefix(record.project_id, record.id)}/objects/0000/{digest}"


ENDED = (JobState.DEPLOYING, JobState.RUNNING, JobState.COMPLETED)
RUNNING = (JobState.DEPLOYING, JobState.RUNNING)


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    return Cli(tmp_path)


@pytest.fixture
def within(cli: Cli, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Within:
    """The command in this process, with `cli`'s environment: for many refusals, which are quick."""
    for name in os.environ:
        if name not in cli.env:
            monkeypatch.delenv(name)
    for name, value in cli.env.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(cli.folder)

    def run(*arguments: str) -> Run:
        code = main(arguments)
        told = capsys.readouterr()
        return Run(code, told.out, told.err)

    return run


StartScreen = Callable[..., Screen]


@pytest.fixture
def on_screen(cli: Cli) -> Iterator[StartScreen]:
    """Starts the command on a terminal of its own: `on_screen("view", TERM="dumb")`."""
    screens: list[Screen] = []

    def start(*arguments: str, **env: str) -> Screen:
        screens.append(Screen([*COMMAND, *arguments], env={**cli.env, **env}, folder=cli.folder))
        return screens[-1]

    yield start
    for screen in screens:
        screen.close()


@pytest.fixture
def shop(cli: Cli) -> Shop:
    return Shop(cli.env["PREFECT_BT_STORE"])


@pytest.fixture
def ended() -> tuple[JobState, ...]:
    return ENDED


@pytest.fixture
def running() -> tuple[JobState, ...]:
    return RUNNING


@pytest.fixture
def config(tmp_path: Path) -> Callable[..., Path]:
    """Writes a config file; `config(start_commands=["true"])`."""

    def write(name: str = "config.py", body: str = "", **runtime: object) -> Path:
        folder = tmp_path / "project"
        folder.mkdir(exist_ok=True)
        path = folder / name
        given = ", ".join(f"{k}={v!r}" for k, v in ({"start_commands": ["true"]} | runtime).items())
        path.write_text(
            body
            or "from truss_train import definitions as d\n"
            f"runtime = d.Runtime({given})\n"
            "job = d.TrainingJob(image=d.Image(base_image='python:3.11'), runtime=runtime)\n"
            "project = d.TrainingProject(name='tiny', job=job)\n"
        )
        return path

    return write


@pytest.fixture
def hub(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """`hf://o/base` has a small file and a large one; HF_ENDPOINT is `hub.url`."""
    files = {"config.json": b"{}", "model.safetensors": os.urandom(LARGE)}
    commit = os.urandom(20).hex()  # `Repo.commit` would make it of the files, in a second
    with serving_hub() as hub:
        hub.repos["o/base"] = Repo({commit: files}, {"main": commit})
        cli.env["HF_ENDPOINT"] = hub.url
        # In this process the variable was read when huggingface_hub was imported.
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", hub.url)
        yield hub


@pytest.fixture
def model(tmp_path: Path) -> str:
    """A folder as a source: 2 and 5000 bytes."""
    return folder(tmp_path, "model", {"config.json": b"{}", "weights.bin": os.urandom(5000)})
