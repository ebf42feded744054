"""Find and end the processes of a node exactly: by descent, by mark, by root folder.

While guard or agent live, every process below them belongs to the node: both are child subreapers,
so a daemon that forked twice and called setsid is still a descendant. Afterwards, two marks remain
that no other process has: the variable MARK_VARIABLE with the node's random mark, and, in a view, a
root folder that is the node's. A recorded pid alone is never trusted.
"""

from __future__ import annotations

import os
import signal
import stat
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

MARK_VARIABLE: Final = "PREFECT_BT_NODE"
UPLOADER_VARIABLE: Final = "PREFECT_BT_UPLOADER"
"""Set beside the mark for the uploader, so that a reaper can spare it."""
FLOW_VARIABLE: Final = "PREFECT_BT_FLOW"
"""The job's id, in what a detached flow's process has started for itself; never in a node."""

PIPE_FILTERS: Final = frozenset(
    ["tee", "cat", "grep", "sed", "awk", "gawk", "mawk", "tr", "cut", "ts", "head", "tail"]
)
"""Programs that read a pipe until its end."""

# Text, not Path: every node looks at every process now and then; a Path costs as much as the read.
_PROC: Final = "/proc"
_KILL_TIMEOUT: Final = 5.0
"""Seconds until a process must have ended after SIGKILL."""


class ProcessStat(NamedTuple):
    """One line of /proc/<pid>/stat. `ticks`: CPU time of it and its waited-for children.

    `is_blocked`: it waits for a disk or a network file system. `is_stopped`: SIGSTOP or a debugger
    holds it.
    """

    pid: int
    parent: int
    group: int
    ticks: int
    is_blocked: bool = False
    is_stopped: bool = False


@dataclass(frozen=True)
class ProcessIdentity:
    """One process and no other: a pid alone is given to another process later.

    `began`: as `read_start_time` gave it while the process lived.
    """

    pid: int
    began: int

    @property
    def is_alive(self) -> bool:
        return self.began > 0 and read_start_time(self.pid) == self.began

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send(signal.SIGKILL)

    def send(self, number: signal.Signals) -> None:
        """Send a signal to this process, and never to another one that has its pid now."""
        with suppress(ProcessLookupError, PermissionError):
            descriptor = os.pidfd_open(self.pid)
            try:
                if self.is_alive:  # so the descriptor is this process's
                    signal.pidfd_send_signal(descriptor, number)
            finally:
                os.close(descriptor)

    def stop(self, *, timeout: float) -> bool:
        """Send SIGTERM, and SIGKILL after `timeout` seconds; False if the process had ended.

        Its children are not signalled: they may have to outlive it.
        """
        if not self.is_alive:
            return False
        for number, seconds in ((signal.SIGTERM, timeout), (signal.SIGKILL, _KILL_TIMEOUT)):
            self.send(number)
            deadline = time.monotonic() + seconds
            while self.is_alive and time.monotonic() < deadline:
                time.sleep(0.05)
            if not self.is_alive:
                break
        return True


def read_boot_id() -> str:
    """Return the id of this machine's boot, which its containers share; "" without /proc."""
    return _read(f"{_PROC}/sys/kernel/random/boot_id").decode().strip()


def read_start_time(pid: int) -> int:
    """Return when the process began, in ticks since the machine did; 0 when it is gone."""
    fields = _stat_fields(pid)
    return int(fields[19]) if fields else 0


def list_processes() -> dict[int, ProcessStat]:
    """Return every process that is not a zombie, by pid."""
    return {pid: facts for pid in _iter_pids() if (facts := _read_process_stat(pid))}


def list_descendants(root: int, *, exclude: Collection[int] = ()) -> list[ProcessStat]:
    """Return the living processes below `root`, without those in `exclude` and below them."""
    children: dict[int, list[ProcessStat]] = {}
    for facts in list_processes().values():
        children.setdefault(facts.parent, []).append(facts)
    found: list[ProcessStat] = []
    stack = [root]
    while stack:
        below = [p for p in children.get(stack.pop(), ()) if p.pid not in exclude]
        found += below
        stack += [p.pid for p in below]
    return found


