"""Summarize the metrics of a job for its document: last training values, goodput, advice."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Final

from prefect_bt.job_metrics.advice import advice_document, advise
from prefect_bt.job_metrics.goodput import goodput_document, measure_goodput
from prefect_bt.job_metrics.job_metrics import JobMetrics, JobMetricsReader
from prefect_bt.ledger.ledger import Ledger
from prefect_bt.ledger.records import JobRecord
from prefect_bt.text.quantities import format_elapsed, format_iso
from prefect_bt.text.sparkline import draw_sparkline

_SHOWN_CLASSES: Final = 3
_SHOWN_VALUES: Final = 6
_CURVE_LENGTH: Final = 32


def run_summary(ledger: Ledger, record: JobRecord, state_dir: Path | None) -> dict[str, Any]:
    """Return the keys `goodput`, `training` and `advice` of the job's document. StoreError.

    `state_dir`: state folder of this machine, for a job that runs here. A server has no goodput.
    """
    metrics = JobMetricsReader(ledger, record, state_dir).read()
    goodput = None if record.serving else goodput_document(measure_goodput(metrics))
    return {
        "goodput": goodput,
        "training": _last_values(metrics),
        "advice": advice_document(advise(metrics)),
    }


def _last_values(metrics: JobMetrics) -> dict[str, Any] | None:
    """Return the newest step and value of each series of the lowest rank that reports any.

    A value that is not finite is None, because JSON has none.
    """
    for node in metrics.newest:
        if node.training:
            values = {
                name: value if math.isfinite(value) else None
                for point in node.training
                for name, value in point.values.items()
            }
            steps = [point.step for point in node.training if point.step is not None]
            return {
                "step": steps[-1] if steps else None,
                "values": values,
                "at": format_iso(node.training[-1].at),
                "curve": _draw_loss(metrics, node.rank),
            }
    return None


def _draw_loss(metrics: JobMetrics, rank: int) -> str | None:
    """Return the training loss of all attempts as a sparkline; None if it is not reported."""
    points = [point for node in metrics.nodes if node.rank == rank for point in node.training]
    names = [name for point in points for name in point.values if "loss" in name.lower()]
    if not names:
        return None
    losses = [point.values[names[0]] for point in points if names[0] in point.values]
    stride = max(1, len(losses) // _CURVE_LENGTH)
    return draw_sparkline(losses[::stride])


def format_goodput(goodput: dict[str, Any] | None) -> str | None:
    """Return `60.5% of 2 min 1 s trained; lost 25 s, …; 80 steps done again`; None without time."""
    if not goodput or goodput["kept_fraction"] is None:
        return None
    others = {name: spent for name, spent in goodput["seconds"].items() if name != "training"}
    largest = sorted(others.items(), key=lambda pair: -pair[1])[:_SHOWN_CLASSES]
    parts = [
        f"{format_class(name)} {format_elapsed(spent)}" for name, spent in largest if spent >= 0.5
    ]
    lost = goodput["lost_steps"]
    steps = f"; {lost} step{'s' if lost != 1 else ''} done again" if lost else ""
    kept = f"{goodput['kept_fraction']:.1%} of {format_elapsed(goodput['wall_clock'])} trained"
    return f"{kept}{'; ' if parts else ''}{', '.join(parts)}{steps}"


def format_class(name: str) -> str:
    """Return the name of a class of time as people read it."""
    return {"retry_delay": "waiting to retry"}.get(name, name)


def format_training(training: dict[str, Any] | None) -> str | None:
    """Return `step 240, loss 1.234, lr 0.0001`; None without values."""
    if not training:
        return None
    step = [f"step {training['step']}"] if training["step"] is not None else []
    shown = [
        f"{name} {'nan' if value is None else format(value, '.4g')}"
        for name, value in training["values"].items()
    ]
    return ", ".join([*step, *shown[:_SHOWN_VALUES]])
