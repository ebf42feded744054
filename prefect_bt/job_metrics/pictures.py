"""Pictures of a job's metrics, drawn with matplotlib: curves, resources, attempts, goodput."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from prefect_bt.errors import UsageError
from prefect_bt.job_metrics.goodput import TimeClass
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

WIDTH, HEIGHT = 9.0, 6.0
"""Size of a picture in inches."""
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
_RANGE_POINTS: Final = 200
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
_OTHER_PHASE: Final = "#57534e"
_BEGAN, _FAILED = "#6b7280", "#dc2626"


class PicturesUnavailable(UsageError):
    """matplotlib is not installed."""


@dataclass(frozen=True)
class _Curve:
    label: str
    samples: Sequence[Sample]


def draw(
    metrics: JobMetrics,
    *,
    width: float = WIDTH,
    height: float = HEIGHT,
    window: Window | None = None,
    phases: Mapping[TimeClass, float] | None = None,
) -> Figure:
    """Return a figure of the size in inches. `phases`: seconds of the job by class of goodput.

    Raises PicturesUnavailable without matplotlib.
    """
    chosen = window or choose_window(metrics)
    panels = _list_panels(metrics, chosen)
    with _style():
        from matplotlib.figure import Figure

        figure: Any = Figure(figsize=(width, height), layout="constrained")
        ratios = [0.22] * bool(phases) + [1.0] * ((len(panels) + 1) // 2) + [0.16]
        grid = figure.add_gridspec(len(ratios), 2, height_ratios=ratios)
        record = metrics.history.record
        title = f"{record.project_name} · {record.name} · {record.id}"
        figure.suptitle(_plain(title), x=0.01, ha="left", fontsize=11, fontweight="bold")
        row = 0
        if phases:
            _draw_phases(figure.add_subplot(grid[0, :]), phases)
            row = 1
        scale = _choose_scale(chosen)
        for number, (name, curves, finish) in enumerate(panels):
            axes = figure.add_subplot(grid[row + number // 2, number % 2])
            _draw_curves(axes, curves, start=chosen.since, scale=scale[0])
            axes.set_title(name)
            finish(axes)
            _mark_attempts(axes, metrics, chosen, scale[0])
            axes.set_xlim(0, max((chosen.until - chosen.since) / scale[0], 1e-3))
        _draw_attempts(figure.add_subplot(grid[-1, :]), metrics, chosen, scale)
    return figure


def save_picture(
    metrics: JobMetrics,
    path: Path,
    *,
    window: Window | None = None,
    phases: Mapping[TimeClass, float] | None = None,
) -> None:
    """Write the picture as SVG or PNG, as the name ends. UsageError for another name."""
    if path.suffix.lower() not in _METADATA:
        raise UsageError(f"{path} is no name of a picture.", next_step="End it in .svg or .png.")
    figure = draw(metrics, window=window, phases=phases)
    path.parent.mkdir(parents=True, exist_ok=True)
    _save(figure, path, path.suffix.lower())


def to_svg(metrics: JobMetrics, *, phases: Mapping[TimeClass, float] | None = None) -> str:
    """Return the picture as the text of an SVG document."""
    text = io.StringIO()
    _save(draw(metrics, phases=phases), text, ".svg")
    return text.getvalue()


def _save(figure: Any, target: Path | io.StringIO, suffix: str) -> None:
    with _style(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")  # a letter that the font lacks
        figure.savefig(target, format=suffix[1:], dpi=150, metadata=_METADATA[suffix])


def _style() -> AbstractContextManager[None]:
    try:
        import matplotlib
    except ImportError:
        raise PicturesUnavailable(
            "Pictures are drawn with matplotlib, which is not installed.",
            next_step='Install it: pip install "prefect-bt[pictures]"',
        ) from None
    library: Any = matplotlib
    return library.rc_context(_STYLE)


def _list_panels(
    metrics: JobMetrics, window: Window
) -> list[tuple[str, list[_Curve], Callable[[Axes], object]]]:
    """Return title, curves and last touch of each panel that has samples."""
    training, ranks = join_training(metrics), group_by_rank(metrics)
    panels = list[tuple[str, list[_Curve], Callable[[Axes], object]]]()

    def add(title: str, curves: Sequence[_Curve], finish: Callable[[Axes], object]) -> None:
        if shown := [curve for curve in curves if curve.samples]:
            panels.append((title, shown, finish))

    for pattern, finish in ((LOSS, _scale_loss), (LEARNING_RATE, _start_at_zero)):
        if name := find_name(training, pattern):
            add(_plain(name), [_Curve(name, window.cut(training[name]))], finish)

    def columns(name: str, factor: float) -> list[_Curve]:
        gpus = sorted({gpu.index for node in metrics.nodes for gpu in node.facts.gpus})
        return [
            _Curve(
                f"GPU {gpu}" if len(ranks) == 1 else f"{rank}: GPU {gpu}",
                _scaled(window.cut(join_column(nodes, f"gpu{gpu}_{name}")), factor),
            )
            for rank, nodes in ranks.items()
            for gpu in gpus
        ]

    def nodes_of(column: str, factor: float) -> list[_Curve]:
        return [
            _Curve(f"node {rank}", _scaled(window.cut(join_column(nodes, column)), factor))
            for rank, nodes in ranks.items()
        ]

    if any(node.facts.gpus for node in metrics.nodes):
        add("GPU utilization (%)", columns("utilization", 100), _start_at_zero)
        add("GPU memory (GiB)", columns("memory", 1 / _GIB), _start_at_zero)
    else:
        add("CPU cores in use", nodes_of("cpu", 1), _start_at_zero)
        add("Memory (GiB)", nodes_of("memory", 1 / _GIB), _start_at_zero)
    return panels


def _scaled(samples: Sequence[Sample], factor: float) -> list[Sample]:
    return [sample._replace(value=sample.value * factor) for sample in samples]


def _draw_curves(axes: Axes, curves: Sequence[_Curve], *, start: float, scale: float) -> None:
    """Draw each attempt as a line of its own: between two attempts there are no values."""
    if len(curves) > _MAX_CURVES:
        _draw_range(axes, curves, start=start, scale=scale)
        return
    for number, curve in enumerate(curves):
        label = curve.label
        for _, group in groupby(curve.samples, lambda sample: sample.attempt):
            samples = list(group)
            axes.plot(
                [(sample.at - start) / scale for sample in samples],
                [sample.value for sample in samples],
                color=_COLORS[number],
                label=label,
                marker="." if len(samples) == 1 else "",
                clip_on=len(samples) > 1,
                alpha=0.85,
            )
            label = "_"  # the legend has each curve once
    if len(curves) > 1:
        _add_legend(axes)


def _draw_range(axes: Axes, curves: Sequence[_Curve], *, start: float, scale: float) -> None:
    samples = [sample for curve in curves for sample in curve.samples]
    first, last = min(samples).at, max(samples).at
    step = (last - first) / _RANGE_POINTS or 1.0
    points = dict[tuple[int, int], list[float]]()
    for sample in sorted(samples):
        key = sample.attempt, int((sample.at - first) / step)
        points.setdefault(key, []).append(sample.value)
    labels = f"mean of {len(curves)}", "least to greatest"
    for _, group in groupby(points.items(), lambda point: point[0][0]):
        values = list(group)
        times = [(first + (number + 0.5) * step - start) / scale for (_, number), _ in values]
        least, greatest = [min(each) for _, each in values], [max(each) for _, each in values]
        mean = [sum(each) / len(each) for _, each in values]
        axes.plot(times, mean, color=_COLORS[0], label=labels[0])
        axes.fill_between(
            times, least, greatest, color=_COLORS[0], alpha=0.2, linewidth=0, label=labels[1]
        )
        labels = "_", "_"
    _add_legend(axes)


def _add_legend(axes: Axes) -> None:
    axes.legend(
        fontsize=7, ncols=4, loc="lower right", handlelength=1.2,
        frameon=True, facecolor="white", edgecolor="none", framealpha=0.85,
    )  # fmt: skip


def _scale_loss(axes: Axes) -> None:
    """Use a logarithmic axis only for values of more than two decades."""
    values = [value for line in axes.lines for value in line.get_ydata() if value > 0]
    if values and max(values) > _DECADES * min(values):
        axes.set_yscale("log")


def _start_at_zero(axes: Axes) -> None:
    axes.set_ylim(bottom=0)


def _choose_scale(window: Window) -> tuple[float, str]:
    seconds = window.until - window.since
    return next(unit for unit in _TIME_UNITS if seconds >= 2 * unit[0] or unit[0] == 1.0)


def _mark_attempts(axes: Axes, metrics: JobMetrics, window: Window, scale: float) -> None:
    """Draw a line where an attempt failed, and a dotted one where the next began."""
    for outcome in metrics.history.outcomes:
        if outcome.failure and (at := outcome.failed_at or outcome.ended_at):
            axes.axvline((at - window.since) / scale, color=_FAILED, linewidth=0.8, alpha=0.6)
    for attempt in metrics.history.attempts[1:]:
        at = (attempt.at - window.since) / scale
        axes.axvline(at, color=_BEGAN, linewidth=0.8, linestyle=":")


def _draw_attempts(
    axes: Axes, metrics: JobMetrics, window: Window, scale: tuple[float, str]
) -> None:
    """Draw a bar for each attempt, red from its failure to its end."""
    seconds, unit = scale
    outcomes = {outcome.attempt: outcome for outcome in metrics.history.outcomes}
    length = max(window.until - window.since, 1e-3) / seconds
    for begun in metrics.history.attempts:
        outcome = outcomes.get(begun.attempt)
        end = outcome.ended_at if outcome and outcome.ended_at else window.until
        left = max(begun.at - window.since, 0) / seconds
        width = (end - window.since) / seconds - left
        color = _FAILED if outcome and outcome.failure else "#16a34a"
        axes.barh(0, width, left=left, height=0.8, color=color, alpha=0.25, edgecolor="white")
        if width > length * 0.02:
            axes.text(left + width / 2, 0, str(begun.attempt), ha="center", va="center", fontsize=7)
    axes.set(xlim=(0, length), ylim=(-0.5, 0.5), yticks=[], xlabel=f"{unit} since the first sample")
    axes.set_ylabel("attempt", rotation=0, ha="right", va="center")
    axes.grid(visible=False)
    axes.spines["left"].set_visible(False)


def _draw_phases(axes: Axes, phases: Mapping[TimeClass, float]) -> None:
    """Draw one bar of the classes of goodput, in proportion to their seconds."""
    total, left = sum(phases.values()) or 1.0, 0.0
    for name, seconds in phases.items():
        if seconds <= 0:
            continue
        part = 100 * seconds / total
        color = _PHASE_COLORS.get(name, _OTHER_PHASE)
        label = f"{name.replace('_', ' ')} {part:.0f} %"
        axes.barh(0, part, left=left, color=color, label=label, edgecolor="white")
        left += part
    axes.set(xlim=(0, 100), yticks=[], xticks=[], title="Where the time went")
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)
    axes.legend(
        loc="upper left", bbox_to_anchor=(0, -0.05), ncols=5, fontsize=7.5, borderaxespad=0,
        handlelength=1, handleheight=1,
    )  # fmt: skip


def _plain(text: str) -> str:
    """Return text that matplotlib prints as it is: `$` would begin a formula."""
    return escape_controls(text).replace("$", r"\$")
