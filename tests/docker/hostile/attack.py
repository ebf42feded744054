"""One attack of a job on its machine: its code, and the expected result.

docs/hostile-job.md describes each attack and its result in words.
"""

from __future__ import annotations

import textwrap
from dataclasses import dataclass

PRELUDE = """
C=$BT_CHECKPOINT_DIR; S=$BT_SCRATCH_DIR; P=$BT_PROJECT_CACHE_DIR; W=/b10/workspace
HF=/root/.cache/huggingface; CACHE=/mnt/c; PIPES=/.prefect-bt
HOST={host}; MARK={mark}; STATE={state}; OTHER={other}; API_PORT={port}; SCALE={scale}
export C S P W HF CACHE PIPES HOST MARK STATE OTHER API_PORT SCALE
up() {{ touch "$S/up-$NAME"; }}
link() {{ mkdir -p "$C/$1"; ln -s "$2" "$C/$1/x"; checkpoint "$1"; }}
checkpoint() {{ mkdir -p "$C/$1" && echo '{{"a": 1}}' > "$C/$1/a.json"; }}
"""
"""Shell code before every script. A checkpoint to be refused has its fault from its first file on.

`up` tells the test that an endless attack is running."""

PYTHON = """
import ctypes, errno, fcntl, itertools, json, mmap, os, random, shutil, signal, socket, struct, sys
import threading, time
from contextlib import suppress
from pathlib import Path
libc = ctypes.CDLL(None, use_errno=True)
E = os.environ
C, S, P, W = (Path(E[name]) for name in "CSPW")
HOST, MARK, STATE, SCALE = E["HOST"], E["MARK"], E["STATE"], int(E["SCALE"])
# The cache, P, outlives the job.
JOB = E["BT_TRAINING_JOB_ID"]
AT_FDCWD = -100

def up():
    (S / f"up-{E['NAME']}").touch()

def checkpoint(name):
    (C / name).mkdir(exist_ok=True)
    (C / name / "a.json").write_text('{"a": 1}')
    return C / name

def spoiled(name, file, data):
    (C / name).mkdir(exist_ok=True)
    (C / name / file).write_bytes(data)
    checkpoint(name)

def exchange(a, b):
    return libc.renameat2(AT_FDCWD, os.fsencode(a), AT_FDCWD, os.fsencode(b), 2)

def exchange_forever(a, b):
    while True:
        for _ in range(200):
            exchange(a, b)
        time.sleep(0.6 * random.random())

def attempt(what, call, *given):
    # Prints what came of it: "DONE what" for what must not be possible.
    try:
        ctypes.set_errno(0)
        answer = call(*given)
        number = ctypes.get_errno() if answer == -1 else 0
    except OSError as error:
        number = error.errno
    print(what, "-" if number else "DONE", errno.errorcode.get(number, number), flush=True)
"""
"""Python code before every program."""


@dataclass(frozen=True)
class Attack:
    """An attack: a shell script or a Python program, which runs as root in a container.

    An `endless` attack calls `up` and is stopped. `then` is the script of a second job of the
    project, and `again` that of the same job's next attempt. The checkpoints of `keeps` must be
    committed, those of `refuses` must not be. `impossible`: it must run to its end, and must not
    print the line "DONE".
    """

    name: str
    script: str = ""
    python: str = ""
    endless: bool = False
    then: str = ""
    again: str = ""
    keeps: tuple[str, ...] = ("honest",)
    refuses: tuple[str, ...] = ()
    impossible: bool = False
    alone: bool = False
    """Whether it ends or hides what runs beside it in its job, or uses up the machine's time."""

    @property
    def files(self) -> dict[str, str]:
        """Return the files to put into the job's folder, by path."""
        if self.python:
            return {f"attacks/{self.name}.py": PYTHON + textwrap.dedent(self.python)}
        return {f"attacks/{self.name}.sh": textwrap.dedent(self.script)}

    @property
    def command(self) -> str:
        runs = f"python3 attacks/{self.name}.py" if self.python else f". ./attacks/{self.name}.sh"
        return f"( NAME={self.name}; export NAME; {runs} && echo ran-{self.name} )"
