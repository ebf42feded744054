"""Mirror weights in tasks of a Prefect run, two sources at a time.

The flow's main thread waits for the tasks and stops them, because Prefect's cancellation, Ctrl-C
and SIGTERM arrive there.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, Final

from prefect.client.schemas.objects import State
from prefect.futures import PrefectFuture, wait
from prefect.logging import get_run_logger
from prefect.states import Cancelled

from prefect_bt import codec
from prefect_bt.attempts.job_context import JobContext
from prefect_bt.credentials.secrets import SecretSource, resolve_secrets
from prefect_bt.errors import StoreError, WeightsError
from prefect_bt.flows.tasks.job_task import job_task
from prefect_bt.flows.tasks.reporting.run_progress import report_progress
from prefect_bt.object_keys import mirroring_prefix
from prefect_bt.object_store.protocols import Store
from prefect_bt.planning.plan import WeightsPlan
from prefect_bt.settings import Settings
from prefect_bt.text.progress import Progress
from prefect_bt.text.url_redaction import redact_url
from prefect_bt.weights import MirrorResult, NodeCache, mirror_source
from prefect_bt.weights.mirror import format_result

KEPT: Final = "Stopped; downloaded data is kept."
"""Message of a cancelled mirror."""
MAX_CONCURRENT: Final = 2
"""A second source uses the pauses of the first; one source alone fills most connections."""
POLL_INTERVAL: Final = 0.25
"""Seconds between two checks for a requested stop."""
STOP_TIMEOUT: Final = 20.0
"""Seconds in which stopped mirrors keep what has arrived and end."""


@dataclass(frozen=True)
class MirrorContext:
    """The context that the mirrors of one run share; `job` mounts the weights, if there is one."""

    settings: Settings
    store: Store
    secret_sources: Sequence[SecretSource]
    job: JobContext | None = None

    def publish_progress(self, plan: WeightsPlan, progress: Progress) -> None:
        """Write the progress to the store as JSON, for the job's log. Store errors are ignored."""
        if self.job:
            prefix = mirroring_prefix(self.job.record.project_id, self.job.job_id)
            document = codec.dumps(replace(progress, name=redact_url(plan.source)))
            with suppress(StoreError):
                self.store.put(f"{prefix}/{plan.key}", document.encode())


def _run_name(parameters: dict[str, Any]) -> str:
    """Return the name of a task run, from its parameter `source` without a signed query."""
    return f"mirror-weights {redact_url(parameters['source'].source)}"


@job_task("mirror-weights", run_name=_run_name)
def mirror_one(
    site: MirrorContext, source: WeightsPlan, stop: threading.Event
) -> MirrorResult | State[Any]:
    """Mirror one source, unless this machine has it, and show its progress.

    The first mirror of a job pins the revision. All attempts of the job use that revision.
    """
    settings, job = site.settings, site.job
    wanted, team = [source.secret] if source.secret else [], job.team if job else ""
    secret = resolve_secrets(wanted, site.secret_sources, team=team).get(source.secret)
    pin = job.ledger.pins.read_weights(job.job_id).get(source.key) if job else None
    shown = f"weights-{job.job_id}-{source.key[:12]}" if job else f"weights-{source.key}"
    try:
        with report_progress(shown, on_report=partial(site.publish_progress, source)) as progress:
            mirrored = mirror_source(
                source,
                cache=NodeCache(settings.weights_dir, settings.weights_bytes),
                secret=secret,
                store=site.store,
                revision=pin.revision if pin else "",
                lease_holder=job.job_id if job else "",
                upload_to_store=settings.mirror_to_store,
                stall_timeout=settings.stall_seconds,
                on_progress=progress.update,
                stop=stop,
            )
    except WeightsError:
        if stop.is_set():
            return Cancelled(message=KEPT)
        raise
    get_run_logger().info("%s: %s", redact_url(source.source), format_result(mirrored))
    if job:
        job.ledger.pins.pin_weights(
            job.job_id, source.key, mirrored.revision, files=mirrored.files, size=mirrored.bytes
        )
    return mirrored


def mirror_all(
    site: MirrorContext,
    plans: Sequence[WeightsPlan],
    *,
    stop_requested: Callable[[], bool],
    keep_going: bool = False,
) -> dict[str, PrefectFuture[Any]]:
    """Mirror all sources, two at a time. Return the futures of the started tasks by key.

    Unless `keep_going`, the first failure stops the others and is raised. When `stop_requested`
    returns true, all tasks are stopped and nothing is raised.
    """
    stop, waiting = threading.Event(), deque(plans)
    futures: dict[str, PrefectFuture[Any]] = {}
    over: SimpleQueue[PrefectFuture[Any]] = SimpleQueue()
    going = 0
    try:
        while going or (waiting and not stop.is_set()):
            while waiting and going < MAX_CONCURRENT and not stop.is_set():
                plan = waiting.popleft()
                future: Any = mirror_one.submit(site, plan, stop)  # pyright: ignore[reportUnknownMemberType]
                futures[plan.key] = future
                future.add_done_callback(over.put)
                going += 1
            try:
                ended = over.get(timeout=POLL_INTERVAL)
            except Empty:
                if not stop.is_set() and stop_requested():
                    stop.set()
                continue
            going -= 1
            if not (keep_going or stop.is_set()):
                ended.result()
    except BaseException:
        stop.set()
        wait(list(futures.values()), timeout=STOP_TIMEOUT)
        raise
    return futures