def find_marked_processes(mark: str, root: Path, *, exclude_uploader: bool = False) -> list[int]:
    """Return pids with the node's mark, or with `root` as root folder; never the own pid."""
    wanted = f"{MARK_VARIABLE}={mark}".encode()
    uploader = f"{UPLOADER_VARIABLE}={mark}".encode()
    own_root = _file_identity(str(root))
    found: list[int] = []
    for pid in _iter_pids():
        if pid == os.getpid() or _stat_fields(pid) is None:
            continue
        variables = _read_environ(pid)
        if exclude_uploader and uploader in variables and _is_in_our_pid_namespace(pid):
            continue
        inside = own_root is not None and _file_identity(f"{_PROC}/{pid}/root") == own_root
        if (mark and wanted in variables) or inside:
            found.append(pid)
    return found


def find_uploader_processes(mark: str) -> list[int]:
    """Return the pids of the node's uploader and of the processes it has started.

    Those in a container do not count: one that took the uploader's mark would be waited for.
    """
    wanted = f"{UPLOADER_VARIABLE}={mark}".encode()
    return [
        pid
        for pid in _iter_pids()
        if wanted in _read_environ(pid) and _is_in_our_pid_namespace(pid)
    ]


def list_user_processes(users: Collection[int]) -> Iterator[ProcessIdentity]:
    """Yield the living processes of these user ids in our pid namespace, but not our own.

    Nothing of another user's process, or of a container's, is read that it could delay: neither its
    environment nor its command line. A setuid program is of several users, so it is left out.
    """
    for pid in _iter_pids():
        process = ProcessIdentity(pid, read_start_time(pid))
        if (
            pid != os.getpid()
            and process.began
            and _belongs_to_users(pid, users)
            and _shares_pid_namespace(pid)
        ):
            yield process


def read_variable_values(pid: int, variable: str) -> list[str]:
    """Return the values of a variable in the process's environment, which may repeat it."""
    name = f"{variable}=".encode()
    found = [entry for entry in _read_environ(pid) if entry.startswith(name)]
    return [os.fsdecode(entry[len(name) :]) for entry in found]


def read_environment(pid: int) -> dict[str, str]:
    """Return the variables at the process's start; empty for an ended or foreign process."""
    pairs = (os.fsdecode(entry).partition("=") for entry in _read_environ(pid))
    return {name: value for name, _, value in pairs if name}


def read_parent(pid: int) -> int:
    """Return the pid of the parent; 0 when the process is gone."""
    facts = _read_process_stat(pid)
    return facts.parent if facts is not None else 0


def read_command_line(pid: int) -> list[str]:
    """Return the command line; empty for an ended process."""
    return [os.fsdecode(word) for word in _read(f"{_PROC}/{pid}/cmdline").split(b"\0")[:-1]]


def kill_flow_helpers(job_id: str) -> bool:
    """End the processes that a dead flow process had started, such as a Prefect server."""
    wanted = f"{FLOW_VARIABLE}={job_id}".encode()

    def find() -> list[int]:
        return [p for p in _iter_pids() if wanted in _read_environ(p) and _stat_fields(p)]

    return kill_until_gone(find)


def terminate_groups(processes: Collection[ProcessStat], *, exclude: Collection[int]) -> None:
    """Send SIGTERM to the process groups of `processes`, except the groups in `exclude`.

    A filter at the end of a pipe, as `tee` in `python train.py | tee log`, gets none: it ends with
    its input. Without it, the trainer could not write a line while it saves its last checkpoint.
    """
    filters = {p.pid: p.group for p in processes if _is_pipe_filter(p.pid)}
    for group in {p.group for p in processes} - set(exclude):
        with suppress(ProcessLookupError, PermissionError):
            if group not in filters.values():
                os.killpg(group, signal.SIGTERM)
                continue
            for process in processes:
                if process.group == group and process.pid not in filters:
                    os.kill(process.pid, signal.SIGTERM)


