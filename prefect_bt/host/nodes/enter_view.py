"""Enter the view of a node and run a command there, in a process of its own.

    python -P -m prefect_bt.host.nodes.enter_view REQUEST ERRORS

REQUEST is a descriptor with an EntryRequest as JSON: no variable is in anybody's arguments. ERRORS
gets the message of a failure, and is closed by the command's start.
"""

from __future__ import annotations

import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NoReturn

from prefect_bt import codec
from prefect_bt.host import syscalls

_NOT_FOUND: Final = 127
_NOT_STARTED: Final = 126
SHELLS: Final = ("/bin/bash", "/bin/sh")


@dataclass(frozen=True)
class EntryRequest:
    """`process`: one in the node's view; 0 for a node without a view. No command: a shell."""

    process: int
    directory: str
    environment: dict[str, str]
    command: tuple[str, ...] = ()


def build_own_environment() -> dict[str, str]:
    """Return the variables of this module's process, which finds the package by them."""
    return {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[3])}


def enter(request: EntryRequest) -> None:
    """Enter the namespaces of the process. Needs a process with one thread. OSError."""
    if not request.process:
        return
    namespaces = (("user", syscalls.CLONE_NEWUSER), ("mnt", syscalls.CLONE_NEWNS))
    places = [(f"/proc/{{}}/ns/{name}", kind) for name, kind in namespaces]
    wanted = [
        (os.open(place.format(request.process), os.O_RDONLY | os.O_CLOEXEC), kind)
        for place, kind in places
        if not Path(place.format("self")).samefile(place.format(request.process))
    ]
    for descriptor, kind in wanted:
        syscalls.setns(descriptor, kind)


def main(request: int, errors: int) -> NoReturn:
    """Run the command in place of this process."""
    os.set_inheritable(errors, False)
    syscalls.set_parent_death_signal(signal.SIGKILL)
    with os.fdopen(request, "rb") as file:
        entry = codec.loads(EntryRequest, file.read())
    try:
        enter(entry)
        os.chdir(entry.directory)
    except OSError as error:
        os.write(errors, (error.strerror or str(error)).encode())
        os._exit(_NOT_STARTED)
    shells = [shell for shell in SHELLS if os.access(shell, os.X_OK)]
    command = entry.command or tuple(shells[:1]) or SHELLS[-1:]
    try:
        os.execvpe(command[0], command, entry.environment)  # noqa: S606 (there is no shell)
    except OSError as error:
        sys.stderr.write(f"{command[0]}: {error.strerror}\n")
        sys.stderr.flush()
        os._exit(_NOT_FOUND if isinstance(error, FileNotFoundError) else _NOT_STARTED)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
