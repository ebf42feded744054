"""A laptop and a GPU server with one store: two state folders, and what each of them has."""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from prefect_bt.definitions import TrainingProject
from prefect_bt.jobs.options import SubmitOptions
from prefect_bt.jobs.starting import start_queued
from prefect_bt.jobs.starting.start_queued import open_machine_queue, start_waiting_jobs
from prefect_bt.jobs.submit import submit
from prefect_bt.ledger.ledger import Ledger
from prefect_bt.ledger.open_ledger import open_ledger

LAPTOP = {"PREFECT_BT_CAPACITY_CPUS": "1", "PREFECT_BT_CAPACITY_MEMORY": "1GiB"}
SERVER = {"PREFECT_BT_CAPACITY_CPUS": "64", "PREFECT_BT_CAPACITY_MEMORY": "512GiB"}
SMI = '#!/bin/sh\nfor index in 0 1 2 3; do echo "$index, NVIDIA H100 80GB HBM3"; done\n'


class TwoMachines:
    """The machine of this process is the laptop, except within `server()`."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.folder, self.patch = folder, patch
        self.started = list[tuple[str, str]]()
        """Jobs that were handed to a supervisor: the name of the state folder, and the job."""
        (folder / "work").mkdir()
        (folder / "work/run.sh").touch()
        (folder / "bin").mkdir()
        (folder / "bin/nvidia-smi").write_text(SMI)
        (folder / "bin/nvidia-smi").chmod(0o755)
        patch.setenv("PREFECT_BT_STORE", str(folder / "store"))
        patch.setenv("KUBECONFIG", str(folder / "kubeconfig"))
        patch.delenv("PREFECT_API_URL", raising=False)
        patch.setenv("PREFECT_HOME", str(folder / "prefect"))
        patch.setattr(start_queued, "hand_over_job", self._hand_over)
        self._become("laptop", LAPTOP)

    @property
    def ledger(self) -> Ledger:
        return open_ledger()

    @contextmanager
    def server(self) -> Generator[None]:
        path = os.environ["PATH"]
        self.patch.setenv("PATH", f"{self.folder / 'bin'}:{path}")
        self._become("server", SERVER)
        try:
            yield
        finally:
            self.patch.setenv("PATH", path)
            self._become("laptop", LAPTOP)

    def report_server(self) -> None:
        """Report the server as its worker does."""
        with self.server():
            open_machine_queue(self.ledger).report()

    def push(self, project: TrainingProject, **options: Any) -> dict[str, Any]:
        chosen = SubmitOptions(**{"substrate": "local", **options})
        return submit(project, source_dir=self.folder / "work", options=chosen)

    def poll(self) -> list[str]:
        """Start the jobs that this machine starts."""
        return start_waiting_jobs(self.ledger)

    def _become(self, name: str, capacity: dict[str, str]) -> None:
        for variable, value in capacity.items():
            self.patch.setenv(variable, value)
        self.patch.setenv("PREFECT_BT_STATE_DIR", str(self.folder / name))

    def _hand_over(self, ledger: Ledger, record: Any, lock: Any) -> None:
        self.started.append((Path(os.environ["PREFECT_BT_STATE_DIR"]).name, record.id))
        lock.release()