def _is_pipe_filter(pid: int) -> bool:
    if _read(f"{_PROC}/{pid}/comm").decode(errors="replace").strip() not in PIPE_FILTERS:
        return False
    with suppress(OSError):
        return stat.S_ISFIFO(os.stat(f"{_PROC}/{pid}/fd/0").st_mode)  # noqa: PTH116 (see _PROC)
    return False


def kill_until_gone(
    find: Callable[[], Collection[int] | Collection[ProcessIdentity]],
    *,
    reap: Callable[[], object] = lambda: None,
    timeout: float = 10.0,
) -> bool:
    """Send SIGKILL to the processes that `find` returns until there are none; False if some remain.

    The function waits for a killed process: its mark goes with its memory, and the first process of
    a container ends only after all others in it.
    """
    deadline, pause = None, 0.002
    killed: set[ProcessIdentity] = set()
    while (found := find()) or any(process.is_alive for process in killed):
        if deadline is not None and time.monotonic() > deadline:
            return False
        for one in found:
            if isinstance(one, ProcessIdentity):
                killed.add(one)
                one.kill()
            else:
                killed.add(ProcessIdentity(one, read_start_time(one)))
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(one, signal.SIGKILL)
        deadline = deadline or time.monotonic() + timeout
        time.sleep(pause)
        pause = min(pause * 2, 0.1)
        reap()
    return True


def reap_children(on_exit: Callable[[int, int], None] = lambda _pid, _status: None) -> bool:
    """Collect every child that has ended; False when there are no children at all."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return False
        if pid == 0:
            return True
        on_exit(pid, status)


def decode_wait_status(status: int) -> tuple[int, int | None]:
    """Return the exit code as a shell gives it, and the signal or None, of a wait status."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        return 128 + number, number
    return os.WEXITSTATUS(status), None


def _iter_pids() -> Iterator[int]:
    for name in os.listdir(_PROC):  # noqa: PTH208 (ten times faster than Path.iterdir)
        if name.isdigit():
            yield int(name)


def _read_process_stat(pid: int) -> ProcessStat | None:
    fields = _stat_fields(pid)
    if fields is None:
        return None
    ticks = sum(int(value) for value in fields[11:15])
    state = fields[0]
    return ProcessStat(
        pid, int(fields[1]), int(fields[2]), ticks, state == b"D", state in {b"T", b"t"}
    )


def _stat_fields(pid: int) -> list[bytes] | None:
    """Return the fields after the command's name; None for an ended process or a zombie."""
    text = _read(f"{_PROC}/{pid}/stat")
    fields = text.rpartition(b") ")[2].split()  # the name may contain blanks and parentheses
    return fields if fields and fields[0] not in {b"Z", b"X"} else None


def _read_environ(pid: int) -> list[bytes]:
    return _read(f"{_PROC}/{pid}/environ").split(b"\0")


def _read(path: str) -> bytes:
    try:
        with open(path, "rb", buffering=0) as file:  # noqa: PTH123 (see _PROC)
            return file.read()
    except OSError:
        return b""


def _belongs_to_users(pid: int, users: Collection[int]) -> bool:
    """Return whether real, effective, saved and file system user are one, and one of `users`."""
    for line in _read(f"{_PROC}/{pid}/status").splitlines():
        if line.startswith(b"Uid:"):
            ids = {int(word) for word in line.split()[1:]}
            return len(ids) == 1 and ids <= set(users)
    return False


def _shares_pid_namespace(pid: int) -> bool:
    """Return whether it is in our pid namespace; False where that cannot be read."""
    namespace = _file_identity(f"{_PROC}/{pid}/ns/pid")
    return namespace is not None and namespace == _file_identity(f"{_PROC}/self/ns/pid")


def _is_in_our_pid_namespace(pid: int) -> bool:
    """Return whether it is in our pid namespace; True too if it is gone, or without namespaces."""
    namespace = _file_identity(f"{_PROC}/{pid}/ns/pid")
    return namespace is None or namespace == _file_identity(f"{_PROC}/self/ns/pid")


def _file_identity(path: str) -> tuple[int, int] | None:
    try:
        facts = os.stat(path)  # noqa: PTH116 (see _PROC)
    except OSError:
        return None
    return facts.st_dev, facts.st_ino
