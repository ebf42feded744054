"""Processes of this machine whose job is over, or whose node's folder is gone."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from prefect_bt.garbage.machine import handle_of
from prefect_bt.garbage.verdicts import Stores, Verdict
from prefect_bt.garbage.words import Kind, LeftOver
from prefect_bt.host.layout import place_of
from prefect_bt.host.processes import (
    FLOW_VARIABLE,
    MARK_VARIABLE,
    arguments_of,
    kill_until_gone,
    list_processes,
    processes_by,
    variables_of,
)
from prefect_bt.ownership import is_owned
from prefect_bt.settings import state_dir_of

LAST_WORDS: Final = 120.0
"""Seconds that a job's processes may take to leave once it is over."""
_MODULES: Final = ("prefect_bt.flows.keeper", "prefect_bt.flows.run_job")


@dataclass(frozen=True)
class Strays:
    """Of one state folder: those of others are never looked at."""

    state_dir: Path
    stores: Stores
    clock: Callable[[], float] = time.time

    def find(self) -> Iterator[LeftOver]:
        if self.state_dir.is_dir():
            yield from self._of_nodes()
            yield from self._of_flows()

    def _of_nodes(self) -> Iterator[LeftOver]:
        place = place_of(self.state_dir)
        # A node's folder is there before its first process and after its last: so, in this order.
        for mark, pids in processes_by(MARK_VARIABLE).items():
            handle = handle_of(self.state_dir, mark)
            ours = mark.rpartition(".")[2].startswith(place)
            if ours and handle is not None and not handle.folder.path.exists():
                yield LeftOver(
                    Kind.PROCESS,
                    _listed(pids),
                    "the folder of its node is gone",
                    lambda mark=mark: _end(lambda: processes_by(MARK_VARIABLE).get(mark, [])),
                    job=handle.job.job_id,
                )

    def _of_flows(self) -> Iterator[LeftOver]:
        for job_id, pids in self._flows().items():
            verdict = self._judge(job_id, pids[0])
            quiet = verdict.since is not None and self.clock() - verdict.since > LAST_WORDS
            if verdict.over and quiet and not is_owned(self.state_dir, job_id):
                yield LeftOver(
                    Kind.PROCESS,
                    _listed(pids),
                    f"{verdict.why}, and what ran it is still there",
                    lambda job_id=job_id, pid=pids[0]: self._end_flows(job_id, pid),
                    job=job_id,
                    since=verdict.since,
                )

    def _end_flows(self, job_id: str, pid: int) -> None:
        if is_owned(self.state_dir, job_id) or not self._judge(job_id, pid).over:
            raise OSError(f"job {job_id} was taken up again")
        _end(lambda: self._flows().get(job_id, []))

    def _flows(self) -> dict[str, list[int]]:
        """Keepers, flows and what they started for themselves, by job."""
        found: dict[str, list[int]] = {}
        for job_id, pids in processes_by(FLOW_VARIABLE).items():
            found[job_id] = [pid for pid in pids if self._is_ours(pid)]
        for pid in list_processes():
            words = arguments_of(pid)
            if len(words) > 3 and words[1] == "-m" and words[2] in _MODULES and self._is_ours(pid):
                found.setdefault(words[3], []).append(pid)
        return {job_id: pids for job_id, pids in found.items() if pids and job_id.isalnum()}

    def _is_ours(self, pid: int) -> bool:
        theirs = state_dir_of(variables_of(pid))
        return pid != os.getpid() and theirs.resolve() == self.state_dir.resolve()

    def _judge(self, job_id: str, pid: int) -> Verdict:
        store = variables_of(pid).get("PREFECT_BT_STORE") or self.stores.own
        return self.stores.judge(job_id, [store])


def _listed(pids: list[int]) -> str:
    return f"pid {', '.join(map(str, sorted(pids)))}"


def _end(find: Callable[[], list[int]]) -> None:
    if not kill_until_gone(find):
        raise OSError(f"{_listed(find())} cannot be killed")
