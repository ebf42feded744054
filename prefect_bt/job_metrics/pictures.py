"""Pictures of a job's metrics, drawn with matplotlib: curves, resources, attempts, goodput."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from itertools import groupby
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, Final

from prefect_bt.errors import UsageError
from prefect_bt.job_metrics.goodput import TimeClass, measure_goodput
from prefect_bt.job_metrics.job_metrics import JobMetrics
from prefect_bt.job_metrics.series import (
    LEARNING_RATE,
    LOSS,
    Sample,
    Window,
    choose_window,
    find_name,
    group_by_rank,
    join_column,
    join_training,
)
from prefect_bt.text.control_characters import escape_controls

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Axes = Any
"""matplotlib's Axes, whose own types are incomplete."""

_METADATA: Final[Mapping[str, Mapping[str, str | None]]] = {".svg": {"Date": None}, ".png": {}}
"""Formats of a file. The same metrics make the same SVG."""
_COLORS: Final = ("#2563eb", "#dc2626", "#059669", "#d97706")
_STYLE: Final = {
    "font.size": 8.5,
    "axes.titlesize": 9.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#9ca3af",
    "axes.grid": True,
    "grid.color": "#e5e7eb",
    "grid.linewidth": 0.6,
    "lines.linewidth": 1.2,
    "legend.frameon": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "prefect-bt",
}
_DECADES: Final = 100.0
"""Ratio of the greatest to the least loss from which its axis is logarithmic."""
_MAX_CURVES: Final = 4
"""Curves of a panel; of more, their mean and their range are drawn."""
_RANGE_PARTS: Final = 200
_GIB: Final = 1 << 30
_TIME_UNITS: Final = ((86400.0, "days"), (3600.0, "hours"), (60.0, "minutes"), (1.0, "seconds"))
_PHASE_COLORS: Final = {
    "training": "#16a34a",
    "lost": "#dc2626",
    "stalled": "#f97316",
    "queued": "#9ca3af",
    "retry_delay": "#d1d5db",
    "mirroring": "#0891b2",
    "provisioning": "#2563eb",
    "restoring": "#7c3aed",
    "flushing": "#ca8a04",
}
_NODE_PANELS: Final = (("CPU cores in use", "cpu", 1.0), ("Memory (GiB)", "memory", 1 / _GIB))
_GPU_PANELS: Final = (
    ("GPU utilization (%)", "utilization", 100.0),
    ("GPU memory (GiB)", "memory", 1 / _GIB),
)
_BEGAN, _FAILED = "#6b7280", "#dc2626"
_Curves = dict[str, list[Sample]]
"""Samples by the label of their curve."""
_ToX = Callable[[float], float]
"""Epoch seconds -> position on the axis of time."""


