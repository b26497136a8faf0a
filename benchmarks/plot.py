"""Plots of the results: groups of bars, in two panels side by side."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

INK = "#333333"
FIGURE_WIDTH = 12
GROUP_WIDTH = 0.78
LABEL_SIZE = 7.5
STYLE: dict[Any, Any] = {
    "svg.hashsalt": "paidonce",  # The same results make the same file.
    "font.size": 10,
    "text.color": INK,
    "axes.labelcolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
}


@dataclass(frozen=True, slots=True)
class Series:
    """The bars of one colour, one for each group."""

    title: str
    colour: str
    values: Sequence[float]


@dataclass(frozen=True, slots=True)
class Panel:
    """One half of a plot. Both halves have the same series, with other values."""

    title: str
    groups: Sequence[str]
    series: Sequence[Series]
    is_logarithmic: bool = False


def draw_panels(path: Path, panels: Sequence[Panel]) -> None:
    """Write the plot as SVG."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(FIGURE_WIDTH, 4), layout="constrained")
        for axes, panel in zip(figure.subplots(1, len(panels)), panels, strict=True):
            _draw(axes, panel)
        handles, titles = figure.axes[0].get_legend_handles_labels()
        figure.legend(handles, titles, loc="outside lower center", ncols=3, frameon=False)
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, format="svg", metadata={"Date": None})


def _draw(axes: Axes, panel: Panel) -> None:
    width = GROUP_WIDTH / len(panel.series)
    for number, series in enumerate(panel.series):
        shift = (number - (len(panel.series) - 1) / 2) * width
        bars = axes.bar(
            [group + shift for group in range(len(panel.groups))],
            series.values,
            width * 0.92,
            color=series.colour,
            label=series.title,
        )
        labels = [f"{value:,.0f}" for value in series.values]
        axes.bar_label(bars, labels, padding=2, fontsize=LABEL_SIZE)
    axes.set_title(panel.title, loc="left", fontweight="bold")
    if panel.is_logarithmic:
        axes.set_yscale("log")
        axes.set_ylim(bottom=1)
    _tidy(axes, panel.groups)


def _tidy(axes: Axes, groups: Sequence[str]) -> None:
    axes.set_xticks(range(len(groups)), groups, fontsize=LABEL_SIZE)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(length=0)
    axes.yaxis.set_visible(False)
    axes.margins(y=0.15)
