"""Record when a node was last active: a log line, a checkpoint write, 1 % of a core, a process that
waits for a disk, or an open connection.

The gang stops ranks that are inactive after another rank succeeded, so doubtful cases count as
active.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Final

from prefect_bt.host.nodes.files import StatusFile
from prefect_bt.host.processes import ProcessStat
from prefect_bt.node_agent.commands.runner import Runner

POLL_INTERVAL: Final = 5.0
FIRST_POLL: Final = 1.0
"""Seconds after which the first look is taken, so that short jobs have a sample."""
ACTIVE_CPU_SHARE: Final = 0.01
MAX_ENTRIES: Final = 5000
_TICKS = os.sysconf("SC_CLK_TCK")


class ActivityMonitor:
    """Updates `active_at` in the node's status, every five seconds at most."""

    def __init__(
        self,
        status: StatusFile,
        *,
        last_line: Callable[[], float | None],
        checkpoints: Path | None,
        on_processes: Callable[[Sequence[ProcessStat]], None] = lambda _: None,
    ) -> None:
        """`on_processes` gets the living processes of the commands at each look."""
        self._status, self._last_line = status, last_line
        self._checkpoints, self._on_processes = checkpoints, on_processes
        self._looked = time.monotonic() - max(0.0, POLL_INTERVAL - FIRST_POLL)
        self._ticks = 0

    def poll(self, runner: Runner) -> None:
        """Look at the commands of `runner`, if the last look was POLL_INTERVAL ago."""
        now = time.monotonic()
        passed = now - self._looked
        if passed < POLL_INTERVAL:
            return
        self._looked = now
        tree = runner.list_processes()
        self._on_processes(tree)
        times = [self._last_line() or 0.0, self._last_write()]
        if self._is_working(runner, tree, passed):
            times.append(time.time())
        newest = max(times)
        if newest > (self._status.status.active_at or 0.0):
            self._status.update(active_at=newest)

    def _is_working(self, runner: Runner, tree: Sequence[ProcessStat], passed: float) -> bool:
        before, self._ticks = self._ticks, sum(process.ticks for process in tree)
        # A smaller sum means that a process ended unreaped, which is activity too.
        used = abs(self._ticks - before) / _TICKS
        return (
            used >= ACTIVE_CPU_SHARE * passed
            or any(process.is_blocked for process in tree)
            or runner.has_connections()
        )

    def _last_write(self) -> float:
        if self._checkpoints is None:
            return 0.0
        return max(_iter_mtimes(self._checkpoints), default=0.0)


def _iter_mtimes(folder: Path) -> Iterator[float]:
    stack, left = [folder], MAX_ENTRIES
    while stack and left > 0:
        try:
            with os.scandir(stack.pop()) as entries:
                for entry in islice(entries, left):
                    left -= 1
                    yield entry.stat(follow_symlinks=False).st_mtime
                    if entry.is_dir(follow_symlinks=False):
                        stack.append(Path(entry.path))
        except OSError:
            continue  # deleted during the walk
