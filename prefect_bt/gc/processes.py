"""Scanners of this machine for processes whose job is over, or whose node's folder is gone.

Any process can name a job in its environment or its command line. So only processes of the state
folder's user and of this user count, in this pid namespace, and what they name proves nothing about
the job: whether it is over is read in the stores that the state folder names.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final

from prefect_bt.gc.findings import Orphan, OrphanKind
from prefect_bt.gc.job_folders import find_handle
from prefect_bt.gc.liveness import ALIVE, JobStores, Liveness, find_orphan, list_stores
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
from prefect_bt.host.state_folder import JobFolder
from prefect_bt.serving.deployment_records import DeploymentLedger
from prefect_bt.serving.router.deployment_folder import RouterFolder
from prefect_bt.serving.router.process import stop_router
from prefect_bt.settings import resolve_state_dir

EXIT_GRACE: Final = 120.0
"""Seconds for a job's processes to exit once it is over."""
_JOB_ID: Final = re.compile("[0-9A-Za-z]{1,64}")
_MODULES: Final = ("prefect_bt.supervisor.process", "prefect_bt.supervisor.run_flow")


@dataclass(frozen=True)
class ProcessScanner:
    """Scanner of the processes of one state folder."""

    state_dir: Path
    stores: JobStores

    def scan(self) -> Iterator[Orphan]:
        """Yield processes of nodes, then supervisors and flows."""
        if not self.state_dir.is_dir():
            return
        # Before the folders: a node's folder exists longer than its processes.
        for mark, found in self._group_processes(_read_mark).items():
            if handle := find_handle(self.state_dir, mark):
                check = partial(self._check_node, handle)
                find = partial(self._find_group, _read_mark, mark)
                yield from _judge(found, handle.job.job_id, check, find)
        for job_id, found in self._group_processes(self._read_flow).items():
            folder = JobFolder(self.state_dir, job_id)
            # Read now: the note of the store can go with the folder.
            check = partial(self._check_flow, folder, list_stores(folder))
            find = partial(self._find_group, self._read_flow, job_id)
            yield from _judge(found, job_id, check, find)

    def _check_node(self, handle: HostHandle) -> Liveness:
        if handle.folder.path.exists() or is_owned(self.state_dir, handle.job.job_id):
            return ALIVE
        return Liveness(True, "the folder of its node is gone")

    def _check_flow(self, folder: JobFolder, urls: list[str]) -> Liveness:
        """Return the verdict; alive while the job's processes may still exit by themselves."""
        verdict = self.stores.check_unowned(folder, urls)
        if verdict.since is None or time.time() - verdict.since <= EXIT_GRACE:
            return ALIVE
        return replace(verdict, reason=f"{verdict.reason}, and its processes still run")

    def _find_group(self, read_name: Callable[[int], str], name: str) -> list[ProcessIdentity]:
        return self._group_processes(read_name).get(name, [])

    def _group_processes(self, read_name: Callable[[int], str]) -> dict[str, list[ProcessIdentity]]:
        """Return the processes with a name, by their name."""
        found: dict[str, list[ProcessIdentity]] = {}
        for process in list_user_processes({self.state_dir.stat().st_uid, os.geteuid()}):
            if name := read_name(process.pid):
                found.setdefault(name, []).append(process)
        return found

    def _read_flow(self, pid: int) -> str:
        """Return the job whose supervisor or flow the process is, or descends from; "" if none."""
        names = set(read_variable_values(pid, FLOW_VARIABLE))
        words = read_command_line(pid)
        if len(words) > 3 and words[1] == "-m" and words[2] in _MODULES:
            names.add(words[3])
        job_id = names.pop() if len(names) == 1 else ""
        return job_id if _JOB_ID.fullmatch(job_id) and self._uses_state_dir(pid) else ""

    def _uses_state_dir(self, pid: int) -> bool:
        with suppress(OSError):
            return resolve_state_dir(read_environment(pid)).samefile(self.state_dir)
        return False


def _judge(
    found: list[ProcessIdentity],
    job_id: str,
    check: Callable[[], Liveness],
    find: Callable[[], list[ProcessIdentity]],
) -> list[Orphan]:
    def kill() -> None:
        if not kill_until_gone(find):
            raise OSError(f"{_format_pids(find())} cannot be killed")

    return find_orphan(OrphanKind.PROCESS, _format_pids(found), check, kill, job=job_id)


def _read_mark(pid: int) -> str:
    """Return the mark of the node that the process belongs to; "" if none or several."""
    marks = set(read_variable_values(pid, MARK_VARIABLE))
    return marks.pop() if len(marks) == 1 else ""


def _format_pids(found: list[ProcessIdentity]) -> str:
    return f"pid {', '.join(map(str, sorted(process.pid for process in found)))}"


def scan_routers(state_dir: Path, stores: JobStores) -> Iterator[Orphan]:
    """Yield routers of deployments of the default store without a live revision. StoreError."""

    def stop(name: str) -> None:
        if _has_no_live_revision(stores, name):
            stop_router(state_dir, name)

    for router in RouterFolder.iter_all(state_dir):
        if router.is_running() and _has_no_live_revision(stores, router.name):
            why = "no revision of its deployment runs"
            yield Orphan(OrphanKind.ROUTER, str(router.path), why, partial(stop, router.name))


def _has_no_live_revision(stores: JobStores, name: str) -> bool:
    deployments = DeploymentLedger(stores.default_ledger)
    revisions = deployments.list_revisions(name)
    jobs = [deployments.find_job_id(name, one.number) for one in revisions]
    if not revisions or not all(jobs):
        return False  # it is another store's, or is being deployed
    return all(stores.check_liveness(job).ended for job in jobs)
