"""`stage_repeatedly.py TIMES SOURCE…`: stage what is here already, as the next job's run does.

In a process that has everything imported: `mirror_source`, then the folder bound read-only in a
mount namespace of its own, as a node sees it, until a file there has been read. The sources take
turns. State directory and store are those of PREFECT_BT_*. Prints JSON: source -> rows of seconds
until the mirror had answered, and until the file was read.
"""

from __future__ import annotations

import json
import os
import sys
import time
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory

from prefect_bt.host.mounts.namespace import enter_view
from prefect_bt.host.mounts.namespace_plan import Bind, plan_view
from prefect_bt.object_store import open_store
from prefect_bt.planning.planner import plan_weights_sources
from prefect_bt.settings import Settings
from prefect_bt.weights import mirror_source
from prefect_bt.weights.cache.node_cache import NodeCache

JOB, MOUNT = "benchj1", "/models/bench"


class Mounter:
    """A process that was forked while it had one thread, and forks one for every mount."""

    def __init__(self) -> None:
        self._asks, answers = Pipe()
        if os.fork() == 0:
            self._asks.close()
            _mount_all(answers)
        answers.close()

    def mount(self, files: Path) -> None:
        self._asks.send(str(files))
        fault = self._asks.recv()
        if fault:
            sys.exit(f"{files} could not be mounted: {fault}")

    def settle(self) -> None:
        """Wait until the last mount is gone."""
        self._asks.recv()

    def close(self) -> None:
        self._asks.close()
        os.wait()


def _mount_all(asked: Connection) -> None:
    while True:
        try:
            files = Path(asked.recv())
        except EOFError:
            os._exit(0)
        with TemporaryDirectory() as scratch:
            child = os.fork()
            if child == 0:
                asked.send(_mount(files, Path(scratch)))
                os._exit(0)  # and with the process its namespace
            os.waitpid(child, 0)
        asked.send("")


def _mount(files: Path, scratch: Path) -> str:
    """What went wrong, or ""."""
    root, mirrors = scratch / "root", scratch / "mirrors"
    try:
        root.mkdir()
        mirrors.mkdir()
        enter_view(plan_view([Bind(files, MOUNT, read_only=True)]), root=root, mirrors=mirrors)
        with os.scandir(MOUNT) as found, Path(next(found)).open("rb") as first:
            first.read(1)
    except OSError as error:
        return str(error)
    return ""


def main(times: int, sources: list[str]) -> None:
    mounter = Mounter()
    settings = Settings()
    cache = NodeCache(settings.weights_dir, settings.weights_bytes)
    store = open_store(settings.store)
    plans = {source: plan_weights_sources([{"source": source}])[0] for source in sources}
    rows: dict[str, list[tuple[float, float]]] = {source: [] for source in sources}
    for number in range(times + 1):
        for source, plan in plans.items():
            began = time.perf_counter()
            mirrored = mirror_source(plan, cache=cache, store=store, lease_holder=JOB)
            answered = time.perf_counter() - began
            mounter.mount(mirrored.folder)
            read = time.perf_counter() - began
            mounter.settle()
            if not mirrored.cache_hit:
                sys.exit(f"{source} was not here already.")
            if number:  # the first imports what is imported on use
                rows[source].append((answered, read))
    mounter.close()
    print(json.dumps(rows))


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
