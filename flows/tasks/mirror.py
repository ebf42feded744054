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
from prefect_bt.errors import StoreError, WeightsError
from prefect_bt.flows.tasks.reporting.run_progress import report_progress
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

SubmitMirror = Callable[[WeightsPlan, threading.Event], PrefectFuture[Any]]


@dataclass(frozen=True)
class MirrorContext:
    """The context that the mirrors of one run share. `holder` is the job; empty without one."""

    settings: Settings
    store: Store
    holder: str = ""
    progress_prefix: str = ""
    """Prefix of the objects that have the job's progress for its log; empty without a job."""

    def publish_progress(self, plan: WeightsPlan, progress: Progress) -> None:
        """Write the progress to the store as JSON. Errors of the store are ignored."""
        if self.progress_prefix:
            document = codec.dumps(replace(progress, name=redact_url(plan.source)))
            with suppress(StoreError):
                self.store.put(f"{self.progress_prefix}/{plan.key}", document.encode())

    def artifact_key(self, plan: WeightsPlan) -> str:
        """Return the key of the progress artifact: one for each job and source."""
        return f"weights-{self.holder}-{plan.key[:12]}" if self.holder else f"weights-{plan.key}"


def run_name(parameters: dict[str, Any]) -> str:
    """Return the name of a task run, from its parameter `source` without a signed query."""
    return f"mirror-weights {redact_url(parameters['source'].source)}"


def mirror_with_progress(
    site: MirrorContext,
    plan: WeightsPlan,
    *,
    secret: str | None,
    stop: threading.Event,
    revision: str = "",
) -> MirrorResult | State[Any]:
    """Mirror one source inside a task and show its progress. WeightsError.

    Return a Cancelled state when `stop` was set.
    """
    settings = site.settings
    try:
        with report_progress(
            site.artifact_key(plan), on_report=partial(site.publish_progress, plan)
        ) as progress:
            mirrored = mirror_source(
                plan,
                cache=NodeCache(settings.weights_dir, settings.weights_bytes),
                secret=secret,
                store=site.store,
                revision=revision,
                lease_holder=site.holder,
                upload_to_store=settings.mirror_to_store,
                stall_timeout=settings.stall_seconds,
                on_progress=progress.update,
                stop=stop,
            )
    except WeightsError:
        if stop.is_set():
            return Cancelled(message=KEPT)
        raise
    get_run_logger().info("%s: %s", redact_url(plan.source), format_result(mirrored))
    return mirrored


def mirror_all(
    plans: Sequence[WeightsPlan],
    submit: SubmitMirror,
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
                futures[plan.key] = future = submit(plan, stop)
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
