"""The uploader's process: `python -m prefect_bt.node_agent.upload_process --plan F --directory D
--status F`.

It is a separate process of the lowest priority, so that it takes no core, disk or memory from the
training. The end of its standard input requests the final flush; the kernel also closes the input
when the node agent dies. A byte before the end says that the commands ended with 0. The uploader
ignores signals, which are meant for the commands. Exit code: 0 all flushed, 1 an upload failed (the
status file has the error), 2 wrong use.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import os
import platform
import signal
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

from prefect_bt import codec
from prefect_bt.checkpoints.manifest import UploadOrigin
from prefect_bt.checkpoints.upload.upload_status import StatusPublisher, plan_repeat
from prefect_bt.checkpoints.upload.uploader import Uploader, UploadOptions
from prefect_bt.errors import PrefectBtError, StoreError
from prefect_bt.host.nodes.files import write_text_atomic
from prefect_bt.ledger.fencing_epochs import Epochs
from prefect_bt.ledger.records import UploadStatus
from prefect_bt.object_keys import job_prefix
from prefect_bt.object_store import open_store
from prefect_bt.planning.plan import NodePlan

_IOPRIO_SET: Final = {"x86_64": 251, "aarch64": 30}
_IOPRIO_IDLE: Final = 3 << 13
_PRIO_PROCESS: Final = 1


def main(arguments: list[str] | None = None) -> int:
    """Run until standard input ends, flush, and return the exit code."""
    given = _parse_arguments(arguments)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    _lower_priority()
    report = partial(_write_status, given.status)
    delays: Sequence[float] = ()
    try:
        plan = codec.loads(NodePlan, given.plan.read_bytes())
        delays = plan.checkpoints.repeat_delays if plan.checkpoints is not None else ()
        store, origin = open_store(plan.store), _upload_origin(plan)
        ending, succeeded = threading.Event(), threading.Event()
        threading.Thread(target=_wait_for_eof, args=(ending, succeeded), daemon=True).start()
        publisher = StatusPublisher(store, origin)
        job = job_prefix(plan.project_id, plan.job_id)
        epochs = Epochs(store, plan.job_id, job, clock=time.time)

        def report_and_publish(status: UploadStatus) -> None:
            report(status)
            publisher.publish(status)

        uploader = Uploader(
            store,
            directory=given.directory,
            origin=origin,
            options=replace(_upload_options(plan, given), fence=epochs.fence(plan.epoch)),
            report=report_and_publish,
        )
        status = uploader.run(ending, has_succeeded=succeeded.is_set)
        repeat = plan_repeat(status, failed_tries=given.failed_tries, delays=delays)
        if repeat is not None:
            report_and_publish(replace(status, repeat=repeat))
        publisher.close()
    except Exception as error:  # outermost handler: a status must exist
        what = (
            str(error) if isinstance(error, PrefectBtError) else f"{type(error).__name__}: {error}"
        )
        status = UploadStatus(
            updated_at=time.time(),
            error=f"The uploader failed: {what}",
            store_failed=isinstance(error, StoreError),
        )
        repeat = plan_repeat(status, failed_tries=given.failed_tries, delays=delays)
        report(replace(status, repeat=repeat))
        if not isinstance(error, PrefectBtError):
            raise
        print(what, file=sys.stderr)
        return 1
    return 1 if status.error else 0


def _parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="prefect_bt.node_agent.upload_process", description=__doc__
    )
    parser.add_argument("--plan", type=Path, required=True, help="the node's plan, JSON")
    parser.add_argument("--directory", type=Path, required=True, help="the checkpoint directory")
    parser.add_argument("--status", type=Path, required=True, help="where to write the status")
    parser.add_argument(
        "--patience", type=float, default=120.0, help="seconds without progress in the final flush"
    )
    parser.add_argument(
        "--failed-tries", type=int, default=0, help="final flushes of the node that failed before"
    )
    parser.add_argument(
        "--volume",
        nargs=2,
        action="append",
        default=[],
        metavar=("PATH", "FOLDER"),
        help="a path of the node and its folder here, which links may lead into",
    )
    given = parser.parse_args(arguments)
    if not given.plan.is_file():
        parser.error(f"no plan at {given.plan}")
    return given


def _upload_origin(plan: NodePlan) -> UploadOrigin:
    return UploadOrigin(
        project_id=plan.project_id,
        job_id=plan.job_id,
        rank=plan.rank,
        attempt=plan.attempt,
        group_size=plan.group_size,
    )


def _upload_options(plan: NodePlan, given: argparse.Namespace) -> UploadOptions:
    pairs: list[list[str]] = given.volume
    targets = tuple((target, Path(folder)) for target, folder in pairs)
    options, wanted = UploadOptions(stall_timeout=given.patience, mounts=targets), plan.checkpoints
    if wanted is None:
        return options
    return replace(options, settle=wanted.settle, scan=wanted.scan, retention=wanted.retention)


def _write_status(target: Path, status: UploadStatus) -> None:
    with contextlib.suppress(OSError):  # a full disk of the node must not stop the uploads
        write_text_atomic(target, codec.dumps(status))


def _wait_for_eof(ending: threading.Event, succeeded: threading.Event) -> None:
    with contextlib.suppress(OSError):
        while os.read(0, 4096):
            succeeded.set()
    ending.set()


def _lower_priority() -> None:
    """Set the lowest CPU priority, and the idle class for the disk."""
    with contextlib.suppress(OSError):
        os.nice(19)
    call = _IOPRIO_SET.get(platform.machine())
    if call is not None:
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None, use_errno=True).syscall(call, _PRIO_PROCESS, 0, _IOPRIO_IDLE)


if __name__ == "__main__":
    sys.exit(main())
