"""Plots of a report as PNG bytes, drawn without a display. Every axis has a name and a unit; colours are safe for the
colour-blind (Okabe and Ito)."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import matplotlib
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from rag_r1.evaluation.summary import TOTAL, SummaryRow
from rag_r1.evaluation.training_metrics import SCORE, Panel, Series, curves

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
BEFORE, AFTER = "#B5B9C0", "#0072B2"
STYLE = {
    "font.size": 10,
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#6b7280",
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "grid.color": "#e5e7eb",
    "legend.frameon": False,
    "figure.dpi": 150,
}


@contextmanager
def _style() -> Iterator[None]:
    with matplotlib.rc_context(STYLE):
        yield


def _png(figure: Any) -> bytes:
    FigureCanvasAgg(figure)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    return buffer.getvalue()


def score_over_steps(metrics: dict[str, Series]) -> bytes | None:
    """EM over training steps, the total in bold; None where nothing of it was logged."""
    if not curves(SCORE, metrics):
        return None
    with _style():
        figure = Figure(figsize=(8.4, 4.2), layout="constrained")
        _draw(figure.subplots(), SCORE, metrics, outside=True)
        return _png(figure)


def training_panels(panels: Sequence[Panel], metrics: dict[str, Series]) -> bytes | None:
    """Small plots of whatever of `panels` was logged, three a row; None where nothing was."""
    drawn = [panel for panel in panels if curves(panel, metrics)]
    if not drawn:
        return None
    width = min(3, len(drawn))
    height = -(-len(drawn) // width)
    with _style():
        figure = Figure(figsize=(3.2 * width, 2.5 * height), layout="constrained")
        axes = np.ravel(figure.subplots(height, width, squeeze=False))
        for axis, panel in zip(axes, drawn, strict=False):
            _draw(axis, panel, metrics)
        for axis in axes[len(drawn) :]:
            axis.set_visible(False)
        return _png(figure)


def _draw(axis: Any, panel: Panel, metrics: dict[str, Series], *, outside: bool = False) -> None:
    lines = curves(panel, metrics)
    for i, (label, series) in enumerate(lines):
        steps, values = list(series), list(series.values())
        validation = label.startswith("validation")
        marker = "D" if validation else "o" if len(steps) < 3 else None
        style = {
            "color": COLOURS[i % len(COLOURS)],
            "linewidth": 2.4 if i == 0 else 1.4,
            "marker": marker,
            "markersize": 5,
        }
        axis.plot(steps, values, label=label, linestyle="--" if validation else "-", **style)
    axis.set_title(panel.title)
    axis.set_xlabel("PPO step")
    axis.set_ylabel(panel.unit)
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    low = 0.0 if panel.share else min(0.0, axis.get_ylim()[0])
    axis.set_ylim(low, 1.02 if panel.share else axis.get_ylim()[1] * 1.05)
    if outside:
        axis.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
    elif len(lines) > 1:
        axis.legend(fontsize=8)


def em_by_kind(pairs: Sequence[tuple[str, Sequence[SummaryRow], Sequence[SummaryRow]]]) -> bytes:
    """Bars of EM before and after, one axis for each (sampling, rows before, rows after), with 95 % intervals."""
    with _style():
        figure = Figure(figsize=(4.6 * max(len(pairs), 1), 3.6), layout="constrained")
        axes = figure.subplots(1, max(len(pairs), 1), sharey=True, squeeze=False)[0]
        for axis, (title, before, after) in zip(axes, pairs, strict=True):
            _bars(axis, "before", before, after, BEFORE, -0.2)
            _bars(axis, "after", after, after, AFTER, 0.2)
            axis.set_title(title)
            axis.set_ylim(0, 1.08)
            axis.set_xticks(range(len(after)), [row.kind.replace("_", " ") for row in after])
            axis.tick_params(axis="x", length=0)
            if after and after[-1].kind == TOTAL and len(after) > 1:
                axis.axvline(len(after) - 1.5, color="#9ca3af", linewidth=0.8)
        axes[0].set_ylabel("exact match, 95 % interval")
        handles, labels = axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper right", ncols=2)
        return _png(figure)


def _bars(
    axis: Any, label: str, rows: Sequence[SummaryRow], order: Sequence[SummaryRow], colour: str, shift: float
) -> None:
    by_kind = {row.kind: row for row in rows}
    places = [(i, by_kind[row.kind]) for i, row in enumerate(order) if row.kind in by_kind and by_kind[row.kind].n]
    if not places:
        return
    x = [i + shift for i, _ in places]
    heights = [row.em for _, row in places]
    spread = [[row.em - row.em_low for _, row in places], [row.em_high - row.em for _, row in places]]
    axis.bar(x, heights, width=0.38, color=colour, label=label)
    axis.errorbar(x, heights, yerr=np.clip(spread, 0, None), fmt="none", ecolor="#374151", elinewidth=1, capsize=2)
    for place, (_, row) in zip(x, places, strict=True):
        axis.text(place, row.em_high + 0.015, f"{row.em:.2f}", ha="center", va="bottom", fontsize=8)
