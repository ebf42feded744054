"""The image of a job, pulled as a task that people see, before an attempt's nodes are launched."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any, Final, cast
from uuid import UUID

from prefect.artifacts import create_progress_artifact, update_progress_artifact
from prefect.client.schemas.objects import State
from prefect.logging import get_run_logger
from prefect.states import Cancelled

from prefect_bt.attempts.job_context import JobContext
from prefect_bt.attempts.lifecycle import plan_job_image, resolve_image_secrets
from prefect_bt.errors import ImageError
from prefect_bt.flows.tasks.job_task import call_task, job_task
from prefect_bt.flows.tasks.reporting.report import API_ERRORS
from prefect_bt.registries.pull_progress import PullProgress
from prefect_bt.workspace.limits import format_bytes

POLL_INTERVAL: Final = 0.5
"""Seconds between two looks at whether somebody asked to stop; longer than an image that is here
takes, because the first look asks Prefect."""
_PERCENT_STEP: Final = 10.0
"""Per cent of the way between two words to Prefect."""


def ensure_image(site: JobContext, attempt: int, stop_requested: Callable[[], bool]) -> bool:
    """Have the job's image where its nodes are launched; False when asked to stop meanwhile.

    ImageError, SecretError. What the first attempt got is what the job runs from then on.
    """
    if not site.substrate.supports_images:
        return True
    with _stop_event(stop_requested) as stop:
        try:
            call_task(pull_image, site, attempt, stop)
        except ImageError:
            if not stop_requested():
                raise
    return not stop_requested()


@contextmanager
def _stop_event(stop_requested: Callable[[], bool]) -> Generator[threading.Event]:
    """An event that is set as soon as somebody asks to stop, or this block ends."""
    stop = threading.Event()

    def look() -> None:
        while not stop.wait(POLL_INTERVAL):
            if stop_requested():
                stop.set()

    context = contextvars.copy_context()  # Prefect's server is a matter of context
    threading.Thread(target=context.run, args=(look,), name="stop-of-a-pull", daemon=True).start()
    try:
        yield stop
    finally:
        stop.set()


@job_task("pull-image", run_name="attempt {attempt} · pull image")
def pull_image(site: JobContext, attempt: int, stop: threading.Event) -> str | State[Any]:
    """Return the reference by which the job pins the image: with its digest, or an id."""
    _ = attempt
    plan, log = plan_job_image(site), get_run_logger()
    show = _PullProgressReporter(f"image-{site.job_id}", plan.reference)
    try:
        image = site.substrate.prepare_image(
            plan, secrets=resolve_image_secrets(site), on_progress=show.update, cancelled=stop
        )
    except ImageError:
        if stop.is_set():
            return Cancelled(message="Stopped; the layers that came are kept.")
        raise
    show.finish()
    for note in image.notes:
        log.warning(note)
    return site.ledger.pin_image(site.job_id, image.reference)


class _PullProgressReporter:
    """A bar on the run. Only for show: no fault of the API matters."""

    def __init__(self, key: str, reference: str) -> None:
        self._key, self._reference = key, reference
        self._artifact: UUID | None = None
        self._reported_percent, self._note = -_PERCENT_STEP, ""
        self._log = get_run_logger()

    def update(self, progress: PullProgress) -> None:
        if progress.note and progress.note != self._note:
            self._note = progress.note
            self._log.warning("%s: %s", self._reference, progress.note)
        if not progress.bytes_total:
            return
        percent = 100.0 * progress.bytes_done / progress.bytes_total
        if percent - self._reported_percent < _PERCENT_STEP:
            return
        self._reported_percent = percent
        self._update_artifact(percent, _format_progress(progress))

    def finish(self) -> None:
        if self._artifact is not None:
            self._update_artifact(100.0, f"{self._reference}: pulled")

    def _update_artifact(self, percent: float, text: str) -> None:
        try:
            if self._artifact is None:
                self._log.info(text)
                made = create_progress_artifact(percent, key=self._key, description=text)
                # In a thread without a loop it answers at once, whatever its type says.
                self._artifact = cast("UUID", made)
            else:
                update_progress_artifact(self._artifact, percent, description=text)
        except API_ERRORS as error:
            self._log.debug("The pull cannot be shown: %s", error)


def _format_progress(progress: PullProgress) -> str:
    done, total = format_bytes(progress.bytes_done), format_bytes(progress.bytes_total)
    layers = f"{progress.layers_done} of {progress.layers_total} layers"
    left = progress.seconds_left
    rest = f", about {left:.0f} s left" if left is not None else ""
    rate = f", {format_bytes(int(progress.rate))}/s" if progress.rate else ""
    return f"{progress.reference}: {done} of {total}, {layers}{rate}{rest}"
