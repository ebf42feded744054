"""Uploads as people see them on a Prefect run: a bar while bytes move, a line for every commit.

What is shown is what the uploaders announce through the store, so that it is right wherever nodes
run. Prefect is told of commits and of every tenth of the way, never by the clock alone.
"""

from __future__ import annotations

import contextvars
import logging
import threading
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any, Final, cast
from uuid import UUID

from prefect.artifacts import create_progress_artifact, update_progress_artifact
from prefect.logging import get_run_logger

from prefect_bt.attempts import JobSite
from prefect_bt.checkpoints.announcing import RankUpload, Uploads
from prefect_bt.checkpoints.telling import told, told_all
from prefect_bt.errors import StoreError
from prefect_bt.flows.reporting import UNREACHABLE
from prefect_bt.lastsave import find_last_save
from prefect_bt.visible import visible

EVERY: Final = 3.0
"""Seconds between two looks at the store."""
_PART: Final = 10.0
"""Per cent of the way between two words to Prefect."""


@contextmanager
def uploads_shown(site: JobSite, attempt: int) -> Generator[None]:
    """Show the attempt's uploads on the run until the block ends."""
    if not site.checkpointing:
        yield
        return
    over = threading.Event()
    show = UploadsOnRun(site, attempt)
    # The run's context: artifacts and log lines belong to it.
    context = contextvars.copy_context()
    thread = threading.Thread(target=context.run, args=(show.until, over), daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(30)


class UploadsOnRun:
    """One attempt's uploads. Only for show: no fault of store or API goes further than here."""

    def __init__(self, site: JobSite, attempt: int) -> None:
        record = site.record
        self._site, self._warned = site, False
        self._uploads = Uploads(site.ledger.store, record.project_id, record.id, attempt)
        self._key = f"uploads-{record.id}-{attempt}"
        self._artifact: UUID | None = None
        self._shown = -_PART
        self._committed: dict[int, int] = {}
        self._troubles: dict[int, str] = {}
        self._logger: logging.Logger | logging.LoggerAdapter[Any] = get_run_logger()

    def until(self, over: threading.Event) -> None:
        while not over.wait(EVERY):
            self.look()
        self.look()

    def look(self) -> None:
        try:
            ranks = self._uploads.look()
        except StoreError:
            return
        try:
            self._log(ranks)
            self._bar(ranks)
        except StoreError:
            return
        except UNREACHABLE as error:
            self._logger.debug("The uploads cannot be shown: %s", error)

    def _log(self, ranks: Sequence[RankUpload]) -> None:
        for one in ranks:
            names = one.status.committed
            new = names[self._committed.get(one.rank, 0) :]
            if new:
                self._committed[one.rank] = len(names)
                shown = visible(", ".join(new))
                self._logger.info("rank %d: committed %s; %s", one.rank, shown, told(one))
                self._warn()
            trouble = one.status.trouble
            if trouble != self._troubles.get(one.rank, ""):
                self._troubles[one.rank] = trouble
                if trouble:
                    self._logger.warning("rank %d: tried again: %s", one.rank, visible(trouble))

    def _warn(self) -> None:
        """Once an attempt, where a last checkpoint would not be saved in the time there is."""
        site = self._site
        settings = site.settings
        found = find_last_save(
            site.ledger, site.record, grace=settings.grace, notice=settings.notice
        )
        if found and found.warning and not self._warned:
            self._warned = True
            self._logger.warning("%s", found.warning)

    def _bar(self, ranks: Sequence[RankUpload]) -> None:
        total = sum(one.status.bytes_total for one in ranks)
        if not total:
            return
        percent = 100.0 * sum(one.status.bytes_done for one in ranks) / total
        if self._artifact is None:
            made = create_progress_artifact(percent, key=self._key, description=told_all(ranks))
            # In a thread without a loop it answers at once, whatever its type says.
            self._artifact = cast("UUID", made)
        elif abs(percent - self._shown) >= _PART or (percent == 100.0 != self._shown):
            update_progress_artifact(self._artifact, percent, description=told_all(ranks))
        else:
            return
        self._shown = percent
