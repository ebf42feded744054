"""Processes of this machine whose job is over, or whose node's folder is gone.

Any process may call itself one of a job's, in its environment or its command line. So that is
believed of processes of the state folder's user, or of ours, in our pid namespace only, and they
say nothing about the job: whether that is over, the stores tell that the state folder names.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from prefect_bt.gc.findings import Orphan, OrphanKind
from prefect_bt.gc.job_folders import find_handle, list_stores
from prefect_bt.gc.liveness import ALIVE, JobStores, Liveness
from prefect_bt.host.job_lock import is_owned
from prefect_bt.host.nodes.handle import HostHandle
from prefect_bt.host.processes import (
    FLOW_VARIABLE,
    MARK_VARIABLE,
    ProcessIdentity,
    kill_until_gone,
    list_user_processes,
    read_command_line,
    read_environment,
    read_variable_values,
)
from prefect_bt.host.state_folder import JobFolder, state_dir_id
from prefect_bt.settings import resolve_state_dir

EXIT_GRACE: Final = 120.0
"""Seconds that a job's processes may take to leave once it is over."""
_JOB_ID: Final = re.compile("[0-9A-Za-z]{1,64}")
_MODULES: Final = (
    "prefect_bt.supervisor.process",
    "prefect_bt.supervisor.run_flow",
    "prefect_bt.flows.keeper",  # the first two, as the release before named them
    "prefect_bt.flows.run_job",
)


@dataclass(frozen=True)
class ProcessScanner:
    """Of one state folder: those of others are never looked at."""

    state_dir: Path
    stores: JobStores
    clock: Callable[[], float] = time.time

    def scan(self) -> Iterator[Orphan]:
        if self.state_dir.is_dir():
            yield from self._scan_node_processes()
            yield from self._scan_flow_processes()

    def _scan_node_processes(self) -> Iterator[Orphan]:
        place = state_dir_id(self.state_dir)
        # A node's folder is there before its first process and after its last: so, in this order.
        for mark, found in self._group_processes(_read_mark).items():
            handle = find_handle(self.state_dir, mark)
            ours = mark.rpartition(".")[2].startswith(place)
            if ours and handle is not None and self._is_orphan(handle):
                yield Orphan(
                    OrphanKind.PROCESS,
                    _format_pids(found),
                    "the folder of its node is gone",
                    lambda mark=mark, handle=handle: self._end_node(mark, handle),
                    job=handle.job.job_id,
                )

    def _is_orphan(self, handle: HostHandle) -> bool:
        return not handle.folder.path.exists() and not is_owned(self.state_dir, handle.job.job_id)

    def _end_node(self, mark: str, handle: HostHandle) -> None:
        if not self._is_orphan(handle):
            raise _recovered_error(handle.job.job_id)
        _kill_all(lambda: self._group_processes(_read_mark).get(mark, []))

    def _scan_flow_processes(self) -> Iterator[Orphan]:
        for job_id, found in self._group_processes(self._find_flow).items():
            urls = list_stores(JobFolder(self.state_dir, job_id))
            verdict = self._check_liveness(job_id, urls)
            if verdict.ended:
                yield Orphan(
                    OrphanKind.PROCESS,
                    _format_pids(found),
                    f"{verdict.reason}, and its processes still run",
                    lambda job_id=job_id, urls=urls: self._kill_flow_processes(job_id, urls),
                    job=job_id,
                    since=verdict.since,
                )

    def _kill_flow_processes(self, job_id: str, urls: list[str]) -> None:
        """`urls`: the stores noted when it was found; the notes may have gone with the folder."""
        urls = [*urls, *list_stores(JobFolder(self.state_dir, job_id))]
        if not self._check_liveness(job_id, urls).ended:
            raise _recovered_error(job_id)
        _kill_all(lambda: self._group_processes(self._find_flow).get(job_id, []))

    def _check_liveness(self, job_id: str, urls: list[str]) -> Liveness:
        """Not over, too, while somebody owns the job or its processes may still be leaving."""
        verdict = self.stores.check_liveness(job_id, urls or [self.stores.default_url])
        quiet = verdict.since is not None and self.clock() - verdict.since > EXIT_GRACE
        return verdict if quiet and not is_owned(self.state_dir, job_id) else ALIVE

    def _group_processes(self, named: Callable[[int], str]) -> dict[str, list[ProcessIdentity]]:
        """Processes that may be ours, by what they are named; "" is no name."""
        found: dict[str, list[ProcessIdentity]] = {}
        for process in list_user_processes({self.state_dir.stat().st_uid, os.geteuid()}):
            if name := named(process.pid):
                found.setdefault(name, []).append(process)
        return found

    def _find_flow(self, pid: int) -> str:
        """Return the job whose supervisor or flow the process is, or descends from; "" if none."""
        told = set(read_variable_values(pid, FLOW_VARIABLE))
        words = read_command_line(pid)
        if len(words) > 3 and words[1] == "-m" and words[2] in _MODULES:
            told.add(words[3])
        job_id = told.pop() if len(told) == 1 else ""
        return job_id if _JOB_ID.fullmatch(job_id) and self._uses_state_dir(pid) else ""

    def _uses_state_dir(self, pid: int) -> bool:
        with suppress(OSError):
            return resolve_state_dir(read_environment(pid)).samefile(self.state_dir)
        return False


def _read_mark(pid: int) -> str:
    told = set(read_variable_values(pid, MARK_VARIABLE))
    return told.pop() if len(told) == 1 else ""


def _format_pids(found: list[ProcessIdentity]) -> str:
    return f"pid {', '.join(map(str, sorted(process.pid for process in found)))}"


def _recovered_error(job_id: str) -> OSError:
    return OSError(f"job {job_id} runs again")


def _kill_all(find_pids: Callable[[], list[ProcessIdentity]]) -> None:
    if not kill_until_gone(find_pids):
        raise OSError(f"{_format_pids(find_pids())} cannot be killed")
