"""Mirrors as people see them on a Prefect run: a bar a source, a line at both ends and for trouble.

Two sources at once, each in a task of its own; the flow's main thread waits for them, because that
is where Prefect's cancellation, Ctrl-C and SIGTERM arrive, and tells them to stop. Prefect hears of
every tenth of the way and of each phase, never by the clock alone.
"""

from __future__ import annotations

import contextvars
import logging
import threading
from collections import deque
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any, Final, cast
from uuid import UUID

from prefect.artifacts import create_progress_artifact, update_progress_artifact
from prefect.client.schemas.objects import State
from prefect.futures import PrefectFuture, wait
from prefect.logging import get_run_logger
from prefect.states import Cancelled

from prefect_bt.errors import WeightsError
from prefect_bt.flows.tasks.reporting.report import API_ERRORS
from prefect_bt.object_store.protocols import Store
from prefect_bt.planning.plan import WeightsPlan
from prefect_bt.settings import Settings
from prefect_bt.weights import MirrorPhase, MirrorProgress, MirrorResult, NodeCache, mirror_source
from prefect_bt.weights.progress_text import format_progress, format_result
from prefect_bt.weights.url_redaction import redact_url

KEPT: Final = "Stopped; what is here already is kept."
"""Message of a mirror that was cancelled."""
MAX_CONCURRENT: Final = 2
"""One source alone fills a line; a second one fills the pauses of the first."""
POLL_INTERVAL: Final = 0.25
"""Seconds between two looks at whether somebody asked to stop."""
STOP_TIMEOUT: Final = 20.0
"""Seconds in which those who were told to stop put away what they hold."""
_PERCENT_STEP: Final = 10.0
"""Per cent of the way between two words to Prefect."""

SubmitMirror = Callable[[WeightsPlan, threading.Event], PrefectFuture[Any]]


@dataclass(frozen=True)
class MirrorContext:
    """What the mirrors of one run share. `holder`: the job that needs them, "" for none."""

    settings: Settings
    store: Store
    holder: str = ""

    def artifact_key(self, plan: WeightsPlan) -> str:
        """A run of a job shows its own bars; without a job a source has one."""
        return f"weights-{self.holder}-{plan.key[:12]}" if self.holder else f"weights-{plan.key}"


def run_name(parameters: dict[str, Any]) -> str:
    """Name a task run by its parameter `source`, without what may be a signature."""
    return f"mirror-weights {redact_url(parameters['source'].source)}"


def mirror_with_progress(
    site: MirrorContext,
    plan: WeightsPlan,
    *,
    secret: str | None,
    stop: threading.Event,
    revision: str = "",
) -> MirrorResult | State[Any]:
    """Mirror one source inside a task, and show how far it is. WeightsError.

    Return a Cancelled state once `stop` is set.
    """
    settings = site.settings
    with report_mirror_progress(plan, site.artifact_key(plan)) as show:
        try:
            mirrored = mirror_source(
                plan,
                cache=NodeCache(settings.weights_dir, settings.weights_bytes),
                secret=secret,
                store=site.store,
                revision=revision,
                lease_holder=site.holder,
                upload_to_store=settings.mirror_to_store,
                stall_timeout=settings.stall_seconds,
                on_progress=show.update,
                stop=stop,
            )
        except WeightsError:
            if stop.is_set():
                return Cancelled(message=KEPT)
            raise
        show.log_result(mirrored)
        return mirrored


def mirror_all(
    plans: Sequence[WeightsPlan],
    submit: SubmitMirror,
    *,
    stop_requested: Callable[[], bool],
    keep_going: bool = False,
) -> dict[str, PrefectFuture[Any]]:
    """All sources, two at a time; the tasks by key, without those that never began.

    The first that fails ends the others and is raised, unless `keep_going`. Once `stop_requested`
    is true, all end soon, and nothing is raised.
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


@contextmanager
def report_mirror_progress(plan: WeightsPlan, key: str) -> Generator[MirrorProgressReporter]:
    """Show the source's progress on the task run until the block ends."""
    show = MirrorProgressReporter(plan, key)
    # The run's context: artifacts and log lines belong to it.
    context = contextvars.copy_context()
    thread = threading.Thread(target=context.run, args=(show.run,), daemon=True)
    thread.start()
    try:
        yield show
    finally:
        show.close()
        thread.join(STOP_TIMEOUT)


class MirrorProgressReporter:
    """One source. Only for show: a slow API keeps no byte waiting, and no fault of it matters."""

    def __init__(self, plan: WeightsPlan, key: str) -> None:
        self._name, self._key = redact_url(plan.source), key
        self._condition = threading.Condition()
        self._progress: MirrorProgress | None = None
        self._notes: deque[str] = deque()
        self._note = ""
        self._closed = False
        self._artifact: UUID | None = None
        self._last_reported: tuple[float, str] = (-_PERCENT_STEP, "")
        self._started = False
        self._logger: logging.Logger | logging.LoggerAdapter[Any] = get_run_logger()

    def update(self, progress: MirrorProgress) -> None:
        """From the mirror's threads; never blocks."""
        with self._condition:
            if progress.note and progress.note != self._note:
                self._note = progress.note
                self._notes.append(progress.note)
            self._progress = progress
            self._condition.notify()

    def log_result(self, mirrored: MirrorResult) -> None:
        self._logger.info("%s: %s", self._name, format_result(mirrored))

    def close(self) -> None:
        with self._condition:
            self._closed = True
            self._condition.notify()

    def run(self) -> None:
        over = False
        while not over:
            with self._condition:
                if not self._closed:
                    self._condition.wait()
                over, progress = self._closed, self._progress
                notes, self._notes = list(self._notes), deque()
            for note in notes:
                self._logger.warning("%s: %s", self._name, note)
            if progress is not None:
                self._report(progress)

    def _report(self, progress: MirrorProgress) -> None:
        if progress.phase is MirrorPhase.FETCHING and not self._started:
            self._started = True
            self._logger.info("%s: %s", self._name, format_progress(progress))
        if not progress.files_total:
            return  # it is not known yet how much there is
        before, phase = self._last_reported
        if progress.phase.value == phase and progress.percent - before < _PERCENT_STEP:
            return
        self._last_reported = progress.percent, progress.phase.value
        try:
            self._update_artifact(progress)
        except API_ERRORS as error:
            self._logger.debug("The mirror cannot be shown: %s", error)

    def _update_artifact(self, progress: MirrorProgress) -> None:
        text = f"{self._name}: {format_progress(progress)}"
        if self._artifact is None:
            made = create_progress_artifact(progress.percent, key=self._key, description=text)
            # In a thread without a loop it answers at once, whatever its type says.
            self._artifact = cast("UUID", made)
        else:
            update_progress_artifact(self._artifact, progress.percent, description=text)
