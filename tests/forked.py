"""Processes forked from one that has imported what they need: real ones, without the imports.

A test that kills, interrupts or races processes needs processes, not interpreters that start. The
first call of a test run starts a server (multiprocessing's forkserver) that imports PRELOADED; each
process after that is a fork of it. The server ends with the process that runs the tests.
"""

from __future__ import annotations

import importlib
import io
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import types
from collections.abc import Mapping, Sequence
from pathlib import Path

PRELOADED = [
    "tests.forked",
    "boto3.session",
    "huggingface_hub.hf_api",
    "obstore.auth.boto3",
    "obstore.store",
    "prefect_bt.node_agent.upload_process",
    "prefect_bt.object_store.bucket",
    "prefect_bt.object_store.connect",
    "prefect_bt.object_store.disk",
    "prefect_bt.weights",
    "prefect_bt.weights.sources.bucket",
    "prefect_bt.weights.sources.hub",
]
LOOK_SECONDS = 0.005


class Forked:
    """The part of subprocess.Popen that tests use, for Python code run in a fork.

    `arguments` are sys.argv; `environment` replaces the fork's variables. Standard input is empty,
    or ends when the file `stdin` is closed, which a `piped` one has.
    """

    def __init__(
        self,
        code: str | Path,
        arguments: Sequence[object] = (),
        environment: Mapping[str, str] | None = None,
        *,
        piped: bool = False,
    ) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="forked-"))
        self.stdout = _Output(self, self._folder / "stdout")
        self.stderr = _Output(self, self._folder / "stderr")
        self.stdin: io.TextIOWrapper | None = None
        if piped:
            os.mkfifo(self._folder / "stdin")
            # Also for reading, which waits for no reader.
            self.stdin = os.fdopen(os.open(self._folder / "stdin", os.O_RDWR), "w")
        name = str(code) if isinstance(code, Path) else "-c"
        text = code.read_text() if isinstance(code, Path) else code
        variables = dict(os.environ if environment is None else environment)
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(PRELOADED)
        argv = [name, *map(str, arguments)]
        self._process = context.Process(
            target=_run, args=(text, argv, variables, str(self._folder), str(Path.cwd()))
        )
        self._process.start()

    def __del__(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.returncode is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if self.returncode is None:
            raise subprocess.TimeoutExpired(self._process.name, timeout or 0)
        return self.returncode

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """What it wrote and nobody has read, after the end of its input; TimeoutExpired."""
        if self.stdin is not None:
            self.stdin.close()
        self.wait(timeout)
        return self.stdout.read(), self.stderr.read()


class _Output:
    """What a fork writes to one of its streams."""

    def __init__(self, process: Forked, path: Path) -> None:
        path.touch()
        self._process = process
        self._file = path.open()

    def read(self) -> str:
        return self._file.read()

    def readline(self) -> str:
        """The next line; what there is when the process is over."""
        line = ""
        while not line.endswith("\n"):
            over = self._process.returncode is not None
            line += self._file.readline()
            if over:
                break
            if not line.endswith("\n"):
                time.sleep(LOOK_SECONDS)
        return line


def _run(
    code: str, argv: list[str], variables: dict[str, str], folder: str, directory: str
) -> None:
    for number, name in ((1, "stdout"), (2, "stderr")):
        target = os.open(f"{folder}/{name}", os.O_WRONLY | os.O_APPEND)
        os.dup2(target, number)
        os.close(target)
    for stream in (sys.stdout, sys.stderr):
        assert isinstance(stream, io.TextIOWrapper)
        stream.reconfigure(line_buffering=stream is sys.stderr)
    if Path(f"{folder}/stdin").exists():
        # It may have been closed before: a reader that waits for a writer would wait for ever.
        source = os.open(f"{folder}/stdin", os.O_RDONLY | os.O_NONBLOCK)
        os.set_blocking(source, True)
        os.dup2(source, 0)
        os.close(source)
        sys.stdin = os.fdopen(0, closefd=False)
    os.chdir(directory)
    os.environ.clear()
    os.environ.update(variables)
    sys.argv = argv
    # It was read from the environment when it was imported; what follows reads it there.
    importlib.reload(importlib.import_module("huggingface_hub.constants"))
    program = types.ModuleType("__main__")
    program.__file__ = argv[0]
    sys.modules["__main__"] = program
    exec(compile(code, argv[0], "exec"), program.__dict__)
