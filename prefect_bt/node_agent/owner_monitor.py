"""Recover a job that no process watches any more, by a process that outlives the node.

Flow and supervisor may both be killed while the training runs. The guard of the lowest living rank
notices first, and starts `prefect_bt.jobs.reconcile`, which starts a supervisor for the job; the
gang is then watched again. Every process below a guard ends with it, so the recovery must not be
below it: while it starts, the guard adopts no orphans.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from prefect_bt.host import syscalls
from prefect_bt.host.job_lock import OWNER_FD_VARIABLE, has_lock_file, is_owned
from prefect_bt.host.processes import MARK_VARIABLE
from prefect_bt.host.state_folder import NodeRecord

if TYPE_CHECKING:
    import subprocess

POLL_INTERVAL: Final = 1.0
MAX_WAIT_SECONDS: Final = 5.0
"""Maximum seconds without an owner until rank 0 acts: a supervisor needs one to come back."""
DEADLINE_SHARE: Final = 0.25
"""Share of the time after which nodes give up, so that a failed recovery can be repeated."""
RANK_DELAY_SECONDS: Final = 1.0
"""Seconds between the turns of two ranks."""


class RecoveryMonitor:
    """Monitor of the job of one node."""

    def __init__(self, record: NodeRecord, store: str) -> None:
        self._state_dir, self._job_id = Path(record.state_dir), record.job_id
        self._limit, self._rank = record.orphan_deadline, record.rank
        module = (sys.executable, "-P", "-m", "prefect_bt.jobs.reconcile")
        self._command = (*module, record.state_dir, record.job_id, store)
        self._starting = threading.Lock()
        self._has_recovered = False

    def start(self) -> None:
        """Start to monitor in a thread, until this process ends."""
        if self._limit is not None:
            threading.Thread(target=self._monitor, daemon=True, name="rescue").start()

    def recover_before_exit(self) -> None:
        """Start the recovery if the ended node's job has no owner. Returns at once.

        For a process about to end: init then adopts the started process. A recovery that shuts down
        this node ends with it, before it has removed the node, and may hold the job's lock a moment
        longer; so one follows whatever the lock says.
        """
        if self._limit is not None and (self._has_recovered or self._is_abandoned()):
            with self._starting, suppress(OSError):
                self._start_recovery()

    def _monitor(self) -> None:
        assert self._limit is not None
        patience = min(MAX_WAIT_SECONDS, self._limit * DEADLINE_SHARE)
        owned = time.monotonic()
        while True:
            time.sleep(min(POLL_INTERVAL, patience))
            if not self._is_abandoned():
                owned = time.monotonic()
            elif time.monotonic() - owned > patience + self._rank * RANK_DELAY_SECONDS:
                with self._starting, suppress(OSError):
                    self._recover()
                owned = time.monotonic()

    def _is_abandoned(self) -> bool:
        there = has_lock_file(self._state_dir, self._job_id)
        return there and not is_owned(self._state_dir, self._job_id)

    def _recover(self) -> None:
        """Run until a supervisor is started, which becomes init's child at the end."""
        self._has_recovered = True
        with suppress(OSError):
            syscalls.set_subreaper(False)
        try:
            self._start_recovery().wait()
        finally:
            with suppress(OSError):
                syscalls.set_subreaper()

    def _start_recovery(self) -> subprocess.Popen[bytes]:
        import subprocess  # each of many nodes starts sooner without it

        return subprocess.Popen(
            self._command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,  # the last line of our stderr is a node's cause of death
            env={
                name: value for name, value in os.environ.items() if not _is_process_specific(name)
            },
            cwd="/",
            start_new_session=True,
        )


def _is_process_specific(variable: str) -> bool:
    """Return whether a variable marks a process as a node's, an owner's, or a Prefect run's."""
    return variable in {MARK_VARIABLE, OWNER_FD_VARIABLE} or variable.startswith("PREFECT__")
