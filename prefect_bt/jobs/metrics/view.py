"""`prefect_bt.metrics`: the metrics of a job for Python programs and notebooks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from prefect_bt.job_metrics.document import metrics_document
from prefect_bt.job_metrics.job_metrics import JobMetrics, JobMetricsReader
from prefect_bt.job_metrics.node_metrics import NodeMetrics
from prefect_bt.job_metrics.pictures import draw, to_svg
from prefect_bt.job_metrics.series import Sample, Window, group_by_rank, join_column, join_training
from prefect_bt.jobs.job_json import job_document
from prefect_bt.ledger.ledger import Ledger
from prefect_bt.ledger.open_ledger import open_ledger
from prefect_bt.ledger.records import JobRecord
from prefect_bt.settings import Settings
from prefect_bt.training_cache.snapshot import read_snapshots
from prefect_bt.training_cache.usage import CacheSummary

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class JobMetricsView:
    """The metrics of a job at the time of the call. A notebook shows them as a picture."""

    def __init__(self, ledger: Ledger, metrics: JobMetrics) -> None:
        self._ledger, self._metrics = ledger, metrics

    @property
    def nodes(self) -> Sequence[NodeMetrics]:
        """The series of each node, in the order of attempts and ranks."""
        return self._metrics.nodes

    @property
    def names(self) -> list[str]:
        """Names of the series that the trainer reported."""
        return list(join_training(self._metrics))

    def series(self, name: str, *, rank: int = 0) -> list[Sample]:
        """Return every sample of a series over all attempts: `at`, `value`, `step`, `attempt`.

        Args:
            name: A name of the trainer's, such as `loss`, or a column of a node, such as `cpu`,
                `memory` or `gpu0_utilization`.
            rank: The node of a column.

        Raises:
            KeyError: There is no such series.
        """
        training = join_training(self._metrics)
        if name in training:
            return training[name]
        nodes = group_by_rank(self._metrics).get(rank, [])
        if not any(name in node.columns for node in nodes):
            columns = sorted({column for node in nodes for column in node.columns})
            raise KeyError(f"No series {name!r}. There are: {', '.join([*training, *columns])}")
        return [sample for sample in join_column(nodes, name) if math.isfinite(sample.value)]

    def document(self) -> dict[str, Any]:
        """Return what `prefect-bt metrics -o json` prints."""
        return read_document(self._ledger, self._metrics)

    def plot(self, *, width: float = 9.0, height: float = 6.0) -> Figure:
        """Return a matplotlib figure of this size in inches.

        It needs `pip install "prefect-bt[pictures]"`.
        """
        return draw(self._metrics, width=width, height=height)

    def __repr__(self) -> str:
        record, training = self._metrics.history.record, join_training(self._metrics)
        last = ", ".join(f"{name} {samples[-1].value:.4g}" for name, samples in training.items())
        return f"<metrics of job {record.id}: {len(self.nodes)} nodes; {last or 'no training'}>"

    def _repr_svg_(self) -> str | None:
        return to_svg(self._metrics) if find_spec("matplotlib") else None

    def _repr_html_(self) -> str | None:
        """Return a text for a notebook without matplotlib, which has no picture to show."""
        if find_spec("matplotlib"):
            return None
        hint = 'For a picture: pip install "prefect-bt[pictures]"'
        return f"<p>{escape(repr(self))}</p><p>{escape(hint)}</p>"


def read_document(
    ledger: Ledger, metrics: JobMetrics, *, window: Window | None = None
) -> dict[str, Any]:
    """Return the document of the metrics with that of the job and its cache. StoreError."""
    record = metrics.history.record
    job, cache = job_document(ledger, record), read_cache(ledger, record)
    return metrics_document(metrics, window=window, training_job=job, cache=cache)


def read_cache(ledger: Ledger, record: JobRecord) -> CacheSummary | None:
    """Return the newest snapshot of the job's training cache, if it has one. StoreError."""
    runtime = record.definition.get("job", {}).get("runtime", {})
    cache: dict[str, Any] = runtime.get("cache_config") or {}
    if not cache.get("enabled"):
        return None
    return next(iter(read_snapshots(ledger.store, record.project_id)), None)


def metrics(job_id: str) -> JobMetricsView:
    """Read the metrics of a job of the configured store, on whichever machine it runs.

    Examples:
        >>> import prefect_bt
        >>> prefect_bt.metrics("abc1234").series("loss")[-1].value  # doctest: +SKIP
        1.204

    Args:
        job_id: ID of the job.

    Returns:
        The metrics as they are now; call it again for newer ones.

    Raises:
        NotFoundError: The store has no such job.
        StoreError: The store does not answer.
    """
    ledger = open_ledger()
    record = ledger.get_job(job_id)
    return JobMetricsView(ledger, JobMetricsReader(ledger, record, Settings().state_dir).read())
