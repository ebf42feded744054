"""Watch the metrics of a running gang: report advice, refresh the card, detect hangs.

The nodes' files are read as they grow. Errors of the store and of the API are not raised.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from typing import Any, Final

from prefect.logging import get_run_logger

from prefect_bt.attempts.gang_policy import Gang
from prefect_bt.attempts.job_context import JobContext
from prefect_bt.errors import PrefectBtError
from prefect_bt.flows.tasks.reporting.report import publish_job_card, report_advice
from prefect_bt.flows.tasks.reporting.run_progress import poll_until_end
from prefect_bt.job_metrics.advice import RECENT_POINTS, Advice, AdviceKind, find_advice
from prefect_bt.job_metrics.node_metrics import MetricsDecoder, NodeMetrics
from prefect_bt.substrates.protocol import NodeHandle
from prefect_bt.text.control_characters import escape_controls

POLL_INTERVAL: Final = 5.0
"""Seconds between two reads of the nodes' metrics."""
WINDOW: Final = 1800.0
"""Seconds of metrics that are kept in memory."""
READ_BYTES: Final = 1 << 20
REPEAT_AFTER: Final = 1800.0
"""Seconds after which advice that still applies is reported again."""
_CARD_INTERVAL: Final = 60.0
"""Seconds from the start to the first refresh of the card; doubled with each one."""


@contextmanager
def monitor_gang(site: JobContext, gang: Gang) -> Generator[GangMonitor]:
    """Yield a monitor that a thread runs until the block ends."""
    monitor = GangMonitor(site, gang)
    with poll_until_end(monitor.poll, POLL_INTERVAL):
        yield monitor


class GangMonitor:
    """Monitor of one attempt."""

    def __init__(
        self, site: JobContext, gang: Gang, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._site, self._gang, self._clock = site, gang, clock
        self._decoders = [
            MetricsDecoder(NodeMetrics(gang.attempt, node.rank)) for node in gang.handles
        ]
        self._reported = dict[tuple[str, int | None], float]()
        """When an advice was reported last, by kind and rank."""
        self._hang = ""
        self._card_interval, self._card_due = _CARD_INTERVAL, clock() + _CARD_INTERVAL
        self._logger: logging.Logger | logging.LoggerAdapter[Any] = get_run_logger()

    def find_hang(self) -> str:
        """Return a sentence if the gang hangs and its job wants to be stopped then, else ""."""
        return self._hang if self._site.record.retries.stop_on_hang else ""

    def poll(self) -> None:
        """Read what is new, and report."""
        for handle, decoder in zip(self._gang.handles, self._decoders, strict=True):
            with suppress(PrefectBtError, OSError):
                _read_new(handle, decoder)
            if decoder.node.times:
                decoder.node.keep_since(decoder.node.times[-1] - WINDOW, points=RECENT_POINTS)
        now = self._clock()
        if now >= self._card_due:
            self._card_due, self._card_interval = now + self._card_interval, 2 * self._card_interval
            with suppress(PrefectBtError):
                publish_job_card(self._site)
        if any(status.commands_ended for status in self._gang.statuses):
            return  # an ended rank looks idle
        for advice in find_advice([decoder.node for decoder in self._decoders], time.time()):
            self._report(advice)

    def _report(self, advice: Advice) -> None:
        if advice.kind is AdviceKind.HANG:
            self._hang = advice.text
        now, key = self._clock(), (advice.kind, advice.rank)
        if now - self._reported.get(key, -REPEAT_AFTER) < REPEAT_AFTER:
            return
        self._reported[key] = now
        self._logger.warning("%s", escape_controls(advice.text))
        report_advice(self._site, advice, attempt=self._gang.attempt)


def _read_new(handle: NodeHandle, decoder: MetricsDecoder) -> None:
    while data := handle.read_metrics(offset=decoder.offset, limit=READ_BYTES):
        decoder.feed(data)
