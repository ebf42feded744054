"""Pull a job's image in a task of its own, before the nodes of an attempt are launched."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any, Final

from prefect.client.schemas.objects import State
from prefect.logging import get_run_logger
from prefect.states import Cancelled

from prefect_bt.attempts.job_context import JobContext
from prefect_bt.attempts.lifecycle import plan_job_image, resolve_image_secrets
from prefect_bt.errors import ImageError
from prefect_bt.flows.tasks.job_task import call_task, job_task, start_thread
from prefect_bt.flows.tasks.reporting.run_progress import report_progress

POLL_INTERVAL: Final = 0.5
"""Seconds between two checks for a requested stop. A present image takes less, so that it costs no
request to Prefect."""


def ensure_image(site: JobContext, attempt: int, stop_requested: Callable[[], bool]) -> bool:
    """Make the job's image available to its nodes. Return False when a stop was requested.

    Every attempt uses the image that the first one pulled. ImageError, SecretError.
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
    """Yield an event that is set when a stop is requested or the block ends."""
    stop = threading.Event()

    def check() -> None:
        while not stop.wait(POLL_INTERVAL):
            if stop_requested():
                stop.set()

    start_thread(check)
    try:
        yield stop
    finally:
        stop.set()


@job_task("pull-image", run_name="attempt {attempt} · pull image")
def pull_image(site: JobContext, attempt: int, stop: threading.Event) -> str | State[Any]:
    """Return the pinned reference of the image: with its digest, or its id."""
    _ = attempt
    plan, log = plan_job_image(site), get_run_logger()
    secrets = resolve_image_secrets(site)
    try:
        with report_progress(f"image-{site.job_id}") as progress:
            image = site.substrate.prepare_image(
                plan, secrets=secrets, on_progress=progress.update, cancelled=stop
            )
            progress.finish()
    except ImageError:
        if stop.is_set():
            return Cancelled(message="Stopped; the pulled layers are kept.")
        raise
    for note in image.notes:
        log.warning(note)
    return site.ledger.pins.pin_image(site.job_id, image.reference)