def draw(
    metrics: JobMetrics, *, width: float = 9.0, height: float = 6.0, since: float | None = None
) -> Figure:
    """Return a figure of the size in inches. UsageError without matplotlib."""
    window = choose_window(metrics, since=since)
    panels = _list_panels(metrics, window)
    length = window.until - window.since
    scale, unit = next(unit for unit in _TIME_UNITS if length >= 2 * unit[0] or unit[0] == 1.0)
    record = metrics.history.record

    def to_x(at: float) -> float:
        return (at - window.since) / scale

    with _style():
        from matplotlib.figure import Figure

        figure: Any = Figure(figsize=(width, height), layout="constrained")
        title = _plain(f"{record.project_name} · {record.name} · {record.id}")
        figure.suptitle(title, x=0.01, ha="left", fontsize=11, fontweight="bold")
        ratios = [0.22, *[1.0] * ((len(panels) + 1) // 2), 0.16]
        grid = figure.add_gridspec(len(ratios), 2, height_ratios=ratios)
        _draw_phases(figure.add_subplot(grid[0, :]), measure_goodput(metrics).seconds)
        for number, (name, curves) in enumerate(panels):
            axes = figure.add_subplot(grid[1 + number // 2, number % 2])
            _draw_curves(axes, curves, to_x)
            if not LOSS.fullmatch(name):
                axes.set_ylim(bottom=0)
            else:
                losses = [sample.value for sample in curves[name]]
                is_steep = 0 < _DECADES * min(losses) < max(losses)
                axes.set_yscale("log" if is_steep else "linear")
            _mark_attempts(axes, metrics, to_x)
            axes.set(title=_plain(name))
        _draw_attempts(figure.add_subplot(grid[-1, :]), metrics, window, to_x)
        figure.axes[-1].set(xlabel=f"{unit} since the first sample")
        for axes in figure.axes[1:]:
            axes.set(xlim=(0, max(to_x(window.until), 1e-6)))
    return figure


def save_picture(metrics: JobMetrics, path: Path, *, since: float | None = None) -> None:
    """Write the picture as SVG or PNG, as the name ends. UsageError for another name."""
    if path.suffix.lower() not in _METADATA:
        raise UsageError(f"{path} is no name of a picture.", next_step="End it in .svg or .png.")
    figure = draw(metrics, since=since)
    path.parent.mkdir(parents=True, exist_ok=True)
    _save(figure, path, path.suffix.lower())


def to_svg(metrics: JobMetrics) -> str:
    """Return the picture as the text of an SVG document."""
    text = io.StringIO()
    _save(draw(metrics), text, ".svg")
    return text.getvalue()


def _save(figure: Any, target: Path | io.StringIO, suffix: str) -> None:
    with _style(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")  # a letter that the font lacks
        figure.savefig(target, format=suffix[1:], dpi=150, metadata=_METADATA[suffix])


def _style() -> AbstractContextManager[None]:
    try:
        import matplotlib
    except ImportError:
        raise UsageError(
            "Pictures are drawn with matplotlib, which is not installed.",
            next_step='Install it: pip install "prefect-bt[pictures]"',
        ) from None
    library: Any = matplotlib
    return library.rc_context(_STYLE)


def _list_panels(metrics: JobMetrics, window: Window) -> list[tuple[str, _Curves]]:
    """Return title and curves of each panel that has samples."""
    training, ranks = join_training(metrics), group_by_rank(metrics)
    names = [find_name(training, pattern) for pattern in (LOSS, LEARNING_RATE)]
    panels = [(name, {name: window.cut(training[name])}) for name in names if name]
    gpus = sorted({gpu.index for node in metrics.nodes for gpu in node.facts.gpus})
    for title, column, factor in _GPU_PANELS if gpus else _NODE_PANELS:
        curves = {
            label: [
                sample._replace(value=sample.value * factor)
                for sample in window.cut(join_column(nodes, prefix + column))
            ]
            for rank, nodes in ranks.items()
            for label, prefix in [(f"{rank}: GPU {gpu}", f"gpu{gpu}_") for gpu in gpus]
            or [(f"node {rank}", "")]
        }
        panels.append((title, {label: samples for label, samples in curves.items() if samples}))
    return [(title, curves) for title, curves in panels if any(curves.values())]


def _draw_curves(axes: Axes, curves: _Curves, to_x: _ToX) -> None:
    """Draw each attempt as a line of its own: between two attempts there are no values."""
    if len(curves) > _MAX_CURVES:
        _draw_range(axes, curves, to_x)
    else:
        for color, (label, curve) in zip(_COLORS, curves.items(), strict=False):
            for number, samples in enumerate(_split_attempts(curve)):
                axes.plot(
                    [to_x(sample.at) for sample in samples],
                    [sample.value for sample in samples],
                    color=color,
                    label="_" if number else label,  # in the legend once
                    marker="." if len(samples) == 1 else "",
                    clip_on=len(samples) > 1,
                    alpha=0.85,
                )
    if len(curves) > 1:
        axes.legend(
            fontsize=7, ncols=4, loc="lower right", handlelength=1.2,
            frameon=True, facecolor="white", edgecolor="none", framealpha=0.85,
        )  # fmt: skip


def _draw_range(axes: Axes, curves: _Curves, to_x: _ToX) -> None:
    samples = sorted(sample for curve in curves.values() for sample in curve)
    start = samples[0].at
    length = (samples[-1].at - start) / _RANGE_PARTS or 1.0
    labels = f"mean of {len(curves)}", "least to greatest"
    for attempt in _split_attempts(samples):
        parts = groupby(attempt, lambda sample: int((sample.at - start) / length))
        points = [(start + (n + 0.5) * length, [each.value for each in part]) for n, part in parts]
        times = [to_x(at) for at, _ in points]
        axes.plot(times, [fmean(values) for _, values in points], color=_COLORS[0], label=labels[0])
        least, greatest = ([pick(values) for _, values in points] for pick in (min, max))
        axes.fill_between(
            times, least, greatest, color=_COLORS[0], alpha=0.2, linewidth=0, label=labels[1]
        )
        labels = "_", "_"


def _split_attempts(samples: Iterable[Sample]) -> list[list[Sample]]:
    return [list(group) for _, group in groupby(samples, lambda sample: sample.attempt)]


def _mark_attempts(axes: Axes, metrics: JobMetrics, to_x: _ToX) -> None:
    """Draw a line where an attempt failed, and a dotted one where the next began."""
    for outcome in metrics.history.outcomes:
        if outcome.failure and (at := outcome.failed_at or outcome.ended_at):
            axes.axvline(to_x(at), color=_FAILED, linewidth=0.8, alpha=0.6)
    for attempt in metrics.history.attempts[1:]:
        axes.axvline(to_x(attempt.at), color=_BEGAN, linewidth=0.8, linestyle=":")


def _draw_attempts(axes: Axes, metrics: JobMetrics, window: Window, to_x: _ToX) -> None:
    """Draw a bar for each attempt, red for one that failed."""
    outcomes = {outcome.attempt: outcome for outcome in metrics.history.outcomes}
    for begun in metrics.history.attempts:
        outcome = outcomes.get(begun.attempt)
        end = to_x(outcome.ended_at if outcome and outcome.ended_at else window.until)
        start = to_x(max(begun.at, window.since))
        color = _FAILED if outcome and outcome.failure else _PHASE_COLORS["training"]
        bar = axes.barh(0, end - start, left=start, color=color, alpha=0.25, edgecolor="white")
        if end - start > 0.02 * to_x(window.until):
            axes.bar_label(bar, [str(begun.attempt)], label_type="center", fontsize=7)
    axes.set(yticks=[])
    axes.set_ylabel("attempt", rotation=0, ha="right", va="center")
    axes.grid(visible=False)
    axes.spines["left"].set_visible(False)


def _draw_phases(axes: Axes, phases: Mapping[TimeClass, float]) -> None:
    """Draw one bar of the classes of goodput, in proportion to their seconds."""
    total, left = sum(phases.values()), 0.0
    for name, seconds in phases.items():
        if seconds > 0:
            part = 100 * seconds / total
            label = f"{name.replace('_', ' ')} {part:.0f} %"
            axes.barh(0, part, left=left, color=_PHASE_COLORS[name], label=label, edgecolor="white")
            left += part
    axes.set(xlim=(0, 100), yticks=[], xticks=[], title="Where the time went")
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)
    if total:
        axes.legend(
            loc="upper left", bbox_to_anchor=(0, -0.05), ncols=5, fontsize=7.5, borderaxespad=0,
            handlelength=1, handleheight=1,
        )  # fmt: skip


def _plain(text: str) -> str:
    """Return text that matplotlib prints as it is: `$` would begin a formula."""
    return escape_controls(text).replace("$", r"\$")
