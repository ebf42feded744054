"""Mirror the weights of a node in the pod's init container, before the node starts.

The commands container mounts each published tree, which must exist when the container is created.
"""

from __future__ import annotations

import signal
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress

from prefect_bt.credentials.redaction import Redactor
from prefect_bt.ledger.records import EXIT_NOT_STARTED, Cause, NodePhase, NodeStatus, StopReason
from prefect_bt.ledger.requests import StopRequest
from prefect_bt.node_agent.agent_failure import classify_staging_error, describe_failure
from prefect_bt.node_agent.log_writer import LogFile
from prefect_bt.node_agent.pod.pod_files import PodFiles
from prefect_bt.node_agent.publishing.publisher import INTERVAL, GangPublisher
from prefect_bt.object_store import open_store
from prefect_bt.planning.plan import VolumeKind, WeightsPlan
from prefect_bt.settings import Settings
from prefect_bt.text.progress import Progress, StepFilter, format_progress
from prefect_bt.text.url_redaction import redact_url
from prefect_bt.weights import NodeCache, mirror_source
from prefect_bt.weights.mirror import format_result


def mirror_weights(pod: PodFiles) -> int:
    """Mirror every source. Return the exit code of the container."""
    staging = _Staging(pod)
    signal.signal(signal.SIGTERM, lambda _number, _frame: staging.stop(StopReason.POD_DELETED))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    publisher = GangPublisher(pod.open_gang(), lambda: [staging], prints=True)
    with ThreadPoolExecutor(1) as threads:
        work = threads.submit(staging.mirror_all)
        while not work.done():
            publisher.step()
            time.sleep(INTERVAL)
    if staging.finish(work):
        publisher.step(soon=True)
        return 0
    publisher.finish()
    return EXIT_NOT_STARTED


class _Staging:
    """Mirrors of one pod, in the order of the definition."""

    def __init__(self, pod: PodFiles) -> None:
        self._pod = pod
        self._status = NodeStatus(pod.plan.rank, NodePhase.STAGING)
        self._redact = Redactor(pod.secrets.values())
        self._log = LogFile(pod.staging_log, self._redact)
        self._stop = threading.Event()
        self._reason = ""
        self.rank = pod.plan.rank

    def observe(self) -> NodeStatus:
        return self._status

    def read_log(self, *, offset: int, limit: int) -> bytes:
        with self._pod.staging_log.open("rb") as file:
            file.seek(offset)
            return file.read(limit)

    def read_metrics(self, *, offset: int, limit: int) -> bytes:
        """Return nothing: the mirror of weights is not sampled."""
        _ = offset, limit
        return b""

    def apply_request(self, before: StopRequest, now: StopRequest) -> None:
        if now.reason:
            self.stop(now.reason)

    def stop(self, reason: str) -> None:
        self._reason = self._reason or reason
        self._stop.set()

    def mirror_all(self) -> None:
        """Mirror every source. PrefectBtError, OSError."""
        trees = [v.key for v in self._pod.plan.volumes if v.kind is VolumeKind.WEIGHTS]
        for source in self._pod.weights:
            tree = next(name for name in trees if name.startswith(source.key))
            self._mirror(source, tree.removeprefix(source.key).removeprefix("-"))

    def finish(self, work: Future[None]) -> bool:
        """Return whether the node can start. If not, the status has the reason."""
        reason, cause = self._reason, None
        if not reason and (error := work.exception()) is not None:
            cause = classify_staging_error(error) or Cause.STAGING_FAILED
            what = self._redact(str(error))
            if cause is Cause.AGENT_FAILED:
                what = describe_failure(error, self._redact)
            reason = f"staging failed: {what}"
            self._log.write_platform(reason)
        self._log.close()
        if not reason:
            return True
        self._status = NodeStatus(
            self._pod.plan.rank,
            NodePhase.DONE,
            exit_code=EXIT_NOT_STARTED if cause else None,
            reason=reason,
            ended_at=time.time(),
            cause=cause,
        )
        return False

    def _mirror(self, source: WeightsPlan, revision: str) -> None:
        settings, steps = Settings(), StepFilter()

        def show(progress: Progress) -> None:
            if progress.items_total and steps.is_step(progress):
                with suppress(OSError):
                    self._log.write_platform(f"{progress.name}: {format_progress(progress)}")

        mirrored = mirror_source(
            source,
            cache=NodeCache(self._pod.weights_cache, settings.weights_bytes),
            secret=self._pod.secrets.get(source.secret),
            store=open_store(self._pod.plan.store),
            revision=revision,
            upload_to_store=settings.mirror_to_store,
            stall_timeout=settings.stall_seconds,
            on_progress=show,
            stop=self._stop,
        )
        self._log.write_platform(f"{redact_url(source.source)}: {format_result(mirrored)}")
